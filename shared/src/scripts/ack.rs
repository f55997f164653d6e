//! See `ack_plain.lua`.

use super::{Args, Operation, Refusal, Reply, UnexpectedReply, group_keys, refusal, script};
use crate::keys::GroupKeys;
use crate::message::{EntryId, MessageId};
use crate::topic::Group;

/// Removes handled messages. At most 500, with distinct entries.
pub(crate) struct Ack<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
    pub(crate) items: &'a [AckItem<'a>],
}

/// One handled delivery.
pub(crate) struct AckItem<'a> {
    pub(crate) entry: EntryId,
    pub(crate) id: &'a MessageId,
    pub(crate) caller_id: bool,
}

impl Operation for Ack<'_> {
    type Place = GroupKeys;
    /// The index from 0 of each item that was stale.
    type Reply = Result<Vec<usize>, Refusal>;
    const KEYS: &'static [super::KeyOf<GroupKeys>] =
        group_keys!(conf stats payload ready attempts tomb);
    const ARGS: &'static [&'static str] = &["now", "group", "items"];
    script!("ack_plain");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.reserve(2 + self.items.len() * 3);
        args.number(self.now);
        args.text(self.group.as_str());
        for item in self.items {
            args.number(item.entry);
            args.text(item.id.as_str());
            args.flag(item.caller_id);
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        if let Some(refusal) = refusal(&reply.text()?, "acked")? {
            return Ok(Err(refusal));
        }
        let mut stale = Vec::new();
        while !reply.is_empty() {
            stale.push(reply.number::<usize>()? - 1);
        }
        Ok(Ok(stale))
    }
}
