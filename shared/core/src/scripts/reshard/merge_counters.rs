//! See `merge_counters.lua`.

use crate::keys::ShardKeys;
use crate::scripts::{Args, Operation, Reply, UnexpectedReply, expect, keys, script};
use crate::topic::Shard;

/// Adds the counters of a retired shard to those of a successor.
pub(crate) struct MergeCounters<'a> {
    pub(crate) from: Shard,
    pub(crate) counters: &'a [(String, i64)],
}

impl Operation for MergeCounters<'_> {
    type Scope = ShardKeys;
    /// True if this call added them.
    type Reply = bool;
    const KEYS: &'static [crate::scripts::KeyOf<ShardKeys>] = keys!(stats);
    const ARGS: &'static [&'static str] = &["from", "counters"];
    script!("merge_counters");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.from);
        for (name, count) in self.counters {
            args.text(name);
            args.number(count);
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "merged")?;
        reply.flag()
    }
}
