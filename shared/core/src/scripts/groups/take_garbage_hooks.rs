//! See `take_garbage_hooks.lua`.

use std::time::Duration;

use crate::keys::GroupKeys;
use crate::message::MessageId;
use crate::scripts::{Args, Operation, Reply, UnexpectedReply, group_keys, script, unexpected};
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

impl Operation for TakeGarbageHooks<'_> {
    type Scope = GroupKeys;
    /// `None` if the group's hooks are not enabled.
    type Reply = Option<TakenGarbageHooks>;
    const KEYS: &'static [crate::scripts::KeyOf<GroupKeys>] =
        group_keys!(conf stats garbage garbage_info garbage_hook);
    const ARGS: &'static [&'static str] = &["now", "group", "batch", "lease"];
    script!("take_garbage_hooks");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.now);
        args.text(self.group.as_str());
        args.number(self.batch);
        args.number(millis(self.lease));
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        match reply.text()?.as_str() {
            "taken" => {}
            "disabled" => return Ok(None),
            other => return Err(unexpected("an outcome", &other)),
        }
        let more = reply.flag()?;
        let mut hooks = Vec::new();
        while !reply.is_empty() {
            let id = reply.text()?;
            hooks.push(TakenGarbageHook {
                id: id.parse().map_err(|_| unexpected("a message id", &id))?,
                time: UnixMs::new(reply.number()?),
                info: String::from_utf8_lossy(&reply.bytes()?).into_owned(),
            });
        }
        Ok(Some(TakenGarbageHooks { more, hooks }))
    }
}
