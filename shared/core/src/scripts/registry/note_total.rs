//! See `note_total.lua`.

use crate::scripts::operation;
use crate::time::UnixMs;

/// Appends a sample to the history of all topics together.
pub(crate) struct NoteTotal<'a> {
    pub(crate) is_quarter: bool,
    pub(crate) time: UnixMs,
    pub(crate) keep: u64,
    pub(crate) sample: &'a str,
}

operation! {
    "note_total" + "series" on registry(observed series series15): NoteTotal<'_>, |call, args, reply|
    args {
        quarter: args.flag(call.is_quarter),
        time: args.number(call.time.get()),
        keep: args.number(call.keep),
        sample: args.text(call.sample),
    }
    /// True if the sample was appended.
    reply bool { "noted" => reply.flag() }
}
