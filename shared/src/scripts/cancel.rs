//! See `cancel.lua`.

use super::general::{General, general_script};
use super::{Args, Reply, UnexpectedReply, unexpected};
use crate::message::MessageId;
use crate::state::{CancelOutcome, End};

/// Removes a message none of whose copies is on a stream.
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
