//! See `heads.lua`.

use crate::keys::ShardKeys;
use crate::message::{MessageId, RECORD_HEAD};
use crate::scripts::{Args, Operation, Reply, UnexpectedReply, expect, keys, script};

/// The most bytes of records that Redis may read in one call, unless the first record alone is larger.
const MOST_BYTES: usize = 1024 * 1024;

/// Reads the heads of records: at most 200.
pub(crate) struct Heads<'a> {
    pub(crate) ids: &'a [MessageId],
}

impl Operation for Heads<'_> {
    type Scope = ShardKeys;
    /// The heads of the first records, at least one; empty where there is no record.
    type Reply = Vec<Vec<u8>>;
    const KEYS: &'static [crate::scripts::KeyOf<ShardKeys>] = keys!(payload);
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
