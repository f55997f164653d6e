//! See `purge.lua`.

use crate::message::MessageId;
use crate::scripts::change::requeue::count;
use crate::scripts::general::{General, general_script};
use crate::scripts::{Args, Reply, UnexpectedReply};
use crate::time::UnixMs;

/// Removes messages in a group's garbage: at most 50, each with the garbage time that the caller saw.
pub(crate) struct Purge<'a> {
    pub(crate) items: &'a [(MessageId, UnixMs)],
}

impl General for Purge<'_> {
    /// The number of messages purged.
    type Reply = u64;
    const OF_A_GROUP: bool = true;
    const ARGS: &'static [&'static str] = &["items"];
    general_script!("purge");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        for (id, time) in self.items {
            args.text(id.as_str());
            args.number(time.get());
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        count(reply, "purged", &["unknown"])
    }
}
