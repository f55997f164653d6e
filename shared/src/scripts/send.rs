//! See `send_plain.lua`.

use super::{Args, Operation, Refusal, Reply, UnexpectedReply, group_keys, refusal, script};
use crate::keys::GroupKeys;
use crate::message::NewMessage;
use crate::state::End;
use crate::time::UnixMs;
use crate::topic::Group;

/// Stores messages. At most 500, with distinct ids.
pub(crate) struct Send<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
    pub(crate) messages: &'a [NewMessage],
}

/// What was stored.
#[derive(Debug)]
pub(crate) struct SendReply {
    pub(crate) now: UnixMs,
    /// Whether messages due now went to the stream.
    pub(crate) open: bool,
    /// For each duplicate its index from 0, its due time while it is waiting, and how it ended.
    pub(crate) duplicates: Vec<(usize, Option<UnixMs>, Option<End>)>,
}

impl Operation for Send<'_> {
    type Place = GroupKeys;
    type Reply = Result<SendReply, Refusal>;
    const KEYS: &'static [super::KeyOf<GroupKeys>] =
        group_keys!(conf stats waiting payload ready tomb wake);
    const ARGS: &'static [&'static str] = &["now", "group", "items"];
    script!("send_plain");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.reserve(2 + self.messages.len() * 3);
        args.number(self.now);
        args.text(self.group.as_str());
        for message in self.messages {
            let mut record = Vec::new();
            message.record.encode(&mut record);
            args.text(message.id.as_str());
            args.number(message.when.to_arg());
            args.bytes(record);
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        if let Some(refusal) = refusal(&reply.text()?, "sent")? {
            return Ok(Err(refusal));
        }
        let now = UnixMs::new(reply.number()?);
        let open = reply.flag()?;
        let mut duplicates = Vec::new();
        while !reply.is_empty() {
            let index: usize = reply.number()?;
            let number = reply.number::<i64>()?;
            let due = u64::try_from(number).ok().map(UnixMs::new);
            let end = u64::try_from(-2 - number).ok().map(End::from_code);
            duplicates.push((index - 1, due, end));
        }
        Ok(Ok(SendReply {
            now,
            open,
            duplicates,
        }))
    }
}
