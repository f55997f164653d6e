//! See `note_counts.lua`.

use crate::scripts::operation;

/// Keeps the newest counts of topics.
pub(crate) struct NoteCounts<'a> {
    pub(crate) manager: &'a str,
    /// True if the run of the manager is over and has read each of its topics.
    pub(crate) complete: bool,
    /// Topics with their values, and fields that may be left over, with empty ones.
    pub(crate) entries: &'a [(String, String)],
}

operation! {
    "note_counts" on registry(snapshot topics managers): NoteCounts<'_>, |call, args, reply|
    args {
        manager: args.text(call.manager),
        complete: args.flag(call.complete),
        entries: for (field, value) in call.entries {
            args.text(field);
            args.text(value);
        },
    }
    /// The number of fields that were written or removed.
    reply u64 {
        "noted" => reply.number(),
    }
}
