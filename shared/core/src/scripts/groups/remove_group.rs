//! See `remove_group.lua`.

use crate::scripts::general::{General, general_script};
use crate::scripts::{Args, Reply, UnexpectedReply, unexpected};

/// Removes a retiring group, or a batch of its messages.
pub(crate) struct RemoveGroup {
    /// At most 50.
    pub(crate) batch: u16,
}

/// The outcome of a group's removal on one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// The group was removed.
    Gone {
        /// Messages dropped by this call.
        dropped: u64,
        /// The topic's epoch.
        epoch: u64,
    },
    /// The group has more messages to drop: call again.
    More {
        /// Messages dropped by this call.
        dropped: u64,
    },
    /// The group is not retiring, or its consumers have not finished yet.
    Kept,
}

impl General for RemoveGroup {
    type Reply = Removed;
    const OF_A_GROUP: bool = true;
    const ARGS: &'static [&'static str] = &["batch"];
    general_script!("remove_group");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.batch);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        match reply.text()?.as_str() {
            "removed" => Ok(Removed::Gone {
                dropped: reply.number()?,
                epoch: reply.number()?,
            }),
            "more" => Ok(Removed::More {
                dropped: reply.number()?,
            }),
            "kept" => Ok(Removed::Kept),
            other => Err(unexpected("an outcome", &other)),
        }
    }
}
