//! The end of a topic: a shard accepts nothing new, then it is gone.

use super::{Group, Reference};
use lisa_core::broker::Removal;

/// The refusal of a call for a topic that is being removed, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Refused {
    /// The topic is being removed.
    BeingRemoved,
    /// The topic is being removed, but some messages of the batch were known.
    Partly,
    /// The topic is being removed, and the shard is gone.
    ShardGone,
    /// The topic is gone.
    Unknown,
    /// The topic is at another epoch than the caller has seen.
    Epoch(u64),
}

impl Reference {
    /// Returns the answer of a call for the shard, unless it is gone.
    pub(in super::super) fn unless_gone<T>(
        &mut self,
        call: impl FnOnce(&mut Self) -> T,
    ) -> Result<T, Refused> {
        if self.is_gone {
            return Err(Refused::ShardGone);
        }
        Ok(call(self))
    }

    /// Closes the shard to new messages. A removal by force stays one.
    pub(in super::super) fn begin_removal(&mut self, how: Removal) {
        let goes_on = [Some(how), Some(Removal::Force)].contains(&self.removal);
        if !self.is_gone && !goes_on {
            self.removal = Some(how);
            self.epoch += 1;
            self.general = true;
        }
    }

    /// Removes everything, unless messages or entries must be delivered before. Returns how many.
    pub(in super::super) fn remove(&mut self) -> u64 {
        let stored = self.messages.values().filter(|m| m.record.is_some());
        let entries = self.groups.iter().map(|group: &Group| group.stream.len());
        let left = entries.chain([stored.count()]).max().unwrap_or_default();
        if left > 0 && self.removal != Some(Removal::Force) {
            return left as u64;
        }
        *self = Self {
            epoch: self.epoch,
            is_gone: true,
            ..Self::new(self.rules.clone(), &[])
        };
        0
    }
}
