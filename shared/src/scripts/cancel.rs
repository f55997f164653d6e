//! See `cancel.lua`.

use super::{Args, Operation, Reply, UnexpectedReply, group_keys, script, unexpected};
use crate::keys::GroupKeys;
use crate::message::MessageId;
use crate::state::{CancelOutcome, End};
use crate::topic::Group;

/// Removes a message that is not on the stream.
pub(crate) struct Cancel<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
    pub(crate) id: &'a MessageId,
}

impl Operation for Cancel<'_> {
    type Place = GroupKeys;
    type Reply = CancelOutcome;
    const KEYS: &'static [super::KeyOf<GroupKeys>] =
        group_keys!(stats waiting payload retry attempts garbage tomb);
    const ARGS: &'static [&'static str] = &["now", "group", "id"];
    script!("cancel");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.now);
        args.text(self.group.as_str());
        args.text(self.id.as_str());
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        match reply.text()?.as_str() {
            "cancelled" if reply.is_empty() => Ok(CancelOutcome::Cancelled { record: None }),
            "cancelled" => Ok(CancelOutcome::Cancelled {
                record: Some(reply.bytes()?.into()),
            }),
            "in_flight" => Ok(CancelOutcome::InFlight),
            "garbage" => Ok(CancelOutcome::Garbage),
            "unknown" => Ok(CancelOutcome::Unknown { end: end(reply)? }),
            other => Err(unexpected("an outcome", &other)),
        }
    }
}

/// Reads a tombstone's code, -1 if there is none.
pub(super) fn end(reply: &mut Reply) -> Result<Option<End>, UnexpectedReply> {
    let code = reply.number::<i64>()?;
    Ok(u64::try_from(code).ok().map(End::from_code))
}
