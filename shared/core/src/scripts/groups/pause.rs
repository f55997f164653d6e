//! See `pause.lua`.

use crate::scripts::operation;

/// Pauses or resumes a topic.
pub(crate) struct Pause {
    pub(crate) paused: bool,
}

/// Pauses or resumes one group of a topic.
pub(crate) struct PauseGroup {
    pub(crate) paused: bool,
}

operation! {
    "pause" on general shard: Pause, |call, args, reply|
    args { group: args.number(0), paused: args.flag(call.paused) }
    /// True if this changed anything.
    reply bool {
        "done" => Ok(true),
        "same" => Ok(false),
    }
}

operation! {
    "pause" on general group: PauseGroup, |call, args, reply|
    args { paused: args.flag(call.paused) }
    /// True if this changed anything.
    reply bool {
        "done" => Ok(true),
        "same" => Ok(false),
    }
}
