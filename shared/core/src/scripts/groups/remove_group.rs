//! See `remove_group.lua`.

use crate::scripts::operation;

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

operation! {
    "remove_group" on general group: RemoveGroup, |call, args, reply|
    args { batch: args.number(call.batch) }
    reply Removed {
        "removed" => Ok(Removed::Gone { dropped: reply.number()?, epoch: reply.number()? }),
        "more" => Ok(Removed::More { dropped: reply.number()? }),
        "kept" => Ok(Removed::Kept),
    }
}
