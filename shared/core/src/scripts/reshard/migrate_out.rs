//! See `migrate_out.lua`.

use crate::message::MessageId;
use crate::scripts::operation;
use crate::time::UnixMs;

/// Takes messages out of a retiring shard.
pub(crate) struct MigrateOut<'a> {
    /// The batch that has migrated in, 0 for none.
    pub(crate) done: u64,
    /// The ids of that batch that come back, separated by spaces.
    pub(crate) refused: &'a str,
    /// At most 50.
    pub(crate) ids: &'a [MessageId],
}

/// One batch of messages in transit, and how much is left.
#[derive(Debug)]
pub(crate) struct MigratingBatch {
    pub(crate) batch: u64,
    /// The number of arrivals so far.
    pub(crate) arrivals: u64,
    /// The low watermark: nothing due before it will come from the shard; `None` if nothing will.
    pub(crate) watermark: Option<UnixMs>,
    /// The time up to which each group's rate is used up in the shard.
    pub(crate) tats: String,
    /// The number of messages and entries left in the shard.
    pub(crate) left: u64,
    /// The number of entries withdrawn from streams into retry.
    pub(crate) withdrawn: u64,
    pub(crate) bundles: Vec<Bundle>,
}

/// A message with all its copies, as one text.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) id: MessageId,
    /// The ordering key, else the merge key, else nothing.
    pub(crate) key: String,
    pub(crate) text: Vec<u8>,
}

operation! {
    "migrate_out" + "streams" + "bundles" on general shard + in_transit:
    MigrateOut<'_>, |call, args, reply|
    args {
        done: args.number(call.done),
        refused: args.text(call.refused),
        ids: for id in call.ids { args.text(id.as_str()) },
    }
    reply MigratingBatch {
        "migrating" => Ok(MigratingBatch {
            batch: reply.number()?,
            arrivals: reply.number()?,
            watermark: u64::try_from(reply.number::<i64>()?).ok().map(UnixMs::new),
            tats: reply.text()?,
            left: reply.number()?,
            withdrawn: reply.number()?,
            bundles: reply.rest(|reply| Ok(Bundle {
                id: reply.parsed("a message id")?,
                key: reply.text()?,
                text: reply.bytes()?,
            }))?,
        }),
    }
}
