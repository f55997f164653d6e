//! See `create_shard.lua`.

use crate::scripts::operation;
use crate::topic::Shard;

/// Prepares a new shard as a successor of the retiring shards.
pub(crate) struct CreateShard<'a> {
    /// The first retiring shard; `None` sets only the flags.
    pub(crate) previous: Option<Shard>,
    /// The first epoch of the topic with the new shards.
    pub(crate) epoch: u64,
    /// More than the arrivals of any retiring shard.
    pub(crate) arrivals: u64,
    /// Fields of `conf` and their values.
    pub(crate) flags: &'a [(String, String)],
}

operation! {
    "create_shard" on shard(conf stats): CreateShard<'_>, |call, args, reply|
    args {
        previous: args.optional(call.previous),
        epoch: args.number(call.epoch),
        arrivals: args.number(call.arrivals),
        flags: for (field, value) in call.flags {
            args.text(field);
            args.text(value);
        },
    }
    reply () { "created" => Ok(()) }
}
