//! See `requeue.lua`.

use crate::message::MessageId;
use crate::scripts::{Args, Reply, UnexpectedReply, operation, unexpected};
use crate::time::UnixMs;

/// Delivers messages in a group's garbage again: at most 50, each with the garbage time that the caller saw.
pub(crate) struct Requeue<'a> {
    pub(crate) items: &'a [(MessageId, UnixMs)],
}

operation! {
    "requeue" on general group: Requeue<'_>, |call, args, reply|
    args { items: push(call.items, args) }
    /// The number of messages requeued.
    reply u64 { "requeued" => count(reply, "requeued", &["lost", "unknown"]) }
}

/// Appends messages in garbage with their times.
pub(in crate::scripts) fn push(items: &[(MessageId, UnixMs)], args: &mut Args<'_>) {
    for (id, time) in items {
        args.text(id.as_str());
        args.number(time.get());
    }
}

/// Counts the items whose outcome is the script's word for success.
pub(in crate::scripts) fn count(
    reply: &mut Reply,
    done: &'static str,
    others: &[&str],
) -> Result<u64, UnexpectedReply> {
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
