//! See `remove_shard.lua`.

use std::time::Duration;

use crate::scripts::operation;
use crate::time::millis;

/// Removes the keys of a shard of a topic that is being removed.
pub(crate) struct RemoveShard {
    /// For the first shard, the time for which it records the removal; zero for others.
    pub(crate) keep: Duration,
}

operation! {
    "remove_shard" on general shard + series + series15 + observed + failures + purged + in_transit: RemoveShard, |call, args, reply|
    args { keep: args.number(millis(call.keep)) }
    /// The messages and entries that are left, 0 if the shard is gone; and its epoch.
    reply (u64, u64) { "left" => Ok((reply.number()?, reply.number()?)) }
}
