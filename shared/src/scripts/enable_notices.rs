//! See `enable_notices.lua`.

use super::{Args, Operation, Refusal, Reply, UnexpectedReply, keys, script, unexpected};
use crate::keys::ShardKeys;
use crate::topic::Group;

/// Lets every message that a group gives up be noted for its hook.
pub(crate) struct EnableNotices<'a> {
    pub(crate) group: &'a Group,
}

impl Operation for EnableNotices<'_> {
    type Place = ShardKeys;
    /// Whether this changed anything.
    type Reply = Result<bool, Refusal>;
    const KEYS: &'static [super::KeyOf<ShardKeys>] = keys!(conf);
    const ARGS: &'static [&'static str] = &["group"];
    script!("enable_notices");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.text(self.group.as_str());
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        match reply.text()?.as_str() {
            "enabled" => Ok(Ok(true)),
            "same" => Ok(Ok(false)),
            "undeclared" => Ok(Err(Refusal::Undeclared)),
            other => Err(unexpected("an outcome", &other)),
        }
    }
}
