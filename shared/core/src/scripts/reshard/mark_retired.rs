//! See `mark_retired.lua`.

use std::ops::Range;

use crate::scripts::operation;

/// Records which retired shards may still have keys, or that their keys are gone.
pub(crate) struct MarkRetired {
    pub(crate) shards: Range<u16>,
    pub(crate) gone: bool,
}

operation! {
    "mark_retired" on shard(conf): MarkRetired, |call, args, reply|
    args {
        start: args.number(call.shards.start),
        end: args.number(call.shards.end),
        gone: args.flag(call.gone),
    }
    reply () { "marked" => Ok(()) }
}
