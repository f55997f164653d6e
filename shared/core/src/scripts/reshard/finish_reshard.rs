//! See `finish_reshard.lua`.

use std::ops::Range;

use crate::scripts::operation;

/// Makes a successor forget the retired shards.
pub(crate) struct FinishReshard {
    /// The retired shards.
    pub(crate) old: Range<u16>,
}

operation! {
    "finish_reshard" on shard(conf): FinishReshard, |call, args, reply|
    args { oldest: args.number(call.old.start), youngest: args.number(call.old.end - 1) }
    /// The epoch.
    reply u64 { "finished" => reply.number() }
}
