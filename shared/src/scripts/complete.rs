//! See `complete.lua`.

use std::ops::Range;

use super::{Args, Operation, Reply, UnexpectedReply, expect, keys, script};
use crate::keys::ShardKeys;

/// Lets a shard forget whom it took over from.
pub(crate) struct Complete {
    /// The shards that were given up.
    pub(crate) old: Range<u16>,
}

impl Operation for Complete {
    type Place = ShardKeys;
    /// The epoch.
    type Reply = u64;
    const KEYS: &'static [super::KeyOf<ShardKeys>] = keys!(conf);
    const ARGS: &'static [&'static str] = &["oldest", "youngest"];
    script!("complete");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.old.start);
        args.number(self.old.end - 1);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "complete")?;
        reply.number()
    }
}
