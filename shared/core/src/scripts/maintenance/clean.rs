//! See `clean.lua`.

use crate::message::EntryId;
use crate::scripts::general::{General, general_script};
use crate::scripts::groups::retire::Retirement;
use crate::scripts::{Args, Reply, UnexpectedReply, expect, unexpected};

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

impl General for Clean {
    type Reply = Cleaned;
    const OF_A_GROUP: bool = true;
    const ARGS: &'static [&'static str] = &["after", "batch"];
    general_script!("clean", "streams");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        match self.after {
            Some(entry) => args.number(entry),
            None => args.text("-"),
        }
        args.number(self.batch);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "cleaned")?;
        Ok(Cleaned {
            recovered: reply.number()?,
            lost: reply.number()?,
            last: match reply.text()?.as_str() {
                "-" => None,
                entry => Some(
                    entry
                        .parse()
                        .map_err(|_| unexpected("an entry id", &entry))?,
                ),
            },
            retiring: Retirement::read(reply)?,
        })
    }
}
