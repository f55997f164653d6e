//! See `finish_garbage_hook.lua`.

use crate::keys::GroupKeys;
use crate::message::MessageId;
use crate::scripts::{Args, Operation, Reply, UnexpectedReply, group_keys, script, unexpected};
use crate::time::UnixMs;

/// Removes pending hooks that are done: at most 200, each with the garbage time that the hook got.
pub(crate) struct FinishGarbageHook<'a> {
    pub(crate) items: &'a [(MessageId, UnixMs)],
}

impl Operation for FinishGarbageHook<'_> {
    type Scope = GroupKeys;
    /// The number of hooks removed.
    type Reply = u64;
    const KEYS: &'static [crate::scripts::KeyOf<GroupKeys>] = group_keys!(garbage garbage_hook);
    const ARGS: &'static [&'static str] = &["items"];
    script!("finish_garbage_hook");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        for (id, time) in self.items {
            args.text(id.as_str());
            args.number(time.get());
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        match reply.text()?.as_str() {
            "finished" => reply.number(),
            other => Err(unexpected("finished", &other)),
        }
    }
}
