//! See `ack_plain.lua` and `ack.lua`.

use crate::keys::GroupKeys;
use crate::message::{EntryId, MessageId};
use crate::scripts::general::{General, general_script};
use crate::scripts::{Args, Operation, Reply, UnexpectedReply, expect, group_keys, script};
use crate::topic::Group;

/// Removes handled messages of a plain topic: at most 200, with distinct entries.
pub(crate) struct AckPlain<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
    pub(crate) items: &'a [AckItem<'a>],
}

/// Ends handled deliveries: at most 50, with distinct entries.
pub(crate) struct Ack<'a> {
    pub(crate) items: &'a [AckItem<'a>],
}

/// One handled delivery.
pub(crate) struct AckItem<'a> {
    pub(crate) entry: EntryId,
    pub(crate) id: &'a MessageId,
    pub(crate) caller_id: bool,
}

impl Operation for AckPlain<'_> {
    type Scope = GroupKeys;
    /// The index (from 0) of each item that was stale.
    type Reply = Vec<usize>;
    const KEYS: &'static [crate::scripts::KeyOf<GroupKeys>] =
        group_keys!(conf stats payload ready attempts tomb);
    const ARGS: &'static [&'static str] = &["now", "group", "count", "items"];
    script!("ack_plain");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.reserve(3 + self.items.len() * 2);
        args.number(self.now);
        args.text(self.group.as_str());
        push(self.items, args);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        stale(reply)
    }
}

impl General for Ack<'_> {
    /// The index (from 0) of each item that was stale.
    type Reply = Vec<usize>;
    const OF_A_GROUP: bool = true;
    const ARGS: &'static [&'static str] = &["count", "items"];
    general_script!("ack");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.reserve(1 + self.items.len() * 2);
        push(self.items, args);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        stale(reply)
    }
}

fn push<'a>(items: &'a [AckItem<'a>], args: &mut Args<'a>) {
    args.number(items.len());
    for item in items {
        args.number(item.entry);
    }
    for item in items {
        args.text(item.id.as_str());
    }
    for (index, _) in items.iter().enumerate().filter(|(_, item)| item.caller_id) {
        args.number(index + 1);
    }
}

fn stale(reply: &mut Reply) -> Result<Vec<usize>, UnexpectedReply> {
    expect(reply, "acked")?;
    let mut stale = Vec::new();
    while !reply.is_empty() {
        stale.push(reply.number::<usize>()? - 1);
    }
    Ok(stale)
}
