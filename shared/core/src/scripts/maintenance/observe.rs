//! See `observe.lua`.

use crate::scripts::operation;

/// Adds deliveries to the counts by lateness of a topic.
pub(crate) struct Observe<'a> {
    /// The deliveries to add to each bucket.
    pub(crate) counts: &'a [u64],
}

operation! {
    "observe" on shard(conf observed): Observe<'_>, |call, args, reply|
    args {
        counts: for (bucket, count) in call.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            args.number(bucket);
            args.number(count);
        },
    }
    /// The number of buckets that were changed.
    reply u64 { "observed" => reply.number() }
}
