//! See `migrate_in.lua`.

use std::ops::Range;

use crate::scripts::{Bundle, Reply, operation};
use crate::time::UnixMs;
use crate::topic::Shard;

/// Puts messages of a retiring shard into this one.
pub(crate) struct MigrateIn<'a> {
    /// The shard's `max_ready` while a message has a priority or a merge key, if the topic sets none.
    pub(crate) default_max_ready: u64,
    /// The retiring shards.
    pub(crate) old: Range<u16>,
    /// The retiring shard that the messages come from.
    pub(crate) from: Shard,
    /// Its batch, 0 for none.
    pub(crate) batch: u64,
    /// The number of arrivals of that shard.
    pub(crate) arrivals: u64,
    /// The low watermark of that shard: nothing due before it will come from there; `None` if nothing will.
    pub(crate) watermark: Option<UnixMs>,
    /// The time up to which each group's rate is used up there, as [`MigrateOut`](crate::scripts::MigrateOut) returns it.
    pub(crate) tats: &'a str,
    /// At most 50.
    pub(crate) bundles: &'a [Bundle],
}

operation! {
    "migrate_in" + "bundles" on general shard: MigrateIn<'_>, |call, args, reply|
    args {
        ready: args.number(call.default_max_ready),
        old: args.number(format_args!("{} {}", call.old.start, call.old.end - 1)),
        from: args.number(call.from),
        batch: args.number(call.batch),
        arrivals: args.number(call.arrivals),
        watermark: match call.watermark {
            Some(time) => args.number(time.get()),
            None => args.text("-1"),
        },
        tats: args.text(call.tats),
        items: for bundle in call.bundles {
            args.text(bundle.id.as_str());
            args.bytes(&bundle.text);
        },
    }
    /// The ids that must go back.
    reply Vec<String> { "taken" => reply.rest(Reply::text) }
}
