//! See `clean.lua`.

use super::general::{General, general_script};
use super::retire::Retirement;
use super::{Args, Reply, UnexpectedReply, expect, unexpected};
use crate::message::EntryId;

/// Recovers entries of a group that nobody holds.
pub(crate) struct Clean {
    /// Look at entries after this one; from the first if not given.
    pub(crate) after: Option<EntryId>,
    /// At most 200.
    pub(crate) batch: u16,
}

/// What a clean did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cleaned {
    /// Entries whose messages come again.
    pub recovered: u64,
    /// Entries without a message.
    pub lost: u64,
    /// Where to go on; the end of the stream was reached if not given.
    pub last: Option<EntryId>,
    /// How the group is being retired, if it is.
    pub retiring: Option<Retirement>,
}

impl General for Clean {
    type Reply = Cleaned;
    const OF_A_GROUP: bool = true;
    const ARGS: &'static [&'static str] = &["after", "batch"];
    general_script!("clean", "_streams.lua");

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
