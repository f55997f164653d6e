//! See `clean.lua`.

use crate::message::EntryId;
use crate::scripts::groups::retire::Retirement;
use crate::scripts::{operation, unexpected};

/// Recovers entries of a group that no consumer holds.
pub(crate) struct Clean {
    /// The entry after which to start; `None` starts at the first.
    pub(crate) after: Option<EntryId>,
    /// At most 200.
    pub(crate) batch: u16,
}

/// The result of a clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleaned {
    /// Entries whose messages are delivered again.
    pub recovered: u64,
    /// Entries without a message.
    pub lost: u64,
    /// The entry after which to continue; `None` at the end of the stream.
    pub last: Option<EntryId>,
    /// The way in which the group is being retired, if it is.
    pub retiring: Option<Retirement>,
}

operation! {
    "clean" + "streams" on general group: Clean, |call, args, reply|
    args {
        after: match call.after {
            Some(entry) => args.number(entry),
            None => args.text("-"),
        },
        batch: args.number(call.batch),
    }
    reply Cleaned {
        "cleaned" => Ok(Cleaned {
            recovered: reply.number()?,
            lost: reply.number()?,
            last: match reply.text()?.as_str() {
                "-" => None,
                entry => Some(entry.parse().map_err(|_| unexpected("an entry id", &entry))?),
            },
            retiring: Retirement::read(reply)?,
        }),
    }
}
