//! See `purge.lua`.

use crate::message::MessageId;
use crate::scripts::change::requeue::{count, push};
use crate::scripts::operation;
use crate::time::UnixMs;

/// Removes messages in a group's garbage: at most 50, each with the garbage time that the caller saw.
pub(crate) struct Purge<'a> {
    pub(crate) items: &'a [(MessageId, UnixMs)],
}

operation! {
    "purge" on general group: Purge<'_>, |call, args, reply|
    args { items: push(call.items, args) }
    /// The number of messages purged.
    reply u64 { "purged" => count(reply, "purged", &["unknown"]) }
}
