//! See `settle.lua`.

use crate::message::{EntryId, MessageId};
use crate::scripts::{NUMBER, Reply, UnexpectedReply, operation, unexpected};
use crate::state::Settled;
use crate::time::{UnixMs, When};

/// Ends deliveries that were not acknowledged: at most 50.
pub(crate) struct Settle<'a> {
    pub(crate) items: &'a [SettleItem<'a>],
}

/// One delivery to end.
pub(crate) struct SettleItem<'a> {
    pub(crate) entry: EntryId,
    pub(crate) id: &'a MessageId,
    pub(crate) kind: SettleKind<'a>,
    pub(crate) max_attempts: u32,
}

/// The way to end a delivery.
#[derive(Clone, Copy)]
pub(crate) enum SettleKind<'a> {
    Retry { when: When, error: &'a str },
    Defer { when: When },
    HandBack { when: When },
    Reject { error: &'a str },
    Expired,
    Lost,
}

impl<'a> SettleKind<'a> {
    fn parts(self) -> (&'static str, When, &'a str) {
        match self {
            Self::Retry { when, error } => ("retry", when, error),
            Self::Defer { when } => ("defer", when, ""),
            Self::HandBack { when } => ("hand_back", when, ""),
            Self::Reject { error } => ("reject", When::NOW, error),
            Self::Expired => ("expired", When::NOW, ""),
            Self::Lost => ("lost", When::NOW, ""),
        }
    }
}

operation! {
    "settle" + "attempts" on general group + failures: Settle<'_>, |call, args, reply|
    args {
        items: {
            args.reserve(call.items.iter().flat_map(|_| [NUMBER; 6]));
            for item in call.items {
                let (kind, when, error) = item.kind.parts();
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
