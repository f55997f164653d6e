//! The atomic operations: one Lua script each, with a typed call next to it.
//!
//! `<operation>.lua` does the work; `<operation>.rs` names its arguments and parses its reply. An unexpected reply is an
//! error, never a default. Only the broker runs operations.

mod change;
mod doctor;
mod general;
mod groups;
mod hot;
mod maintenance;
mod registry;
mod removal;
mod reshard;
mod schedules;
pub(crate) mod table;

use std::fmt::Display;
use std::str::FromStr;
use std::vec;

use redis::{Cmd, RedisWrite, Value};

use crate::keys::{Key, KeyScope};
use crate::redis::Script;

pub(crate) use change::ack_late::AckLate;
pub(crate) use change::cancel::Cancel;
pub(crate) use change::hide::Hide;
pub(crate) use change::lookup::{CopyReply, Lookup, LookupReply, Stored};
pub(crate) use change::purge::Purge;
pub(crate) use change::requeue::Requeue;
pub(crate) use change::reschedule::Reschedule;
pub(crate) use doctor::examine::{Examine, Seen, Suspect, Tails};
pub(crate) use doctor::recount::Recount;
pub(crate) use doctor::repair::Repair;
pub(crate) use doctor::walk::{Structure, Walk};
pub(crate) use general::{Call, General};
pub(crate) use groups::drop_consumer::DropConsumer;
pub(crate) use groups::enable_garbage_hook::EnableGarbageHook;
pub(crate) use groups::finish_garbage_hook::FinishGarbageHook;
pub(crate) use groups::join::{Join, Joined};
pub(crate) use groups::parked_keys::ParkedKeys;
pub(crate) use groups::pause::{Pause, PauseGroup};
pub(crate) use groups::remove_group::RemoveGroup;
pub(crate) use groups::retire::Retire;
pub(crate) use groups::take_garbage_hooks::{
    TakeGarbageHooks, TakenGarbageHook, TakenGarbageHooks,
};
pub(crate) use groups::take_parked::TakeParked;
pub(crate) use hot::ack::{Ack, AckPlain};
pub(crate) use hot::move_due::{MoveDue, MoveDuePlain};
pub(crate) use hot::send::{SendPlain, SendScript, Tombstones};
pub(crate) use hot::settle::Settle;
pub(crate) use maintenance::clean::Clean;
pub(crate) use maintenance::forget::{Before, Forget};
pub(crate) use maintenance::heads::Heads;
pub(crate) use maintenance::note_sample::NoteSample;
pub(crate) use maintenance::observe::Observe;
pub(crate) use maintenance::page::{Page, PageItem, PageOfGarbage, PageOfRetry, PageOfWaiting};
pub(crate) use maintenance::reclaim::{Reclaim, ReclaimItem};
pub(crate) use maintenance::stats::{GroupCounts, Stats, StatsReply};
pub(crate) use registry::change_garbage_job::ChangeGarbageJob;
pub(crate) use registry::change_token::ChangeToken;
pub(crate) use registry::claim_topic::{ClaimTopic, TopicClaim};
pub(crate) use registry::declare::{Declare, DeclareMode, DeclareReply, Declared};
pub(crate) use registry::heartbeat::Heartbeat;
pub(crate) use registry::note_action::NoteAction;
pub(crate) use registry::note_counts::NoteCounts;
pub(crate) use registry::note_total::NoteTotal;
pub(crate) use registry::register::Register;
pub(crate) use registry::start_move_task::StartMoveTask;
pub(crate) use removal::remove_shard::RemoveShard;
pub use removal::remove_topic::Removal;
pub(crate) use removal::remove_topic::{RemovalBegun, RemoveTopic};
pub(crate) use removal::unregister::Unregister;
pub(crate) use reshard::create_shard::CreateShard;
pub(crate) use reshard::drop_keys::DropKeys;
pub(crate) use reshard::finish_reshard::FinishReshard;
pub(crate) use reshard::mark_retired::MarkRetired;
pub(crate) use reshard::merge_counters::MergeCounters;
pub(crate) use reshard::migrate_in::MigrateIn;
pub(crate) use reshard::migrate_out::{Bundle, MigrateOut, MigratingBatch};
pub(crate) use reshard::redirect::Redirect;
pub(crate) use schedules::note_fires::NoteFires;
pub(crate) use schedules::pause_schedule::PauseSchedule;
pub(crate) use schedules::put_schedule::PutSchedule;
pub(crate) use schedules::remove_schedule::RemoveSchedule;
pub(crate) use schedules::take_fires::TakeFires;

pub use change::ack_late::LateAck;
pub use change::hide::Hidden;
pub use doctor::examine::Fault;
pub use groups::parked_keys::{Holder, ParkedKey};
pub use groups::remove_group::Removed;
pub use groups::retire::{Retired, Retirement};
pub use groups::take_parked::TakenParked;
pub use hot::move_due::Moved;
pub use maintenance::clean::Cleaned;
pub use maintenance::forget::Forgotten;
pub use registry::change_garbage_job::JobChange;
pub use registry::change_token::TokenChange;
pub use schedules::note_fires::{FireResult, Fired, FiredOf, MissedTimes, Progress};
pub use schedules::put_schedule::SchedulePut;
pub use schedules::remove_schedule::ScheduleRemoved;
pub use schedules::take_fires::{TakenFire, TakenFires};

/// The name of a key, and the function that finds it among the keys of a scope.
pub(crate) type KeyOf<P> = (
    &'static str,
    for<'k> fn(&'k <P as KeyScope>::Keys<'k>) -> &'k Key,
);

/// One call of a script: its keys, its arguments, its reply.
pub(crate) trait Operation {
    /// The scope whose keys it gets.
    type Scope: KeyScope;
    /// The parsed reply.
    type Reply;
    /// KEYS in order.
    const KEYS: &'static [KeyOf<Self::Scope>];
    /// The names of ARGV in order; the last one may stand for many. A test compares them with the script's header.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "documents the order, checked by a test")
    )]
    const ARGS: &'static [&'static str];

    /// Returns the script.
    fn script() -> &'static Script;
    /// Returns KEYS; their number may depend on the scope's groups.
    fn keys<'k>(keys: &'k <Self::Scope as KeyScope>::Keys<'k>) -> Vec<&'k Key> {
        Self::KEYS.iter().map(|(_, key)| key(keys)).collect()
    }
    /// Appends ARGV.
    fn args(&self, args: &mut Args<'_>);
    /// Parses the reply.
    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply>;
}

/// Lists the keys of an operation by field name.
macro_rules! keys {
    ($($name:ident)*) => {
        &[$((stringify!($name), |keys| &keys.$name)),*]
    };
}
pub(crate) use keys;

/// Lists the keys of an operation on one group: names of group keys, and any other name for a key of the shard.
macro_rules! group_keys {
    ($($name:ident)+) => {
        &[$((stringify!($name), |keys| $crate::scripts::group_key!(keys $name))),+]
    };
}
pub(crate) use group_keys;

macro_rules! group_key {
    ($keys:ident ready) => {
        &$keys.group.ready
    };
    ($keys:ident retry) => {
        &$keys.group.retry
    };
    ($keys:ident attempts) => {
        &$keys.group.attempts
    };
    ($keys:ident backlog) => {
        &$keys.group.backlog
    };
    ($keys:ident parked) => {
        &$keys.group.parked
    };
    ($keys:ident holder) => {
        &$keys.group.holder
    };
    ($keys:ident garbage) => {
        &$keys.group.garbage
    };
    ($keys:ident garbage_info) => {
        &$keys.group.garbage_info
    };
    ($keys:ident garbage_hook) => {
        &$keys.group.garbage_hook
    };
    ($keys:ident $name:ident) => {
        &$keys.shard.$name
    };
}
pub(crate) use group_key;

/// The text of a Lua file. The build for planted bugs reads it at run time, so that one build serves all bugs.
macro_rules! lua {
    ($path:expr) => {{
        #[cfg(not(lisa_mutants))]
        {
            include_str!($path)
        }
        #[cfg(lisa_mutants)]
        {
            $crate::scripts::planted($path)
        }
    }};
}
pub(crate) use lua;

/// The text of a file in `lib`, shared by several scripts.
macro_rules! lib {
    ($name:literal) => {
        $crate::scripts::lua!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/src/scripts/lib/",
            $name,
            ".lua"
        ))
    };
}
pub(crate) use lib;

/// Reads the Lua file of that name from the folder in `LISA_MUTANTS_LUA`.
#[cfg(lisa_mutants)]
fn planted(path: &str) -> &'static str {
    let folder = std::env::var("LISA_MUTANTS_LUA").expect("LISA_MUTANTS_LUA names the scripts");
    let file = std::path::Path::new(path).file_name().expect("a file name");
    let text = std::fs::read_to_string(std::path::Path::new(&folder).join(file));
    Box::leak(text.expect("a script").into_boxed_str())
}

/// Defines `fn script()` for the Lua file of that name next to the caller.
macro_rules! script {
    ($name:literal $(, $lib:literal)*) => {
        fn script() -> &'static $crate::redis::Script {
            static SCRIPT: std::sync::LazyLock<$crate::redis::Script> =
                std::sync::LazyLock::new(|| {
                    $crate::scripts::assemble(
                        $name,
                        &[$crate::scripts::lib!("prelude"), $($crate::scripts::lib!($lib),)*],
                        $crate::scripts::lua!(concat!($name, ".lua")),
                    )
                });
            &SCRIPT
        }
    };
}
pub(crate) use script;

/// Implements an operation for the Lua file of that name next to the caller, with further parts of `lib` after a `+`.
///
/// `on registry`, `on shard`, and `on group` list the keys of an [`Operation`]. `on general shard` and `on general group`
/// stand for a [`General`] one; additional keys of the shard follow after a `+`. `args` names ARGV in order, each with the
/// expression that appends it. `reply` maps the first word of a reply to the value of the rest.
macro_rules! operation {
    ($name:literal $(+ $lib:literal)* on registry($($key:ident)+): $call:ty, $($rest:tt)+) => {
        impl $crate::scripts::Operation for $call {
            type Scope = $crate::keys::RegistryKeys;
            const KEYS: &'static [$crate::scripts::KeyOf<Self::Scope>] =
                $crate::scripts::keys!($($key)+);
            $crate::scripts::script!($name $(, $lib)*);
            $crate::scripts::operation!(@ $($rest)+);
        }
    };
    ($name:literal $(+ $lib:literal)* on shard($($key:ident)+): $call:ty, $($rest:tt)+) => {
        impl $crate::scripts::Operation for $call {
            type Scope = $crate::keys::ShardKeys;
            const KEYS: &'static [$crate::scripts::KeyOf<Self::Scope>] =
                $crate::scripts::keys!($($key)+);
            $crate::scripts::script!($name $(, $lib)*);
            $crate::scripts::operation!(@ $($rest)+);
        }
    };
    ($name:literal on group($($key:ident)+): $call:ty, $($rest:tt)+) => {
        impl $crate::scripts::Operation for $call {
            type Scope = $crate::keys::GroupKeys;
            const KEYS: &'static [$crate::scripts::KeyOf<Self::Scope>] =
                $crate::scripts::group_keys!($($key)+);
            $crate::scripts::script!($name);
            $crate::scripts::operation!(@ $($rest)+);
        }
    };
    ($name:literal $(+ $lib:literal)* on general shard $(+ $key:ident)*: $call:ty, $($rest:tt)+) => {
        impl $crate::scripts::General for $call {
            const OF_A_GROUP: bool = false;
            const MORE: &'static [$crate::scripts::KeyOf<$crate::keys::ShardKeys>] =
                $crate::scripts::keys!($($key)*);
            $crate::scripts::script!($name, "copies", "transitions" $(, $lib)*);
            $crate::scripts::operation!(@ $($rest)+);
        }
    };
    ($name:literal $(+ $lib:literal)* on general group $(+ $key:ident)*: $call:ty, $($rest:tt)+) => {
        impl $crate::scripts::General for $call {
            const OF_A_GROUP: bool = true;
            const MORE: &'static [$crate::scripts::KeyOf<$crate::keys::ShardKeys>] =
                $crate::scripts::keys!($($key)*);
            $crate::scripts::script!($name, "copies", "transitions" $(, $lib)*);
            $crate::scripts::operation!(@ $($rest)+);
        }
    };
    (@ |$call:ident, $args:ident, $reply:ident|
        args { $($arg:ident: $push:expr),* $(,)? }
        $(#[$doc:meta])*
        reply $of:ty { $($($word:literal)|+ => $parse:expr),+ $(,)? }
    ) => {
        $(#[$doc])*
        type Reply = $of;
        const ARGS: &'static [&'static str] = &[$(stringify!($arg)),*];

        fn args(&self, $args: &mut $crate::scripts::Args<'_>) {
            let $call = self;
            $($push;)*
            let _ = ($call, $args);
        }

        fn parse(
            &self,
            $reply: &mut $crate::scripts::Reply,
        ) -> Result<Self::Reply, $crate::scripts::UnexpectedReply> {
            let $call = self;
            let _ = $call;
            match $reply.text()?.as_str() {
                $($($word)|+ => $parse,)+
                other => {
                    let words = [$($($word),+),+];
                    Err($crate::scripts::unexpected(&words.join(" or "), &other))
                }
            }
        }
    };
}
pub(crate) use operation;

/// Inserts the shared parts after a script's first line, which must stay first.
///
/// In a general script, the part after `copies` becomes the body of a function. When a function is created, Lua searches a
/// list of captured variables, once for each variable that it captures from the running function. It does not search for
/// variables from further outside. The search took a fifth of the time of a call without work. Lua lets the body capture at
/// most 60 variables.
fn assemble(name: &'static str, shared: &[&str], text: &'static str) -> Script {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let (outer, inner) = shared.split_at(shared.len().min(2));
    let (outer, inner) = (outer.concat(), inner.concat());
    let whole = if inner.is_empty() {
        format!("{first}\n{outer}{rest}")
    } else {
        format!("{first}\n{outer}return (function()\n{inner}{rest}\nend)()\n")
    };
    // Leaked on purpose: built once for the life of the process.
    Script::new(name, Box::leak(whole.into_boxed_str()))
}

/// The usual length of a number or an entry id as text, for [`Args::reserve`].
pub(crate) const NUMBER: usize = 16;

/// The arguments of a call, appended to its command.
pub(crate) struct Args<'c>(&'c mut Cmd);

impl<'c> Args<'c> {
    pub(crate) fn new(cmd: &'c mut Cmd) -> Self {
        Self(cmd)
    }

    /// Makes room for arguments of these lengths.
    pub(crate) fn reserve(&mut self, lengths: impl IntoIterator<Item = usize>) {
        self.0.reserve_space_for_args(lengths);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(crate) fn number(&mut self, number: impl Display) {
        self.0.write_arg_fmt(number);
    }

    /// Appends a number, or nothing as an empty text.
    pub(crate) fn optional(&mut self, number: Option<impl Display>) {
        match number {
            Some(number) => self.number(number),
            None => self.text(""),
        }
    }

    pub(crate) fn flag(&mut self, flag: bool) {
        self.text(if flag { "1" } else { "0" });
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.0.write_arg(bytes);
    }
}

/// A reply that does not match the script's header, or is not one of the command: a broken invariant.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct UnexpectedReply(String);

impl From<redis::ParsingError> for UnexpectedReply {
    fn from(error: redis::ParsingError) -> Self {
        Self(crate::time::shorten_to(&error.to_string(), 200))
    }
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

    /// Reads a text that may contain any bytes.
    pub(crate) fn lossy(&mut self) -> Result<String, UnexpectedReply> {
        Ok(String::from_utf8_lossy(&self.bytes()?).into_owned())
    }

    pub(crate) fn parsed<T: FromStr>(&mut self, expected: &str) -> Result<T, UnexpectedReply> {
        let text = self.text()?;
        text.parse().map_err(|_| unexpected(expected, &text))
    }

    /// Reads items until the end.
    pub(crate) fn rest<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, UnexpectedReply>,
    ) -> Result<Vec<T>, UnexpectedReply> {
        let mut items = Vec::new();
        while !self.is_empty() {
            items.push(read(self)?);
        }
        Ok(items)
    }

    /// Reads an integer, or a string that contains one, as scores are returned.
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

/// Builds the error for an unexpected reply, with the received value shortened.
pub(crate) fn unexpected(expected: &str, got: &dyn std::fmt::Debug) -> UnexpectedReply {
    let got = crate::time::shorten(&format!("{got:?}"));
    UnexpectedReply(format!("expected {expected}, got {got}"))
}

/// The reply of a script that refused to run and changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The shard is of the other class: plain or general.
    Class,
    /// The topic's groups differ from the caller's: read its settings again.
    Changed,
    /// The topic is not registered, or was wiped.
    Undeclared,
}

impl Refusal {
    /// Returns the refusal if the reply is one.
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

#[cfg(test)]
mod tests;
