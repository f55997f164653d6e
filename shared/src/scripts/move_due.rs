//! See `move_due_plain.lua`.

use super::{Args, Operation, Refusal, Reply, UnexpectedReply, group_keys, refusal, script};
use crate::keys::GroupKeys;
use crate::time::{UnixMs, millis};
use crate::topic::Group;
use std::time::Duration;

/// Puts due messages on the stream.
pub(crate) struct MoveDue<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
    /// At most 500.
    pub(crate) batch: u16,
    /// When the caller looks again if nothing becomes due before.
    pub(crate) idle: Duration,
}

/// What a move did, and when to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// This many messages became ready.
    Moved {
        /// How many.
        count: u64,
        /// How long until the next look; zero if more may be due already.
        pause: Duration,
    },
    /// The topic is paused.
    Paused,
}

impl Operation for MoveDue<'_> {
    type Place = GroupKeys;
    type Reply = Result<Moved, Refusal>;
    const KEYS: &'static [super::KeyOf<GroupKeys>] =
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
        let word = reply.text()?;
        if word == "paused" {
            return Ok(Ok(Moved::Paused));
        }
        if let Some(refusal) = refusal(&word, "moved")? {
            return Ok(Err(refusal));
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
        Ok(Ok(Moved::Moved { count, pause }))
    }
}
