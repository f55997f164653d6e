//! See `cancel.lua`.

use crate::message::MessageId;
use crate::scripts::{Reply, UnexpectedReply, operation, unexpected};
use crate::state::{CancelOutcome, End, Ended};

/// Removes a message that has no copy on a stream.
pub(crate) struct Cancel<'a> {
    pub(crate) id: &'a MessageId,
}

operation! {
    "cancel" on general shard: Cancel<'_>, |call, args, reply|
    args { id: args.text(call.id.as_str()) }
    reply CancelOutcome {
        "cancelled" => {
            let is_new = reply.flag()?;
            let record = reply.bytes()?;
            Ok(CancelOutcome::Cancelled {
                record: is_new.then(|| record.into()),
                in_garbage: reply.rest(|reply| reply.parsed("a group"))?,
            })
        },
        "in_flight" => Ok(CancelOutcome::InFlight),
        "garbage" => Ok(CancelOutcome::Garbage),
        "unknown" => Ok(CancelOutcome::Unknown { end: end(reply)? }),
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
