//! See `settle.lua`.

use crate::scripts::{NUMBER, Reply, UnexpectedReply, operation, unexpected};
use crate::state::{Settled, Settlement, Verdict};
use crate::time::{UnixMs, When};

/// Ends deliveries that were not acknowledged: at most 50, none with [`Verdict::Ack`].
pub(crate) struct Settle<'a> {
    pub(crate) items: &'a [&'a Settlement],
}

/// Returns the word for the way to end a delivery, the time of its next attempt, and its error.
fn parts(verdict: &Verdict) -> (&'static str, When, &str) {
    match verdict {
        Verdict::Retry { when, error } => ("retry", *when, error),
        Verdict::Defer { when } => ("defer", *when, ""),
        Verdict::HandBack { when } => ("hand_back", *when, ""),
        Verdict::Reject { error } => ("reject", When::NOW, error),
        Verdict::Expired => ("expired", When::NOW, ""),
        Verdict::Ack | Verdict::Lost => ("lost", When::NOW, ""),
    }
}

operation! {
    "settle" + "attempts" on general group + failures: Settle<'_>, |call, args, reply|
    args {
        items: {
            args.reserve(call.items.iter().flat_map(|_| [NUMBER; 6]));
            for item in call.items {
                let (kind, when, error) = parts(&item.verdict);
                args.number(item.entry);
                args.text(item.id.as_str());
                args.text(kind);
                args.number(when.to_arg());
                args.number(item.max_attempts);
                args.text(error);
            }
        },
    }
    reply Vec<Settled> { "settled" => reply.rest(outcome) }
}

fn outcome(reply: &mut Reply) -> Result<Settled, UnexpectedReply> {
    let outcome = reply.text()?;
    let at = UnixMs::new(reply.number()?);
    Ok(match outcome.as_str() {
        "retry" => Settled::Retry { at },
        "deferred" => Settled::Deferred { at },
        "garbage" => Settled::Garbage,
        "expired" => Settled::Expired,
        "lost" => Settled::Lost,
        "stale" => Settled::Stale,
        other => return Err(unexpected("an outcome", &other)),
    })
}
