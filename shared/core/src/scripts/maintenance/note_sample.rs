//! See `note_sample.lua`.

use crate::scripts::operation;
use crate::time::UnixMs;

/// Appends a sample to the history of a topic.
pub(crate) struct NoteSample<'a> {
    pub(crate) is_quarter: bool,
    pub(crate) time: UnixMs,
    pub(crate) keep: u64,
    /// True to append it even if it equals the last one.
    pub(crate) again: bool,
    pub(crate) sample: &'a str,
}

operation! {
    "note_sample" + "series" on shard(conf observed series series15): NoteSample<'_>, |call, args, reply|
    args {
        quarter: args.flag(call.is_quarter),
        time: args.number(call.time.get()),
        keep: args.number(call.keep),
        again: args.flag(call.again),
        sample: args.text(call.sample),
    }
    /// True if the sample was appended.
    reply bool { "noted" => reply.flag() }
}
