//! See `heads.lua`.

use super::{Args, Operation, Reply, UnexpectedReply, expect, keys, script};
use crate::keys::ShardKeys;
use crate::message::{MessageId, RECORD_HEAD};

/// How much of all records Redis may read in one call, one record aside.
const MOST_BYTES: usize = 1024 * 1024;

/// Reads the heads of records. At most 200.
pub(crate) struct Heads<'a> {
    pub(crate) ids: &'a [MessageId],
}

impl Operation for Heads<'_> {
    type Place = ShardKeys;
    /// The heads of the first of them, at least one; empty where there is no record.
    type Reply = Vec<Vec<u8>>;
    const KEYS: &'static [super::KeyOf<ShardKeys>] = keys!(payload);
    const ARGS: &'static [&'static str] = &["length", "most", "ids"];
    script!("heads");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(RECORD_HEAD);
        args.number(MOST_BYTES);
        for id in self.ids {
            args.text(id.as_str());
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "heads")?;
        let mut heads = Vec::with_capacity(self.ids.len());
        while !reply.is_empty() {
            heads.push(reply.bytes()?);
        }
        Ok(heads)
    }
}
