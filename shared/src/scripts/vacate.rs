//! See `vacate.lua`.

use super::general::{General, general_script};
use super::{Args, KeyOf, Reply, UnexpectedReply, expect, keys};
use crate::keys::ShardKeys;
use crate::topic::Shard;

/// Removes the keys of a shard that has handed everything over.
pub(crate) struct Vacate {
    /// What a topic's first shard keeps: the shard to ask next.
    pub(crate) next: Option<Shard>,
}

impl General for Vacate {
    /// Whether it is gone.
    type Reply = bool;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &["next"];
    const MORE: &'static [KeyOf<ShardKeys>] = keys!(leaving);
    general_script!("vacate");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        match self.next {
            Some(shard) => args.number(shard),
            None => args.text(""),
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "vacated")?;
        reply.flag()
    }
}
