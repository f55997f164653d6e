//! See `heads.lua`.

use crate::message::{MessageId, RECORD_HEAD};
use crate::scripts::{Reply, operation};

/// The most bytes of records that Redis may read in one call, unless the first record alone is larger.
const MOST_BYTES: usize = 1024 * 1024;

/// Reads the heads of records: at most 200.
pub(crate) struct Heads<'a> {
    pub(crate) ids: &'a [MessageId],
}

operation! {
    "heads" on shard(payload): Heads<'_>, |call, args, reply|
    args {
        length: args.number(RECORD_HEAD),
        most: args.number(MOST_BYTES),
        ids: for id in call.ids { args.text(id.as_str()) },
    }
    /// The heads of the first records, at least one; empty where there is no record.
    reply Vec<Vec<u8>> { "heads" => reply.rest(Reply::bytes) }
}
