//! Retrying: the pauses between tries, and log lines that are written once per outage and not once per try.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::backoff::Backoff;
use crate::broker::BrokerError;
use crate::topic::{Group, Shard, Topic};

/// The longest pause of an [`Outage`].
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The consecutive failures of a loop that retries.
///
/// Logs `cannot <task>; retrying` when an outage begins and `can <task> again` when it ends. An error that does not pass by
/// itself is logged again if its text changes; the texts of other errors may differ with each try.
#[derive(Debug)]
pub struct Outage {
    task: &'static str,
    shard: Option<(Topic, Option<Group>, Shard)>,
    backoff: Backoff,
    is_away: bool,
    /// The last logged error that does not pass by itself.
    lasting: Option<String>,
    /// The number of loops in an outage, of those that log it together.
    loops: Arc<AtomicUsize>,
}

impl Outage {
    /// Creates the outage of a loop that has not failed. `task` completes "cannot …", like `declare topics`.
    #[must_use]
    pub fn new(task: &'static str) -> Self {
        Self {
            task,
            shard: None,
            backoff: Backoff::up_to(LONGEST_PAUSE),
            is_away: false,
            lasting: None,
            loops: Arc::default(),
        }
    }

    /// Creates the outage of the same task for one shard. All that were created from one outage log retryable errors
    /// together: when the first loop fails, and when the last one recovers.
    #[must_use]
    pub fn of(&self, topic: &Topic, group: Option<&Group>, shard: Shard) -> Self {
        let mut outage = Self::new(self.task);
        outage.shard = Some((topic.clone(), group.cloned(), shard));
        outage.loops = self.loops.clone();
        outage
    }

    /// Returns whether the last try failed.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_away || self.lasting.is_some()
    }

    /// Records a failure, logs it if it is new, and returns the pause before the next try: up to 50 ms at first, up to
    /// 1 s later.
    pub fn failed(&mut self, error: &(dyn Error + 'static)) -> Duration {
        let (topic, group, shard) = self.labels();
        let broker_error = error.downcast_ref::<BrokerError>();
        if broker_error.is_none_or(BrokerError::is_retryable) {
            if !self.is_away && self.loops.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(topic, group, shard, %error, "cannot {}; retrying", self.task);
            }
            self.is_away = true;
        } else {
            let text = error.to_string();
            if self.lasting.as_ref() != Some(&text) {
                tracing::error!(topic, group, shard, %error, "cannot {}; retrying", self.task);
                self.lasting = Some(text);
            }
        }
        self.backoff.next_pause()
    }

    /// Records a success, and logs the end of an outage.
    pub fn recovered(&mut self) {
        if !self.is_on() {
            return;
        }
        self.backoff = Backoff::up_to(LONGEST_PAUSE);
        let is_last = self.leave();
        if self.lasting.take().is_some() || is_last {
            let (topic, group, shard) = self.labels();
            tracing::info!(topic, group, shard, "can {} again", self.task);
        }
    }

    /// Leaves the common outage. Returns whether this was its last loop.
    fn leave(&mut self) -> bool {
        std::mem::take(&mut self.is_away) && self.loops.fetch_sub(1, Ordering::Relaxed) == 1
    }

    fn labels(&self) -> (Option<&str>, Option<&str>, Option<u16>) {
        match &self.shard {
            Some((topic, group, shard)) => (
                Some(topic.as_str()),
                group.as_ref().map(Group::as_str),
                Some(shard.get()),
            ),
            None => (None, None, None),
        }
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_ends_the_outage_and_its_long_pauses() {
        let mut outage = Outage::new("count");
        for _ in 0..10 {
            outage.failed(&std::fmt::Error);
        }
        assert!(outage.is_on());
        outage.recovered();
        assert!(!outage.is_on());
        assert!(outage.failed(&std::fmt::Error) <= Duration::from_millis(50));
    }

    #[test]
    fn the_loops_of_a_task_share_one_outage() {
        let task = Outage::new("count");
        let of = |shard| task.of(&"orders".parse().unwrap(), None, Shard::new(shard));
        let (mut a, mut b) = (of(0), of(1));
        for _ in 0..2 {
            a.failed(&std::fmt::Error);
            b.failed(&std::fmt::Error);
        }
        let count = || task.loops.load(Ordering::Relaxed);
        assert_eq!(count(), 2);
        b.recovered();
        assert_eq!(count(), 1);
        drop(a);
        assert_eq!(count(), 0);
    }

    #[test]
    fn an_error_that_lasts_is_the_shards_own() {
        let task = Outage::new("count");
        let mut own = task.of(&"orders".parse().unwrap(), None, Shard::new(0));
        own.failed(&BrokerError::UnknownTopic("orders".parse().unwrap()));
        assert!(own.is_on());
        assert_eq!(task.loops.load(Ordering::Relaxed), 0);
        own.recovered();
        assert!(!own.is_on());
    }
}
