//! See `retire.lua`.

use crate::scripts::{Reply, UnexpectedReply, operation, unexpected};

/// The way in which a retiring group is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retirement {
    /// Its consumers finish its messages; then it is removed.
    Drain,
    /// Its messages are dropped and counted; then it is removed.
    Drop,
}

impl Retirement {
    /// Returns the word for it, the same in Lua, HTTP and CLI.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Drop => "drop",
        }
    }

    /// Reads a word; an empty one means none.
    pub(in crate::scripts) fn read(reply: &mut Reply) -> Result<Option<Self>, UnexpectedReply> {
        match reply.text()?.as_str() {
            "" => Ok(None),
            "drain" => Ok(Some(Self::Drain)),
            "drop" => Ok(Some(Self::Drop)),
            other => Err(unexpected("drain or drop", &other)),
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
