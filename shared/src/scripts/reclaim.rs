//! See `reclaim.lua`.

use std::time::Duration;

use super::{Args, Operation, Reply, UnexpectedReply, keys, script, unexpected};
use crate::keys::ShardKeys;
use crate::message::EntryId;
use crate::state::Reclaimed;
use crate::time::{UnixMs, millis};
use crate::topic::Group;

/// Takes back deliveries whose lease is over. At most 100.
pub(crate) struct Reclaim<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
    pub(crate) lease: Duration,
    pub(crate) items: &'a [ReclaimItem],
}

/// One delivery that may be over.
pub(crate) struct ReclaimItem {
    pub(crate) entry: EntryId,
    pub(crate) delay: Duration,
    pub(crate) max_attempts: u32,
}

impl Operation for Reclaim<'_> {
    type Place = ShardKeys;
    type Reply = Vec<Reclaimed>;
    const KEYS: &'static [super::KeyOf<ShardKeys>] =
        keys!(conf stats payload ready retry attempts garbage dead notices wake);
    const ARGS: &'static [&'static str] = &["now", "group", "lease", "items"];
    script!("reclaim");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.now);
        args.text(self.group.as_str());
        args.number(millis(self.lease));
        for item in self.items {
            args.number(item.entry);
            args.number(millis(item.delay));
            args.number(item.max_attempts);
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        let word = reply.text()?;
        if word != "reclaimed" {
            return Err(unexpected("reclaimed", &word));
        }
        let mut reclaimed = Vec::with_capacity(self.items.len());
        while !reply.is_empty() {
            let outcome = reply.text()?;
            let at = UnixMs::new(reply.number()?);
            reclaimed.push(match outcome.as_str() {
                "retry" => Reclaimed::Retry { at },
                "garbage" => Reclaimed::Garbage,
                "lost" => Reclaimed::Lost,
                "kept" => Reclaimed::Kept,
                other => return Err(unexpected("an outcome", &other)),
            });
        }
        Ok(reclaimed)
    }
}
