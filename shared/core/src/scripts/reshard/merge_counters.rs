//! See `merge_counters.lua`.

use crate::scripts::operation;
use crate::topic::Shard;

/// Adds the counters of a retired shard to those of a successor.
pub(crate) struct MergeCounters<'a> {
    pub(crate) from: Shard,
    pub(crate) counters: &'a [(String, i64)],
}

operation! {
    "merge_counters" on shard(stats): MergeCounters<'_>, |call, args, reply|
    args {
        from: args.number(call.from),
        counters: for (name, count) in call.counters {
            args.text(name);
            args.number(count);
        },
    }
    /// True if this call added them.
    reply bool { "merged" => reply.flag() }
}
