//! See `requeue.lua`.

use crate::message::MessageId;
use crate::scripts::general::{General, general_script};
use crate::scripts::{Args, Reply, UnexpectedReply, expect, unexpected};
use crate::time::UnixMs;

/// Delivers messages in a group's garbage again: at most 50, each with the garbage time that the caller saw.
pub(crate) struct Requeue<'a> {
    pub(crate) items: &'a [(MessageId, UnixMs)],
}

impl General for Requeue<'_> {
    /// The number of messages requeued.
    type Reply = u64;
    const OF_A_GROUP: bool = true;
    const ARGS: &'static [&'static str] = &["items"];
    general_script!("requeue");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        for (id, time) in self.items {
            args.text(id.as_str());
            args.number(time.get());
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        count(reply, "requeued", &["lost", "unknown"])
    }
}

/// Counts the items whose outcome is the script's word for success.
pub(in crate::scripts) fn count(
    reply: &mut Reply,
    done: &'static str,
    others: &[&str],
) -> Result<u64, UnexpectedReply> {
    expect(reply, done)?;
    let mut count = 0;
    while !reply.is_empty() {
        let outcome = reply.text()?;
        if outcome == done {
            count += 1;
        } else if !others.contains(&outcome.as_str()) {
            return Err(unexpected("an outcome", &outcome));
        }
    }
    Ok(count)
}
