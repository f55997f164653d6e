//! See `requeue.lua`.

use super::{Args, Operation, Reply, UnexpectedReply, group_keys, script, unexpected};
use crate::keys::GroupKeys;
use crate::message::MessageId;
use crate::time::UnixMs;
use crate::topic::Group;

/// Delivers messages in garbage again. At most 500, each with the garbage time that was seen.
pub(crate) struct Requeue<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
    pub(crate) items: &'a [(MessageId, UnixMs)],
}

impl Operation for Requeue<'_> {
    type Place = GroupKeys;
    /// How many were requeued.
    type Reply = u64;
    const KEYS: &'static [super::KeyOf<GroupKeys>] =
        group_keys!(stats payload retry garbage dead wake);
    const ARGS: &'static [&'static str] = &["now", "group", "items"];
    script!("requeue");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.now);
        args.text(self.group.as_str());
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
pub(super) fn count(
    reply: &mut Reply,
    done: &'static str,
    others: &[&str],
) -> Result<u64, UnexpectedReply> {
    let word = reply.text()?;
    if word != done {
        return Err(unexpected(done, &word));
    }
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
