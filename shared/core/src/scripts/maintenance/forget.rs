//! See `forget.lua`.

use std::time::Duration;

use crate::scripts::operation;
use crate::time::millis;

/// Drops old tombstones of a shard.
pub(crate) struct Forget {
    pub(crate) now: u64,
    pub(crate) dedup: Duration,
    /// At most 500.
    pub(crate) batch: u16,
}

/// Tombstones that one call dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// The number dropped.
    pub dropped: u64,
    /// The number of others that are older than the dedup window.
    pub left: u64,
}

operation! {
    "forget" on shard(stats tomb into): Forget, |call, args, reply|
    args {
        now: args.number(call.now),
        dedup: args.number(millis(call.dedup)),
        batch: args.number(call.batch),
    }
    reply Forgotten {
        "forgotten" => Ok(Forgotten { dropped: reply.number()?, left: reply.number()? }),
    }
}
