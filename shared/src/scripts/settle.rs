//! See `settle.lua`.

use super::{Args, Operation, Reply, UnexpectedReply, keys, script, unexpected};
use crate::keys::ShardKeys;
use crate::message::{EntryId, MessageId};
use crate::state::Settled;
use crate::time::{UnixMs, When};
use crate::topic::Group;

/// Ends deliveries that were not acknowledged. At most 100.
pub(crate) struct Settle<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
    pub(crate) items: &'a [SettleItem<'a>],
}

/// One delivery to end.
pub(crate) struct SettleItem<'a> {
    pub(crate) entry: EntryId,
    pub(crate) id: &'a MessageId,
    pub(crate) kind: SettleKind<'a>,
    pub(crate) max_attempts: u32,
}

/// How to end it.
#[derive(Clone, Copy)]
pub(crate) enum SettleKind<'a> {
    Retry { when: When, error: &'a str },
    Defer { when: When },
    Reject { error: &'a str },
    Expired,
    Lost,
}

impl<'a> SettleKind<'a> {
    fn parts(self) -> (&'static str, When, &'a str) {
        match self {
            Self::Retry { when, error } => ("retry", when, error),
            Self::Defer { when } => ("defer", when, ""),
            Self::Reject { error } => ("reject", When::NOW, error),
            Self::Expired => ("expired", When::NOW, ""),
            Self::Lost => ("lost", When::NOW, ""),
        }
    }
}

impl Operation for Settle<'_> {
    type Place = ShardKeys;
    type Reply = Vec<Settled>;
    const KEYS: &'static [super::KeyOf<ShardKeys>] =
        keys!(conf stats payload ready retry attempts garbage dead notices wake);
    const ARGS: &'static [&'static str] = &["now", "group", "items"];
    script!("settle");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.reserve(2 + self.items.len() * 6);
        args.number(self.now);
        args.text(self.group.as_str());
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
        let word = reply.text()?;
        if word != "settled" {
            return Err(unexpected("settled", &word));
        }
        let mut settled = Vec::with_capacity(self.items.len());
        while !reply.is_empty() {
            let outcome = reply.text()?;
            let at = UnixMs::new(reply.number()?);
            settled.push(match outcome.as_str() {
                "retry" => Settled::Retry { at },
                "deferred" => Settled::Deferred { at },
                "garbage" => Settled::Garbage,
                "lost" => Settled::Lost,
                "stale" => Settled::Stale,
                other => return Err(unexpected("an outcome", &other)),
            });
        }
        Ok(settled)
    }
}
