//! See `forget.lua`.

use std::time::Duration;

use crate::scripts::operation;
use crate::time::{UnixMs, millis};

/// Drops old tombstones of a shard.
pub(crate) struct Forget {
    pub(crate) now: u64,
    pub(crate) before: Before,
    /// At most 500.
    pub(crate) batch: u16,
}

/// The age from which a tombstone is old.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Before {
    /// The dedup window has ended.
    Window(Duration),
    /// It is older than this instant.
    Instant(UnixMs),
}

impl Before {
    /// Returns a window, or the negative of an instant.
    fn to_arg(self) -> i64 {
        let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        match self {
            Self::Window(window) => signed(millis(window)),
            Self::Instant(instant) => -signed(instant.get()),
        }
    }
}

/// Tombstones that one call dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// The number dropped.
    pub dropped: u64,
    /// The number of others that are old.
    pub left: u64,
}

operation! {
    "forget" on shard(stats tomb into): Forget, |call, args, reply|
    args {
        now: args.number(call.now),
        dedup: args.number(call.before.to_arg()),
        batch: args.number(call.batch),
    }
    reply Forgotten {
        "forgotten" => Ok(Forgotten { dropped: reply.number()?, left: reply.number()? }),
    }
}
