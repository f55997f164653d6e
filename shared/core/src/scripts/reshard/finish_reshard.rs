//! See `finish_reshard.lua`.

use std::ops::Range;

use crate::keys::ShardKeys;
use crate::scripts::{Args, Operation, Reply, UnexpectedReply, expect, keys, script};

/// Makes a successor forget the retired shards.
pub(crate) struct FinishReshard {
    /// The retired shards.
    pub(crate) old: Range<u16>,
}

impl Operation for FinishReshard {
    type Scope = ShardKeys;
    /// The epoch.
    type Reply = u64;
    const KEYS: &'static [crate::scripts::KeyOf<ShardKeys>] = keys!(conf);
    const ARGS: &'static [&'static str] = &["oldest", "youngest"];
    script!("finish_reshard");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.old.start);
        args.number(self.old.end - 1);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "finished")?;
        reply.number()
    }
}
