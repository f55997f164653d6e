//! See `reclaim.lua`.

use std::time::Duration;

use crate::message::EntryId;
use crate::scripts::general::{General, general_script};
use crate::scripts::{Args, Reply, UnexpectedReply, expect, unexpected};
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

impl General for Reclaim<'_> {
    type Reply = Vec<Reclaimed>;
    const OF_A_GROUP: bool = true;
    const ARGS: &'static [&'static str] = &["lease", "items"];
    general_script!("reclaim");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(millis(self.lease));
        for item in self.items {
            args.number(item.entry);
            args.number(millis(item.delay));
            args.number(item.max_attempts);
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "reclaimed")?;
        let mut reclaimed = Vec::with_capacity(self.items.len());
        while !reply.is_empty() {
            let outcome = reply.text()?;
            let at = UnixMs::new(reply.number()?);
            reclaimed.push(match outcome.as_str() {
                "retry" => Reclaimed::Retry { at },
                "garbage" => Reclaimed::Garbage,
                "expired" => Reclaimed::Expired,
                "lost" => Reclaimed::Lost,
                "kept" => Reclaimed::Kept,
                other => return Err(unexpected("an outcome", &other)),
            });
        }
        Ok(reclaimed)
    }
}
