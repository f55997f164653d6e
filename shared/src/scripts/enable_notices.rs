//! See `enable_notices.lua`.

use super::{Args, Operation, Reply, UnexpectedReply, group_keys, script, unexpected};
use crate::keys::GroupKeys;
use crate::topic::Group;

/// Lets every message that a group gives up be noted for its hook.
pub(crate) struct EnableNotices<'a> {
    pub(crate) group: &'a Group,
}

impl Operation for EnableNotices<'_> {
    type Place = GroupKeys;
    /// Whether this changed anything.
    type Reply = bool;
    const KEYS: &'static [super::KeyOf<GroupKeys>] = group_keys!(conf);
    const ARGS: &'static [&'static str] = &["group"];
    script!("enable_notices");

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
