//! See `retire.lua`.

use crate::names::words;
use crate::scripts::{Reply, UnexpectedReply, operation, unexpected};

words!(
    /// The way in which a retiring group is removed.
    Retirement, "retirement", {
        /// Its consumers finish its messages; then it is removed.
        Drain = "drain",
        /// Its messages are dropped and counted; then it is removed.
        Drop = "drop",
    }
);

impl Retirement {
    /// Reads a word; an empty one means none.
    pub(in crate::scripts) fn read(reply: &mut Reply) -> Result<Option<Self>, UnexpectedReply> {
        match reply.text()?.as_str() {
            "" => Ok(None),
            word => match word.parse() {
                Ok(retirement) => Ok(Some(retirement)),
                Err(_) => Err(unexpected("drain or drop", &word)),
            },
        }
    }
}

/// The outcome of a retirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retired {
    /// The state was changed.
    Done,
    /// The group already had that state.
    Same,
}

/// Stops a group from getting new messages, or undoes that (`None`).
pub(crate) struct Retire {
    pub(crate) how: Option<Retirement>,
}

operation! {
    "retire" on general group: Retire, |call, args, reply|
    args { how: args.text(call.how.map_or("keep", Retirement::as_str)) }
    reply Retired {
        "done" => Ok(Retired::Done),
        "same" => Ok(Retired::Same),
    }
}
