//! See `purge.lua`.

use super::requeue::count;
use super::{Args, Operation, Reply, UnexpectedReply, group_keys, script};
use crate::keys::GroupKeys;
use crate::message::MessageId;
use crate::time::UnixMs;
use crate::topic::Group;

/// Removes messages in garbage. At most 500, each with the garbage time that was seen.
pub(crate) struct Purge<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
    pub(crate) items: &'a [(MessageId, UnixMs)],
}

impl Operation for Purge<'_> {
    type Place = GroupKeys;
    /// How many were purged.
    type Reply = u64;
    const KEYS: &'static [super::KeyOf<GroupKeys>] = group_keys!(stats payload garbage dead tomb);
    const ARGS: &'static [&'static str] = &["now", "group", "items"];
    script!("purge");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.now);
        args.text(self.group.as_str());
        for (id, time) in self.items {
            args.text(id.as_str());
            args.number(time.get());
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        count(reply, "purged", &["unknown"])
    }
}
