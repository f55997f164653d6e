//! Tracks the offsets of messages in flight, and thus the offset up to which Lisa has all messages of a partition.

use std::collections::{BTreeMap, BTreeSet};

/// The messages in flight, by partition.
#[derive(Debug, Default)]
pub(super) struct Progress(BTreeMap<i32, Partition>);

#[derive(Debug)]
struct Partition {
    in_flight: BTreeSet<i64>,
    /// The offset after the last message that was taken. All messages before it are done or in flight.
    next: i64,
    committed: i64,
}

impl Progress {
    /// Records that a message is taken.
    pub(super) fn begun(&mut self, partition: i32, offset: i64) {
        let partition = self.0.entry(partition).or_insert_with(|| Partition {
            in_flight: BTreeSet::new(),
            next: offset,
            committed: offset,
        });
        partition.in_flight.insert(offset);
        partition.next = partition.next.max(offset + 1);
    }

    /// Records that a message is done: accepted, published as a dead letter, or skipped.
    pub(super) fn done(&mut self, partition: i32, offset: i64) {
        if let Some(partition) = self.0.get_mut(&partition) {
            partition.in_flight.remove(&offset);
        }
    }

    /// Returns the offset of the first message that is not done, unless it is already committed.
    pub(super) fn next_commit(&self, partition: i32) -> Option<i64> {
        let partition = self.0.get(&partition)?;
        let first = partition.in_flight.first();
        let offset = first.copied().unwrap_or(partition.next);
        (offset > partition.committed).then_some(offset)
    }

    /// Records that an offset is committed.
    pub(super) fn committed(&mut self, partition: i32, offset: i64) {
        if let Some(partition) = self.0.get_mut(&partition) {
            partition.committed = partition.committed.max(offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_committed_past_a_message_in_flight() {
        let mut progress = Progress::default();
        for offset in 10..15 {
            progress.begun(0, offset);
        }
        for offset in [14, 12, 11] {
            progress.done(0, offset);
        }
        assert_eq!(progress.next_commit(0), None);
        progress.done(0, 10);
        assert_eq!(progress.next_commit(0), Some(13));
        assert_eq!(progress.next_commit(0), Some(13), "again, if it failed");
        progress.committed(0, 13);
        assert_eq!(progress.next_commit(0), None);
        progress.done(0, 13);
        assert_eq!(progress.next_commit(0), Some(15));
        assert_eq!(progress.next_commit(1), None);
    }

    #[test]
    fn a_partition_that_comes_back_is_never_committed_backwards() {
        let mut progress = Progress::default();
        for offset in 0..10 {
            progress.begun(0, offset);
            progress.done(0, offset);
        }
        assert_eq!(progress.next_commit(0), Some(10));
        progress.committed(0, 10);
        progress.begun(0, 5);
        assert_eq!(progress.next_commit(0), None);
        progress.done(0, 5);
        assert_eq!(progress.next_commit(0), None);
        progress.begun(0, 100);
        progress.done(0, 100);
        assert_eq!(progress.next_commit(0), Some(101));
    }
}
