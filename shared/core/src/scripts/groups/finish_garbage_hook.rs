//! See `finish_garbage_hook.lua`.

use crate::message::MessageId;
use crate::scripts::change::requeue::push;
use crate::scripts::operation;
use crate::time::UnixMs;

/// Removes pending hooks that are done: at most 200, each with the garbage time that the hook got.
pub(crate) struct FinishGarbageHook<'a> {
    pub(crate) items: &'a [(MessageId, UnixMs)],
}

operation! {
    "finish_garbage_hook" on group(garbage garbage_hook): FinishGarbageHook<'_>, |call, args, reply|
    args { items: push(call.items, args) }
    /// The number of hooks removed.
    reply u64 { "finished" => reply.number() }
}
