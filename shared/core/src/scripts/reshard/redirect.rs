//! See `redirect.lua`.

use crate::keys::ShardKeys;
use crate::scripts::{Args, Operation, Reply, UnexpectedReply, expect, keys, script};

/// Points processes that look for a topic at its first shard to newer shards.
pub(crate) struct Redirect {
    /// The shard to ask next.
    pub(crate) next: u16,
}

impl Operation for Redirect {
    type Scope = ShardKeys;
    type Reply = ();
    const KEYS: &'static [crate::scripts::KeyOf<ShardKeys>] = keys!(conf);
    const ARGS: &'static [&'static str] = &["next"];
    script!("redirect");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.next);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "redirected")
    }
}
