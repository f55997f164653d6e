//! The wakes that the movers receive, for the other tasks of the manager that have to do with what was changed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lisa_core::sync::Mutex;

/// The time for which a wake is kept: longer than anybody looks back.
const KEPT: Duration = Duration::from_secs(30);

/// The last wake of each shard, from the channel that wakes its mover. A pull whose lease is shorter than the topic's sends
/// one, since a group that had nothing in flight is not looked at for a lease of the topic.
#[derive(Debug, Default)]
pub(crate) struct Wakes(Mutex<HashMap<String, Instant>>);

impl Wakes {
    /// Records that a wake has arrived.
    pub(crate) fn woken(&self, channel: &str) {
        let mut wakes = self.0.lock();
        match wakes.get_mut(channel) {
            Some(at) => *at = Instant::now(),
            None => drop(wakes.insert(channel.to_owned(), Instant::now())),
        }
    }

    /// Returns true if a wake has arrived at that time or later.
    pub(crate) fn since(&self, channel: &str, time: Instant) -> bool {
        let wakes = self.0.lock();
        wakes.get(channel).is_some_and(|at| *at >= time)
    }

    /// Forgets wakes that nobody asks for any more.
    pub(crate) fn forget_old(&self) {
        let mut wakes = self.0.lock();
        wakes.retain(|_, at| at.elapsed() < KEPT);
    }
}
