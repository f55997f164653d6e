//! See `take_garbage_hooks.lua`.

use std::time::Duration;

use crate::message::MessageId;
use crate::scripts::operation;
use crate::time::{UnixMs, millis};
use crate::topic::Group;

/// Leases messages in garbage whose hook is due: at most 100.
pub(crate) struct TakeGarbageHooks<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
    pub(crate) batch: u16,
    pub(crate) lease: Duration,
}

/// The hooks that were leased.
pub(crate) struct TakenGarbageHooks {
    pub(crate) more: bool,
    pub(crate) hooks: Vec<TakenGarbageHook>,
}

/// One message in garbage whose hook is due.
pub(crate) struct TakenGarbageHook {
    pub(crate) id: MessageId,
    /// The time at which it was moved to garbage.
    pub(crate) time: UnixMs,
    /// `<reason> <attempts> <error>`.
    pub(crate) info: String,
}

operation! {
    "take_garbage_hooks" on group(conf stats garbage garbage_info garbage_hook):
    TakeGarbageHooks<'_>, |call, args, reply|
    args {
        now: args.number(call.now),
        group: args.text(call.group.as_str()),
        batch: args.number(call.batch),
        lease: args.number(millis(call.lease)),
    }
    /// `None` if the group's hooks are not enabled.
    reply Option<TakenGarbageHooks> {
        "taken" => Ok(Some(TakenGarbageHooks {
            more: reply.flag()?,
            hooks: reply.rest(|reply| Ok(TakenGarbageHook {
                id: reply.parsed("a message id")?,
                time: UnixMs::new(reply.number()?),
                info: reply.lossy()?,
            }))?,
        })),
        "disabled" => Ok(None),
    }
}
