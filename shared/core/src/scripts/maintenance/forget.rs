//! See `forget.lua`.

use std::time::Duration;

use crate::keys::ShardKeys;
use crate::scripts::{Args, KeyOf, Operation, Reply, UnexpectedReply, expect, keys, script};
use crate::time::millis;

/// Drops old tombstones of a shard.
pub(crate) struct Forget {
    pub(crate) now: u64,
    pub(crate) dedup: Duration,
    /// At most 500.
    pub(crate) batch: u16,
}

/// Tombstones that one call dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// The number dropped.
    pub dropped: u64,
    /// The number of others that are older than the dedup window.
    pub left: u64,
}

impl Operation for Forget {
    type Scope = ShardKeys;
    type Reply = Forgotten;
    const KEYS: &'static [KeyOf<ShardKeys>] = keys!(stats tomb into);
    const ARGS: &'static [&'static str] = &["now", "dedup", "batch"];
    script!("forget");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.now);
        args.number(millis(self.dedup));
        args.number(self.batch);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "forgotten")?;
        Ok(Forgotten {
            dropped: reply.number()?,
            left: reply.number()?,
        })
    }
}
