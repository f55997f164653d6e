//! See `reclaim.lua`.

use std::time::Duration;

use crate::message::EntryId;
use crate::scripts::{Reply, UnexpectedReply, operation, unexpected};
use crate::state::Reclaimed;
use crate::time::{UnixMs, millis};

/// Reclaims deliveries whose lease has expired: at most 50.
pub(crate) struct Reclaim<'a> {
    pub(crate) lease: Duration,
    pub(crate) items: &'a [ReclaimItem],
}

/// One delivery whose lease may have expired.
pub(crate) struct ReclaimItem {
    pub(crate) entry: EntryId,
    pub(crate) delay: Duration,
    pub(crate) max_attempts: u32,
}

operation! {
    "reclaim" + "attempts" on general group + failures: Reclaim<'_>, |call, args, reply|
    args {
        lease: args.number(millis(call.lease)),
        items: for item in call.items {
            args.number(item.entry);
            args.number(millis(item.delay));
            args.number(item.max_attempts);
        },
    }
    reply Vec<Reclaimed> { "reclaimed" => reply.rest(outcome) }
}

fn outcome(reply: &mut Reply) -> Result<Reclaimed, UnexpectedReply> {
    let outcome = reply.text()?;
    let at = UnixMs::new(reply.number()?);
    Ok(match outcome.as_str() {
        "retry" => Reclaimed::Retry { at },
        "garbage" => Reclaimed::Garbage,
        "expired" => Reclaimed::Expired,
        "lost" => Reclaimed::Lost,
        "kept" => Reclaimed::Kept,
        "held" => Reclaimed::Held,
        other => return Err(unexpected("an outcome", &other)),
    })
}
