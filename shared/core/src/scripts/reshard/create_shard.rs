//! See `create_shard.lua`.

use crate::keys::ShardKeys;
use crate::scripts::{Args, Operation, Reply, UnexpectedReply, expect, keys, script};
use crate::topic::Shard;

/// Prepares a new shard as a successor of the retiring shards.
pub(crate) struct CreateShard<'a> {
    /// The first retiring shard; `None` sets only the flags.
    pub(crate) previous: Option<Shard>,
    /// The first epoch of the topic with the new shards.
    pub(crate) epoch: u64,
    /// More than the arrivals of any retiring shard.
    pub(crate) arrivals: u64,
    /// Fields of `conf` and their values.
    pub(crate) flags: &'a [(String, String)],
}

impl Operation for CreateShard<'_> {
    type Scope = ShardKeys;
    type Reply = ();
    const KEYS: &'static [crate::scripts::KeyOf<ShardKeys>] = keys!(conf stats);
    const ARGS: &'static [&'static str] = &["previous", "epoch", "arrivals", "flags"];
    script!("create_shard");

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
        expect(reply, "created")
    }
}
