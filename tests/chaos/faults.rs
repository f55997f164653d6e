//! The kinds of faults, and the order in which they come.

mod network;
mod operator;
mod process;
mod removal;
mod server;

use crate::record::now;
use crate::settings::Role;
use crate::witness::STALL;
use crate::world::World;
use fastrand::Rng;
use futures_util::future::BoxFuture;
use lisa_tests::Mode;
use std::time::Duration;

/// The target and extent of a fault.
pub(crate) struct Hit {
    /// The process, or all.
    pub(crate) process: String,
    /// A readable description.
    pub(crate) detail: String,
}

type Inject = for<'a> fn(&'a World, Rng) -> BoxFuture<'a, Result<Hit, String>>;

/// A kind of fault.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// Two simultaneous faults are of different sides.
    pub(crate) side: Side,
    /// True if it explains that a message whose work was done comes again.
    pub(crate) repeats: bool,
    inject: Inject,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Process,
    Network,
    Server,
    Operator,
}

/// The disturbance of a poison message, which nobody injects.
pub(crate) const CRASH: &str = "crash";

macro_rules! kinds {
    ($($name:literal $side:ident $repeats:literal $what:literal $inject:expr;)*) => {
        &[$(Kind {
            name: $name,
            what: $what,
            side: Side::$side,
            repeats: $repeats,
            inject: |world, dice| Box::pin($inject(world, dice)),
        }),*]
    };
}

/// All kinds but FLUSHALL, which has its own phase. The column of truth values is [`Kind::repeats`]: a duplicate that
/// only a `false` could explain is not explained.
pub(crate) const KINDS: &[Kind] = kinds![
    "kill-producer" Process false "a producer is killed" |w, d| process::kill(w, d, Role::Producer);
    "kill-manager" Process false "a manager is killed" |w, d| process::kill(w, d, Role::Manager);
    "kill-consumer" Process true "a consumer is killed" |w, d| process::kill(w, d, Role::Consumer);
    "stop-producer" Process false "a producer stands still" |w, d| process::stop(w, d, Role::Producer);
    "stop-manager" Process false "a manager stands still" |w, d| process::stop(w, d, Role::Manager);
    "stop-consumer" Process true "a consumer stands still, now and then for longer than a lease" |w, d| process::stop(w, d, Role::Consumer);
    "term-producer" Process false "a producer is ended by SIGTERM and started again" |w, d| process::terminate(w, d, Role::Producer);
    "term-manager" Process false "a manager is ended by SIGTERM and started again" |w, d| process::terminate(w, d, Role::Manager);
    "term-consumer" Process false "a consumer is ended by SIGTERM and started again" |w, d| process::terminate(w, d, Role::Consumer);
    "third-manager" Process false "another manager comes, and is killed" process::third_manager;
    "skew-clock" Process false "a process is started again with a clock that is hours off" process::skew;
    "lose-log" Process false "a process runs with a log that cannot be written" process::lose_log;
    "latency" Network false "each packet between processes and Redis takes 10 to 100 ms" |w, d| network::spoil(w, d, network::latency);
    "slow-connection" Network true "little passes between processes and Redis, 100 to 400 kB/s" |w, d| network::spoil(w, d, network::slow_link);
    "black-hole" Network true "packets vanish in both directions, and connections stay" |w, d| network::spoil(w, d, |_| Mode::BlackHole);
    "half-open" Network true "requests arrive, replies vanish" |w, d| network::spoil(w, d, |_| Mode::SwallowReplies);
    "cut-requests" Network true "connections break in the midst of a request" |w, d| network::spoil(w, d, network::cut_requests);
    "cut-replies" Network true "connections break in the midst of a reply" |w, d| network::spoil(w, d, network::cut_replies);
    "refuse" Network true "connections are reset, and none is accepted" |w, d| network::spoil(w, d, |_| Mode::Refuse);
    "redis-kill" Server true "Redis is killed and started again" server::kill;
    "redis-restart" Server true "Redis is ended by SIGTERM and started again" server::restart;
    "redis-stop" Server true "Redis stands still" server::stop;
    "client-kill" Server true "Redis closes all connections" server::client_kill;
    "client-pause" Server true "Redis answers nobody" server::client_pause;
    "script-flush" Server false "Redis forgets all scripts" server::script_flush;
    "memory-full" Server false "Redis is at its memory limit" server::memory_full;
    "disk-full" Server true "the disk is full: Redis ends itself, and is started again" server::disk_full;
    "delete-stream" Server true "a stream is deleted; the doctor repairs it" server::delete_stream;
    "delete-group" Server true "a group of a stream is destroyed; the doctor repairs it" server::delete_group;
    "reshard" Operator false "a topic gets another number of shards, 1 to 8" operator::reshard;
    "reshard-cut" Operator false "managers are killed, frozen or cut off while they hand messages over to other shards" operator::cut;
    "remove-topic" Operator false "a topic that is in use is removed while managers are killed, frozen or cut off" removal::remove;
    "requeue" Operator false "all garbage of one group of a topic is requeued" operator::requeue;
    "delete-consumer" Server true "what a consumer holds is dropped from its group; the doctor repairs it" server::delete_consumer;
];

pub(crate) use removal::is_record;

/// The name of the phase at the end.
pub(crate) const FLUSHALL: &str = "flushall";

/// Damage that the doctor repairs: it makes a message due at once if its due time is no longer stored.
const REPAIRED: [&str; 3] = ["delete-stream", "delete-group", "delete-consumer"];

/// Returns whether the doctor repairs a disturbance of this kind.
pub(crate) fn is_repaired(name: &str) -> bool {
    REPAIRED.contains(&name)
}

/// Returns whether a disturbance of this kind explains a duplicate.
pub(crate) fn repeats(name: &str) -> bool {
    [CRASH, STALL].contains(&name) || KINDS.iter().any(|kind| kind.name == name && kind.repeats)
}

impl Kind {
    /// Returns the reason why it cannot be injected here, if there is one.
    pub(crate) fn impossible(&self, world: &World) -> Option<String> {
        match self.name {
            "disk-full" => world.disk.as_ref().err().cloned(),
            "skew-clock" => world.faketime.as_ref().err().cloned(),
            _ => None,
        }
    }

    /// Injects it, undoes it, and records how long it lasted. A failure to do so is a violation.
    pub(crate) async fn inject(&self, world: &World, dice: Rng) {
        let from = now();
        match (self.inject)(world, dice).await {
            Ok(hit) => world.disturbed(from, self.name, &hit.process, &hit.detail),
            Err(why) => world.journal.violation(format!("{}: {why}", self.name)),
        }
    }
}

/// Faults of operators are drawn this many times as often as others, since they take effect long after they begin.
const OPERATED: usize = 3;

/// A deck with each kind once, those of operators [`OPERATED`] times, shuffled again when it is used up.
pub(crate) struct Deck {
    kinds: Vec<&'static Kind>,
    left: Vec<&'static Kind>,
    dice: Rng,
}

impl Deck {
    /// A deck with these kinds.
    pub(crate) fn new(kinds: Vec<&'static Kind>, dice: Rng) -> Self {
        let times = |kind: &Kind| match kind.side {
            Side::Operator => OPERATED,
            _ => 1,
        };
        let kinds = kinds.into_iter();
        let kinds = kinds.flat_map(|kind| std::iter::repeat_n(kind, times(kind)));
        Self {
            kinds: kinds.collect(),
            left: Vec::new(),
            dice,
        }
    }

    /// The next fault; sometimes two at once.
    pub(crate) fn draw(&mut self) -> Vec<(&'static Kind, Rng)> {
        if self.left.is_empty() {
            self.left.clone_from(&self.kinds);
            self.dice.shuffle(&mut self.left);
        }
        let mut drawn: Vec<_> = self.left.pop().into_iter().collect();
        if let [first] = drawn[..]
            && self.dice.u32(0..4) == 0
            && let Some(at) = self.left.iter().rposition(|kind| kind.side != first.side)
        {
            drawn.push(self.left.remove(at));
        }
        let with_dice = |kind| (kind, self.dice.fork());
        drawn.into_iter().map(with_dice).collect()
    }
}

/// The pause between two, in ms.
fn between(dice: &mut Rng, least: u64, most: u64) -> Duration {
    Duration::from_millis(dice.u64(least..=most))
}
