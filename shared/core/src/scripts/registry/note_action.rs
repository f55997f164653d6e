//! See `note_action.lua`.

use crate::scripts::operation;

/// Adds an action to the audit log.
pub(crate) struct NoteAction<'a> {
    /// The number of actions to keep.
    pub(crate) kept: usize,
    pub(crate) fields: &'a [(&'static str, String)],
}

operation! {
    "note_action" on registry(audit): NoteAction<'_>, |call, args, reply|
    args {
        kept: args.number(call.kept),
        fields: for (field, value) in call.fields {
            args.text(field);
            args.text(value);
        },
    }
    /// The number of old actions that were removed.
    reply u64 {
        "noted" => reply.number(),
    }
}
