//! See `join.lua`.

use crate::keys::GroupKeys;
use crate::scripts::{Args, Operation, Reply, UnexpectedReply, group_keys, script, unexpected};
use crate::topic::Group;

/// Creates the group of one running consumer, or renews its lease.
pub(crate) struct Join<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
}

/// The outcome of a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// The group exists; `new` says whether this call created it.
    Member { new: bool, epoch: u64 },
    /// The group was silent for too long and is being removed.
    Retiring,
}

impl Operation for Join<'_> {
    type Scope = GroupKeys;
    type Reply = Joined;
    const KEYS: &'static [crate::scripts::KeyOf<GroupKeys>] = group_keys!(conf ready);
    const ARGS: &'static [&'static str] = &["now", "group"];
    script!("join");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.now);
        args.text(self.group.as_str());
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        let new = match reply.text()?.as_str() {
            "joined" => true,
            "heartbeat" => false,
            "retiring" => return Ok(Joined::Retiring),
            other => return Err(unexpected("an outcome", &other)),
        };
        Ok(Joined::Member {
            new,
            epoch: reply.number()?,
        })
    }
}
