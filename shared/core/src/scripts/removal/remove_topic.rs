//! See `remove_topic.lua`.

use crate::names::words;
use crate::scripts::{Reply, UnexpectedReply, operation, unexpected};

words!(
    /// The way in which a topic is removed. New messages are refused in either.
    Removal, "removal", {
        /// Stored messages are delivered as usual; the topic is removed once none is left.
        Drain = "drain",
        /// Stored messages are removed with the topic.
        Force = "force",
    }
);

impl Removal {
    fn read(reply: &mut Reply) -> Result<Self, UnexpectedReply> {
        let word = reply.text()?;
        word.parse()
            .map_err(|_| unexpected("drain or force", &word))
    }
}

/// The outcome of a request to remove a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalBegun {
    /// The topic is being removed.
    Removing { how: Removal, epoch: u64 },
    /// It is being resharded. Nothing was done. The new number of shards, if they are still being created.
    Resharding(u16),
    /// It was removed before.
    Removed,
    /// It is at another epoch, this one. Nothing was done.
    Epoch(u64),
}

/// Begins the removal of a topic on one shard.
pub(crate) struct RemoveTopic {
    pub(crate) how: Removal,
    /// The version of the settings on the first shard; `None` for the first shard itself.
    pub(crate) version: Option<u64>,
    /// The epoch at which it may be removed; `None` for any.
    pub(crate) seen: Option<u64>,
}

operation! {
    "remove_topic" on shard(conf): RemoveTopic, |call, args, reply|
    args {
        how: args.text(call.how.as_str()),
        version: args.optional(call.version),
        seen: args.optional(call.seen),
    }
    reply RemovalBegun {
        "removing" => Ok(RemovalBegun::Removing { how: Removal::read(reply)?, epoch: reply.number()? }),
        "resharding" => Ok(RemovalBegun::Resharding(reply.number()?)),
        "removed" => Ok(RemovalBegun::Removed),
        "epoch" => Ok(RemovalBegun::Epoch(reply.number()?)),
    }
}
