//! See `settle.lua`.

use crate::message::{EntryId, MessageId};
use crate::scripts::general::{General, general_script};
use crate::scripts::{Args, Reply, UnexpectedReply, expect, unexpected};
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

impl General for Settle<'_> {
    type Reply = Vec<Settled>;
    const OF_A_GROUP: bool = true;
    const ARGS: &'static [&'static str] = &["items"];
    general_script!("settle");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.reserve(self.items.len() * 6);
        for item in self.items {
            let (kind, when, error) = item.kind.parts();
            args.number(item.entry);
            args.text(item.id.as_str());
            args.text(kind);
            args.number(when.to_arg());
            args.number(item.max_attempts);
            args.text(error);
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "settled")?;
        let mut settled = Vec::with_capacity(self.items.len());
        while !reply.is_empty() {
            let outcome = reply.text()?;
            let at = UnixMs::new(reply.number()?);
            settled.push(match outcome.as_str() {
                "retry" => Settled::Retry { at },
                "deferred" => Settled::Deferred { at },
                "garbage" => Settled::Garbage,
                "expired" => Settled::Expired,
                "lost" => Settled::Lost,
                "stale" => Settled::Stale,
                other => return Err(unexpected("an outcome", &other)),
            });
        }
        Ok(settled)
    }
}
