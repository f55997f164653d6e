//! See `drop_keys.lua`.

use crate::keys::ShardKeys;
use crate::scripts::general::{General, general_script};
use crate::scripts::{Args, KeyOf, Reply, UnexpectedReply, expect, keys};
use crate::topic::Shard;

/// Removes the keys of a retired shard after all its messages have migrated.
pub(crate) struct DropKeys {
    /// The shard to ask next, which a topic's first shard keeps.
    pub(crate) next: Option<Shard>,
}

impl General for DropKeys {
    /// True if the shard is gone.
    type Reply = bool;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &["next"];
    const MORE: &'static [KeyOf<ShardKeys>] = keys!(in_transit);
    general_script!("drop_keys");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        match self.next {
            Some(shard) => args.number(shard),
            None => args.text(""),
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "dropped")?;
        reply.flag()
    }
}
