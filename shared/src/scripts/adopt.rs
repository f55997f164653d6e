//! See `adopt.lua`.

use super::{Args, Operation, Reply, UnexpectedReply, expect, keys, script};
use crate::keys::ShardKeys;
use crate::topic::Shard;

/// Adds the counters of a shard that has handed everything over to those of another.
pub(crate) struct Adopt<'a> {
    pub(crate) from: Shard,
    pub(crate) counters: &'a [(String, i64)],
}

impl Operation for Adopt<'_> {
    type Place = ShardKeys;
    /// Whether this call did it.
    type Reply = bool;
    const KEYS: &'static [super::KeyOf<ShardKeys>] = keys!(stats);
    const ARGS: &'static [&'static str] = &["from", "counters"];
    script!("adopt");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.from);
        for (name, count) in self.counters {
            args.text(name);
            args.number(count);
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "adopted")?;
        reply.flag()
    }
}
