//! See `mark_retired.lua`.

use std::ops::Range;

use crate::keys::ShardKeys;
use crate::scripts::{Args, Operation, Reply, UnexpectedReply, expect, keys, script};

/// Records which retired shards may still have keys, or that their keys are gone.
pub(crate) struct MarkRetired {
    pub(crate) shards: Range<u16>,
    pub(crate) gone: bool,
}

impl Operation for MarkRetired {
    type Scope = ShardKeys;
    type Reply = ();
    const KEYS: &'static [crate::scripts::KeyOf<ShardKeys>] = keys!(conf);
    const ARGS: &'static [&'static str] = &["start", "end", "gone"];
    script!("mark_retired");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.shards.start);
        args.number(self.shards.end);
        args.number(u8::from(self.gone));
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "marked")
    }
}
