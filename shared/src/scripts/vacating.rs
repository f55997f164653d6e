//! See `vacating.lua`.

use std::ops::Range;

use super::{Args, Operation, Reply, UnexpectedReply, expect, keys, script};
use crate::keys::ShardKeys;

/// Notes which shards were given up and may still have keys, or that these are gone.
pub(crate) struct Vacating {
    pub(crate) shards: Range<u16>,
    pub(crate) gone: bool,
}

impl Operation for Vacating {
    type Place = ShardKeys;
    type Reply = ();
    const KEYS: &'static [super::KeyOf<ShardKeys>] = keys!(conf);
    const ARGS: &'static [&'static str] = &["start", "end", "gone"];
    script!("vacating");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.shards.start);
        args.number(self.shards.end);
        args.number(u8::from(self.gone));
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "vacating")
    }
}
