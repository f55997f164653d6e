//! See `drop_consumer.lua`.

use crate::keys::GroupKeys;
use crate::scripts::{Args, Operation, Reply, UnexpectedReply, group_keys, script, unexpected};
use crate::topic::Group;

/// Removes a consumer, unless it holds a message.
pub(crate) struct DropConsumer<'a> {
    pub(crate) group: &'a Group,
    pub(crate) consumer: &'a str,
}

impl Operation for DropConsumer<'_> {
    type Scope = GroupKeys;
    /// True if it is gone now.
    type Reply = bool;
    const KEYS: &'static [crate::scripts::KeyOf<GroupKeys>] = group_keys!(ready);
    const ARGS: &'static [&'static str] = &["group", "consumer"];
    script!("drop_consumer");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.text(self.group.as_str());
        args.text(self.consumer);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        match reply.text()?.as_str() {
            "dropped" | "unknown" => Ok(true),
            "held" => Ok(false),
            other => Err(unexpected("an outcome", &other)),
        }
    }
}
