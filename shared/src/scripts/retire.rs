//! See `retire.lua`.

use super::general::{General, general_script};
use super::{Args, Reply, UnexpectedReply, unexpected};

/// How a group that gets nothing new goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retirement {
    /// Its consumers finish what it has; then it is removed.
    Drain,
    /// What it has is dropped, and counted; then it is removed.
    Drop,
}

impl Retirement {
    /// Gives the word for it, the same in Lua, HTTP and CLI.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Drop => "drop",
        }
    }

    /// Reads a word, or nothing.
    pub(super) fn read(reply: &mut Reply) -> Result<Option<Self>, UnexpectedReply> {
        match reply.text()?.as_str() {
            "" => Ok(None),
            "drain" => Ok(Some(Self::Drain)),
            "drop" => Ok(Some(Self::Drop)),
            other => Err(unexpected("drain or drop", &other)),
        }
    }
}

/// How a retirement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retired {
    /// It holds now.
    Done,
    /// It held before.
    Same,
}

/// Lets a group get nothing new any more, or lets it go on as before.
pub(crate) struct Retire {
    pub(crate) how: Option<Retirement>,
}

impl General for Retire {
    type Reply = Retired;
    const OF_A_GROUP: bool = true;
    const ARGS: &'static [&'static str] = &["how"];
    general_script!("retire");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.text(self.how.map_or("keep", Retirement::as_str));
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        match reply.text()?.as_str() {
            "done" => Ok(Retired::Done),
            "same" => Ok(Retired::Same),
            other => Err(unexpected("an outcome", &other)),
        }
    }
}
