//! See `point.lua`.

use super::{Args, Operation, Reply, UnexpectedReply, expect, keys, script};
use crate::keys::ShardKeys;

/// Lets those who look for a topic at its first shard go on to newer ones.
pub(crate) struct Point {
    /// The shard to ask next.
    pub(crate) next: u16,
}

impl Operation for Point {
    type Place = ShardKeys;
    type Reply = ();
    const KEYS: &'static [super::KeyOf<ShardKeys>] = keys!(conf);
    const ARGS: &'static [&'static str] = &["next"];
    script!("point");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.next);
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "pointed")
    }
}
