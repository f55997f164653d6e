//! See `move_due_plain.lua` and `move_due.lua`.

use std::time::Duration;

use crate::scripts::{Reply, UnexpectedReply, operation};
use crate::time::millis;
use crate::topic::Group;

/// Puts due messages of a plain topic on the stream.
pub(crate) struct MoveDuePlain<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
    /// At most 200.
    pub(crate) batch: u16,
    /// The time until the caller looks again if nothing becomes due before.
    pub(crate) idle: Duration,
}

/// Moves due messages to the groups.
pub(crate) struct MoveDue {
    /// At most 100.
    pub(crate) batch: u16,
    /// The time until the caller looks again if nothing becomes due before.
    pub(crate) idle: Duration,
}

/// The result of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Messages became ready, or went to a group that holds them back.
    Moved {
        /// The number of copies, one for each message and group.
        count: u64,
        /// The time until the next look, precise to 1 µs on Redis's clock; zero if more may be due already.
        pause: Duration,
    },
    /// The topic is paused.
    Paused,
}

operation! {
    "move_due_plain" on group(conf stats waiting retry ready attempts):
    MoveDuePlain<'_>, |call, args, reply|
    args {
        now: args.number(call.now),
        group: args.text(call.group.as_str()),
        batch: args.number(call.batch),
        idle: args.number(millis(call.idle)),
    }
    reply Moved { "moved" => moved(reply), "paused" => Ok(Moved::Paused) }
}

operation! {
    "move_due" on general shard: MoveDue, |call, args, reply|
    args { batch: args.number(call.batch), idle: args.number(millis(call.idle)) }
    reply Moved { "moved" => moved(reply), "paused" => Ok(Moved::Paused) }
}

fn moved(reply: &mut Reply) -> Result<Moved, UnexpectedReply> {
    let count = reply.number()?;
    let pause = Duration::from_micros(reply.number()?);
    Ok(Moved::Moved { count, pause })
}
