//! See `cancel.lua`.

use crate::message::MessageId;
use crate::scripts::general::{General, general_script};
use crate::scripts::{Args, Reply, UnexpectedReply, unexpected};
use crate::state::{CancelOutcome, End, Ended};

/// Removes a message that has no copy on a stream.
pub(crate) struct Cancel<'a> {
    pub(crate) id: &'a MessageId,
}

impl General for Cancel<'_> {
    type Reply = CancelOutcome;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &["id"];
    general_script!("cancel");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.text(self.id.as_str());
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        match reply.text()?.as_str() {
            "cancelled" => {
                let is_new = reply.flag()?;
                let record = reply.bytes()?;
                let mut in_garbage = Vec::new();
                while !reply.is_empty() {
                    let name = reply.text()?;
                    let group = name.parse().map_err(|_| unexpected("a group", &name))?;
                    in_garbage.push(group);
                }
                Ok(CancelOutcome::Cancelled {
                    record: is_new.then(|| record.into()),
                    in_garbage,
                })
            }
            "in_flight" => Ok(CancelOutcome::InFlight),
            "garbage" => Ok(CancelOutcome::Garbage),
            "unknown" => Ok(CancelOutcome::Unknown { end: end(reply)? }),
            other => Err(unexpected("an outcome", &other)),
        }
    }
}

/// Reads a tombstone's code (-1 if there is none) and the id that the message was merged into.
pub(in crate::scripts) fn end(reply: &mut Reply) -> Result<Option<Ended>, UnexpectedReply> {
    let code = reply.number::<i64>()?;
    let into = reply.text()?;
    let Ok(code) = u64::try_from(code) else {
        return Ok(None);
    };
    Ok(Some(Ended {
        how: End::from_code(code),
        into: survivor(into)?,
    }))
}

/// Reads the id that a message was merged into, if there is one.
pub(in crate::scripts) fn survivor(text: String) -> Result<Option<MessageId>, UnexpectedReply> {
    if text.is_empty() {
        return Ok(None);
    }
    let id = text.parse();
    id.map(Some).map_err(|_| unexpected("a message id", &text))
}
