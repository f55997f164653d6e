//! See `join.lua`.

use super::{Args, Operation, Reply, UnexpectedReply, group_keys, script, unexpected};
use crate::keys::GroupKeys;
use crate::topic::Group;

/// Makes the group of one running consumer, or renews its lease.
pub(crate) struct Join<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
}

/// How a join ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// The group is there; it is new, or not.
    Member { new: bool, epoch: u64 },
    /// It was silent for too long and is going away.
    Retiring,
}

impl Operation for Join<'_> {
    type Place = GroupKeys;
    type Reply = Joined;
    const KEYS: &'static [super::KeyOf<GroupKeys>] = group_keys!(conf ready);
    const ARGS: &'static [&'static str] = &["now", "group"];
    script!("join");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.now);
        args.text(self.group.as_str());
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        let new = match reply.text()?.as_str() {
            "joined" => true,
            "beat" => false,
            "retiring" => return Ok(Joined::Retiring),
            other => return Err(unexpected("an outcome", &other)),
        };
        Ok(Joined::Member {
            new,
            epoch: reply.number()?,
        })
    }
}
