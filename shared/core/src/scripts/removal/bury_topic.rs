//! See `bury_topic.lua`.

use std::time::Duration;

use crate::scripts::operation;
use crate::time::millis;

/// Records the removal of a topic at shard 0.
pub(crate) struct BuryTopic {
    pub(crate) epoch: u64,
    pub(crate) keep: Duration,
}

operation! {
    "bury_topic" + "bury" on shard(conf): BuryTopic, |call, args, reply|
    args {
        epoch: args.number(call.epoch),
        keep: args.number(millis(call.keep)),
    }
    reply () { "buried" | "kept" => Ok(()) }
}
