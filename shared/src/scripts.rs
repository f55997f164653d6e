//! The atomic operations: one Lua script each, with a typed call beside it.
//!
//! `<operation>.lua` does the work, `<operation>.rs` names its arguments and reads its reply. An
//! unexpected reply is an error, never a default. Only the broker runs operations.

mod ack;
mod adopt;
mod beat;
mod cancel;
mod clean;
mod complete;
mod declare;
mod drop_consumer;
mod enable_notices;
mod examine;
mod finish_notice;
mod forget;
mod general;
mod hand_over;
mod heads;
mod join;
mod lookup;
mod move_due;
mod note_fires;
mod open_shard;
mod pause;
mod point;
mod purge;
mod reclaim;
mod recount;
mod register;
mod remove_group;
mod repair;
mod requeue;
mod reschedule;
mod retire;
mod send;
mod settle;
mod stats;
mod take_in;
mod take_notices;
mod vacate;
mod vacating;
mod walk;

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;
use std::vec;

use redis::Value;

use crate::keys::{Key, Place};
use crate::link::Script;

pub(crate) use ack::{Ack, AckItem, AckPlain};
pub(crate) use adopt::Adopt;
pub(crate) use beat::Beat;
pub(crate) use cancel::Cancel;
pub(crate) use clean::Clean;
pub(crate) use complete::Complete;
pub(crate) use declare::{Declare, DeclareMode, DeclareReply};
pub(crate) use drop_consumer::DropConsumer;
pub(crate) use enable_notices::EnableNotices;
pub(crate) use examine::{Examine, Seen, Suspect, Tails};
pub(crate) use finish_notice::FinishNotice;
pub(crate) use forget::Forget;
pub(crate) use general::{Call, General};
pub(crate) use hand_over::{Bundle, HandOver, Leaving};
pub(crate) use heads::Heads;
pub(crate) use join::{Join, Joined};
pub(crate) use lookup::{Copy, Lookup, LookupReply, Stored};
pub(crate) use move_due::{MoveDue, MoveDuePlain};
pub(crate) use note_fires::NoteFires;
pub(crate) use open_shard::OpenShard;
pub(crate) use pause::{Pause, PauseGroup};
pub(crate) use point::Point;
pub(crate) use purge::Purge;
pub(crate) use reclaim::{Reclaim, ReclaimItem};
pub(crate) use recount::Recount;
pub(crate) use register::Register;
pub(crate) use remove_group::RemoveGroup;
pub(crate) use repair::Repair;
pub(crate) use requeue::Requeue;
pub(crate) use reschedule::Reschedule;
pub(crate) use retire::Retire;
pub(crate) use send::{Send, SendPlain, Tombstones};
pub(crate) use settle::{Settle, SettleItem, SettleKind};
pub(crate) use stats::{GroupCounts, Stats, StatsReply};
pub(crate) use take_in::TakeIn;
pub(crate) use take_notices::{TakeNotices, TakenNotice, TakenNotices};
pub(crate) use vacate::Vacate;
pub(crate) use vacating::Vacating;
pub(crate) use walk::{Structure, Walk};

pub use clean::Cleaned;
pub use examine::Fault;
pub use forget::Forgotten;
pub use move_due::Moved;
pub use note_fires::Fired;
pub use remove_group::Removed;
pub use retire::{Retired, Retirement};

/// How a script's key is found among the keys of a place.
pub(crate) type KeyOf<P> = (
    &'static str,
    for<'k> fn(&'k <P as Place>::Keys<'k>) -> &'k Key,
);

/// One call of a script: its keys, its arguments, its reply.
pub(crate) trait Operation {
    /// Whose keys it gets.
    type Place: Place;
    /// What it answers.
    type Reply;
    /// KEYS in order.
    const KEYS: &'static [KeyOf<Self::Place>];
    /// The names of ARGV in order; the last one may stand for many. Compared with the header by a test.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "documents the order, checked by a test")
    )]
    const ARGS: &'static [&'static str];

    /// The script.
    fn script() -> &'static Script;
    /// Finds KEYS; their number may depend on the place.
    fn keys<'k>(place: &'k <Self::Place as Place>::Keys<'k>) -> Vec<&'k Key> {
        Self::KEYS.iter().map(|(_, key)| key(place)).collect()
    }
    /// Appends ARGV.
    fn args<'a>(&'a self, args: &mut Args<'a>);
    /// Reads the reply.
    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply>;
}

/// Names the keys of an operation, which are fields of its place.
macro_rules! keys {
    ($($name:ident)+) => {
        &[$((stringify!($name), |place| &place.$name)),+]
    };
}
pub(crate) use keys;

/// Names the keys of an operation on one group: the group's, and by any other name the shard's.
macro_rules! group_keys {
    ($($name:ident)+) => {
        &[$((stringify!($name), |place| $crate::scripts::group_key!(place $name))),+]
    };
}
pub(crate) use group_keys;

macro_rules! group_key {
    ($place:ident ready) => {
        &$place.group.ready
    };
    ($place:ident retry) => {
        &$place.group.retry
    };
    ($place:ident attempts) => {
        &$place.group.attempts
    };
    ($place:ident backlog) => {
        &$place.group.backlog
    };
    ($place:ident lane) => {
        &$place.group.lane
    };
    ($place:ident holder) => {
        &$place.group.holder
    };
    ($place:ident garbage) => {
        &$place.group.garbage
    };
    ($place:ident dead) => {
        &$place.group.dead
    };
    ($place:ident notices) => {
        &$place.group.notices
    };
    ($place:ident $name:ident) => {
        &$place.shard.$name
    };
}
pub(crate) use group_key;

/// Gives the text of a Lua file. Where bugs are planted it is read at run time, so that one build does for all of them.
macro_rules! lua {
    ($file:expr) => {{
        #[cfg(not(lisa_mutants))]
        {
            include_str!($file)
        }
        #[cfg(lisa_mutants)]
        {
            $crate::scripts::planted($file)
        }
    }};
}
pub(crate) use lua;

/// Reads a Lua file from the folder in `LISA_MUTANTS_LUA`.
#[cfg(lisa_mutants)]
fn planted(file: &str) -> &'static str {
    let folder = std::env::var("LISA_MUTANTS_LUA").expect("LISA_MUTANTS_LUA names the scripts");
    let text = std::fs::read_to_string(std::path::Path::new(&folder).join(file));
    Box::leak(text.expect("a script").into_boxed_str())
}

/// Defines `fn script()` over the Lua file of that name.
macro_rules! script {
    ($name:literal) => {
        fn script() -> &'static $crate::link::Script {
            static SCRIPT: std::sync::LazyLock<$crate::link::Script> =
                std::sync::LazyLock::new(|| {
                    $crate::scripts::assemble(
                        $name,
                        &[$crate::scripts::lua!("_prelude.lua")],
                        $crate::scripts::lua!(concat!($name, ".lua")),
                    )
                });
            &SCRIPT
        }
    };
}
pub(crate) use script;

/// Puts the preludes behind a script's first line, which must stay the first.
fn assemble(name: &'static str, preludes: &[&str], text: &'static str) -> Script {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let whole = format!("{first}\n{}{rest}", preludes.concat());
    // Built once for the life of the process.
    Script::new(name, Box::leak(whole.into_boxed_str()))
}

/// The arguments of a call, borrowed where possible.
#[derive(Default)]
pub(crate) struct Args<'a>(Vec<Cow<'a, [u8]>>);

impl<'a> Args<'a> {
    pub(crate) fn reserve(&mut self, additional: usize) {
        self.0.reserve(additional);
    }

    pub(crate) fn text(&mut self, text: &'a str) {
        self.0.push(Cow::Borrowed(text.as_bytes()));
    }

    pub(crate) fn number(&mut self, number: impl Display) {
        self.0.push(Cow::Owned(number.to_string().into_bytes()));
    }

    pub(crate) fn flag(&mut self, flag: bool) {
        self.text(if flag { "1" } else { "0" });
    }

    pub(crate) fn bytes(&mut self, bytes: Vec<u8>) {
        self.0.push(Cow::Owned(bytes));
    }

    pub(crate) fn as_slice(&self) -> &[Cow<'a, [u8]>] {
        &self.0
    }
}

/// A reply that is not as the script's header says: a broken invariant.
#[derive(Debug, Clone, thiserror::Error)]
#[error("expected {expected}, got {got}")]
pub struct UnexpectedReply {
    expected: &'static str,
    got: String,
}

/// A flat reply, read from the front.
pub(crate) struct Reply(vec::IntoIter<Value>);

impl Reply {
    pub(crate) fn new(value: Value) -> Result<Self, UnexpectedReply> {
        match value {
            Value::Array(items) => Ok(Self(items.into_iter())),
            other => Err(unexpected("an array", &other)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>, UnexpectedReply> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            Some(Value::SimpleString(text)) => Ok(text.into_bytes()),
            Some(Value::Okay) => Ok(b"OK".to_vec()),
            other => Err(unexpected("a string", &other)),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String, UnexpectedReply> {
        let bytes = self.bytes()?;
        String::from_utf8(bytes).map_err(|error| unexpected("UTF-8", &error))
    }

    /// Reads an integer, or a string that is one, as scores are.
    pub(crate) fn number<T: TryFrom<i64> + FromStr>(&mut self) -> Result<T, UnexpectedReply> {
        match self.0.next() {
            Some(Value::Int(number)) => {
                T::try_from(number).map_err(|_| unexpected("a number in its range", &number))
            }
            Some(Value::BulkString(bytes)) => {
                let text = String::from_utf8_lossy(&bytes);
                text.parse().map_err(|_| unexpected("an integer", &text))
            }
            other => Err(unexpected("an integer", &other)),
        }
    }

    pub(crate) fn flag(&mut self) -> Result<bool, UnexpectedReply> {
        Ok(self.number::<i64>()? != 0)
    }
}

/// Says what was expected and what came, shortened.
pub(crate) fn unexpected(expected: &'static str, got: &dyn std::fmt::Debug) -> UnexpectedReply {
    let got = crate::time::shorten(&format!("{got:?}"));
    UnexpectedReply { expected, got }
}

/// What scripts answer instead of doing their work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The shard is of the other class: plain, or full.
    Class,
    /// The topic has other groups than the caller thinks: read its settings again.
    Changed,
    /// The topic is not registered, or was wiped.
    Undeclared,
}

impl Refusal {
    /// Reads a reply that is a refusal.
    pub(crate) fn read(reply: &Value) -> Option<Self> {
        let Value::Array(items) = reply else {
            return None;
        };
        match items.first()? {
            Value::BulkString(word) => match word.as_slice() {
                b"class" => Some(Self::Class),
                b"changed" => Some(Self::Changed),
                b"undeclared" => Some(Self::Undeclared),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Takes the word that a script answers first when it did its work.
pub(crate) fn expect(reply: &mut Reply, done: &'static str) -> Result<(), UnexpectedReply> {
    let word = reply.text()?;
    if word == done {
        Ok(())
    } else {
        Err(unexpected(done, &word))
    }
}

#[cfg(test)]
mod tests;
