//! See `move_due_plain.lua` and `move_due.lua`.

use std::time::Duration;

use crate::keys::GroupKeys;
use crate::scripts::general::{General, general_script};
use crate::scripts::{Args, Operation, Reply, UnexpectedReply, group_keys, script, unexpected};
use crate::time::{UnixMs, millis};
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
    /// At most 50.
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
        /// The time until the next look; zero if more may be due already.
        pause: Duration,
    },
    /// The topic is paused.
    Paused,
}

impl Operation for MoveDuePlain<'_> {
    type Scope = GroupKeys;
    type Reply = Moved;
    const KEYS: &'static [crate::scripts::KeyOf<GroupKeys>] =
        group_keys!(conf stats waiting retry ready attempts);
    const ARGS: &'static [&'static str] = &["now", "group", "batch", "idle"];
    script!("move_due_plain");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.now);
        args.text(self.group.as_str());
        args.number(self.batch);
        args.number(millis(self.idle));
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        moved(reply)
    }
}

impl General for MoveDue {
    type Reply = Moved;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &["batch", "idle"];
    general_script!("move_due");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.batch);
        args.number(millis(self.idle));
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        moved(reply)
    }
}

fn moved(reply: &mut Reply) -> Result<Moved, UnexpectedReply> {
    match reply.text()?.as_str() {
        "paused" => return Ok(Moved::Paused),
        "moved" => {}
        other => return Err(unexpected("moved", &other)),
    }
    let count = reply.number()?;
    let more = reply.flag()?;
    let now = UnixMs::new(reply.number()?);
    let look = UnixMs::new(reply.number()?);
    let pause = if more {
        Duration::ZERO
    } else {
        look.since(now)
    };
    Ok(Moved::Moved { count, pause })
}
