//! See `clean.lua`.

use std::time::Duration;

use super::{Args, Operation, Reply, UnexpectedReply, group_keys, script, unexpected};
use crate::keys::GroupKeys;
use crate::message::EntryId;
use crate::time::millis;
use crate::topic::Group;

/// Drops old tombstones and recovers entries that nobody holds.
pub(crate) struct Clean<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
    pub(crate) window: Duration,
    /// Look at entries after this one; from the first if not given.
    pub(crate) after: Option<EntryId>,
    /// At most 500.
    pub(crate) batch: u16,
}

/// What a clean did.
#[derive(Debug)]
pub(crate) struct CleanReply {
    pub(crate) tombstones: u64,
    pub(crate) recovered: u64,
    pub(crate) lost: u64,
    pub(crate) more_tombstones: bool,
    /// Where to go on; the end of the stream was reached if not given.
    pub(crate) last: Option<EntryId>,
}

impl Operation for Clean<'_> {
    type Place = GroupKeys;
    type Reply = CleanReply;
    const KEYS: &'static [super::KeyOf<GroupKeys>] =
        group_keys!(stats payload ready retry attempts tomb wake);
    const ARGS: &'static [&'static str] = &["now", "group", "window", "after", "batch"];
    script!("clean");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.now);
        args.text(self.group.as_str());
        args.number(millis(self.window));
        match self.after {
            Some(entry) => args.number(entry),
            None => args.text("-"),
        }
        args.number(self.batch);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        let word = reply.text()?;
        if word != "cleaned" {
            return Err(unexpected("cleaned", &word));
        }
        Ok(CleanReply {
            tombstones: reply.number()?,
            recovered: reply.number()?,
            lost: reply.number()?,
            more_tombstones: reply.flag()?,
            last: match reply.text()?.as_str() {
                "-" => None,
                entry => Some(
                    entry
                        .parse()
                        .map_err(|_| unexpected("an entry id", &entry))?,
                ),
            },
        })
    }
}
