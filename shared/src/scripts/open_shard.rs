//! See `open_shard.lua`.

use super::{Args, Operation, Reply, UnexpectedReply, expect, keys, script};
use crate::keys::ShardKeys;
use crate::topic::Shard;

/// Prepares a new shard to take over from others.
pub(crate) struct OpenShard<'a> {
    /// The first of the shards that are given up; `None` sets the flags alone.
    pub(crate) previous: Option<Shard>,
    /// The first epoch of the topic with the new shards.
    pub(crate) epoch: u64,
    /// More than arrived at any of the others.
    pub(crate) arrivals: u64,
    /// Fields of `conf` and their values.
    pub(crate) flags: &'a [(String, String)],
}

impl Operation for OpenShard<'_> {
    type Place = ShardKeys;
    type Reply = ();
    const KEYS: &'static [super::KeyOf<ShardKeys>] = keys!(conf stats);
    const ARGS: &'static [&'static str] = &["previous", "epoch", "arrivals", "flags"];
    script!("open_shard");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        match self.previous {
            Some(shard) => args.number(shard),
            None => args.text(""),
        }
        args.number(self.epoch);
        args.number(self.arrivals);
        for (field, value) in self.flags {
            args.text(field);
            args.text(value);
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "opened")
    }
}
