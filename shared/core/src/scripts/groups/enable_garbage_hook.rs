//! See `enable_garbage_hook.lua`.

use crate::keys::GroupKeys;
use crate::scripts::{Args, Operation, Reply, UnexpectedReply, group_keys, script, unexpected};
use crate::topic::Group;

/// Queues a garbage hook for each message that a group moves to garbage from now on.
pub(crate) struct EnableGarbageHook<'a> {
    pub(crate) group: &'a Group,
}

impl Operation for EnableGarbageHook<'_> {
    type Scope = GroupKeys;
    /// True if this changed anything.
    type Reply = bool;
    const KEYS: &'static [crate::scripts::KeyOf<GroupKeys>] = group_keys!(conf);
    const ARGS: &'static [&'static str] = &["group"];
    script!("enable_garbage_hook");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.text(self.group.as_str());
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        match reply.text()?.as_str() {
            "enabled" => Ok(true),
            "same" => Ok(false),
            other => Err(unexpected("an outcome", &other)),
        }
    }
}
