//! See `enable_garbage_hook.lua`.

use crate::scripts::operation;
use crate::topic::Group;

/// Queues a garbage hook for each message that a group moves to garbage from now on.
pub(crate) struct EnableGarbageHook<'a> {
    pub(crate) group: &'a Group,
}

operation! {
    "enable_garbage_hook" on group(conf): EnableGarbageHook<'_>, |call, args, reply|
    args { group: args.text(call.group.as_str()) }
    /// True if this changed anything.
    reply bool {
        "enabled" => Ok(true),
        "same" => Ok(false),
    }
}
