//! The target of a handler: the system that it delivers to, and its ability to accept deliveries now.
//!
//! A handler with a target converts each [`Answer`] from it into an outcome with [`Target::outcome`]. While the target is
//! unavailable or fails, the consumer reads only one message at a time, as a probe. It also limits the number of deliveries
//! that run at a time to what the target accepts. None of this is stored: each process learns it by itself.

mod breaker;
mod limit;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lisa_core::sync::Mutex;
use lisa_core::time::format_duration;
use lisa_service::metrics::Metrics;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};

use self::breaker::{Admitted, Breaker, Cause, Change};
use self::limit::Limit;
use crate::outcome::Outcome;

pub use lisa_service::targets::{Away, DEFAULT_MAX_AWAY, TargetSettings};

/// The delay of a message that could not be delivered because its target is unavailable. Short, because another consumer of
/// the group may reach the target; this one reads the message only as a probe.
pub(crate) const AGAIN: Duration = Duration::from_secs(1);
/// The interval at which a reader checks whether messages may be read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The answer from a target to one delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The target has confirmed the delivery: an ack.
    Accepted,
    /// The target has taken the delivery, and completes it within this time: see [`Outcome::Later`].
    Later(Duration),
    /// The target refused this delivery, but works otherwise.
    Refused(Outcome),
    /// The target failed with an error of its own. After several such answers in a row, the consumer stops reading.
    Failed(Outcome),
    /// The target is overloaded, or did not answer in time. Counts as `Failed`, and the consumer runs fewer deliveries at a
    /// time.
    Overloaded(Outcome),
    /// The target is unavailable: it cannot be reached, or blocks all deliveries. With [`Away::Defer`] no attempt is counted
    /// until the outage exceeds [`TargetSettings::max_away`], and the consumer stops reading immediately. With
    /// [`Away::Retry`] this is a failure, and the attempt counts. The text is the error.
    Away(String),
    /// The target accepts no deliveries any more: the group is paused. The text is the reason.
    Gone(String),
}

/// The system that a handler delivers to: its availability, and the number of deliveries that it accepts at a time. Cheap to
/// clone; clones share the state. Each subscription needs its own.
#[derive(Clone, Debug)]
pub struct Target {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: TargetSettings,
    /// The subscription, for logs.
    name: OnceLock<String>,
    breaker: Mutex<Breaker>,
    limit: Mutex<Option<Limit>>,
    /// Notified when the breaker changes.
    changed: Notify,
}

/// The state of a target at one time, for metrics and readiness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    /// False while the target is unavailable.
    pub(crate) is_up: bool,
    /// True while the consumer reads only probes.
    pub(crate) is_open: bool,
    /// The number of deliveries that may run at a time.
    pub(crate) limit: usize,
    /// A warning for operators while the target is unavailable or fails.
    pub(crate) warning: Option<String>,
}

impl Target {
    /// Creates a target that is up.
    pub fn new(settings: TargetSettings) -> Self {
        Self {
            inner: Arc::new(Inner {
                settings,
                name: OnceLock::new(),
                breaker: Mutex::new(Breaker::default()),
                limit: Mutex::default(),
                changed: Notify::new(),
            }),
        }
    }

    /// Records an answer, and returns the outcome of its delivery.
    pub fn outcome(&self, answer: Answer) -> Outcome {
        let now = Instant::now();
        match answer {
            Answer::Accepted => {
                self.limited(Limit::accepted);
                self.change(|breaker| breaker.works());
                Outcome::Ack
            }
            Answer::Later(within) => {
                self.limited(Limit::accepted);
                self.change(|breaker| breaker.works());
                Outcome::Later { within }
            }
            Answer::Refused(outcome) => {
                self.change(|breaker| breaker.works());
                outcome
            }
            Answer::Failed(outcome) => {
                self.change(|breaker| breaker.fails(now, Cause::Failing, &text(&outcome)));
                outcome
            }
            Answer::Overloaded(outcome) => {
                self.limited(Limit::refused);
                self.change(|breaker| breaker.fails(now, Cause::Failing, &text(&outcome)));
                outcome
            }
            Answer::Away(error) if self.inner.settings.away == Away::Retry => {
                self.change(|breaker| breaker.fails(now, Cause::Failing, &error));
                Outcome::retry(error)
            }
            Answer::Away(error) => {
                self.change(|breaker| breaker.fails(now, Cause::Away, &error));
                let breaker = self.inner.breaker.lock();
                if breaker.outage(now) > self.inner.settings.max_away {
                    return Outcome::retry(error);
                }
                Outcome::defer(AGAIN)
            }
            Answer::Gone(error) => {
                self.change(|breaker| breaker.fails(now, Cause::Gone, &error));
                Outcome::pause(error)
            }
        }
    }

    /// Records a delivery that ended without an answer, because its handler timed out.
    pub(crate) fn timed_out(&self) {
        self.limited(Limit::refused);
        self.change(|breaker| breaker.fails(Instant::now(), Cause::Failing, "timed out"));
    }

    /// Waits until messages may be read. Returns a reservation if only one may be read, as a probe.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub(crate) async fn readable(&self) -> Option<Reservation> {
        loop {
            let changed = self.inner.changed.notified();
            // Checks again even without a notification: a missed one then costs a second, instead of stopping all messages.
            let mut until = Instant::now() + LOOK_EVERY;
            {
                let mut breaker = self.inner.breaker.lock();
                if !breaker.is_open() {
                    return None;
                }
                if breaker.reserve(Instant::now()) {
                    return Some(Reservation(self.clone()));
                }
                if let Some(probe_at) = breaker.probe_at() {
                    until = until.min(probe_at);
                }
            }
            tokio::select! {
                () = sleep_until(until) => {}
                () = changed => {}
            }
        }
    }

    /// Admits a delivery, unless the breaker is open and no probe is due.
    pub(crate) fn admit(&self) -> Option<Admission> {
        match self.inner.breaker.lock().admit(Instant::now())? {
            Admitted::Run => Some(Admission(None)),
            Admitted::Probe => Some(Admission(Some(self.clone()))),
        }
    }

    /// Returns the semaphore that limits the handlers of a subscription. Called when the subscription starts.
    pub(crate) fn permits(&self, name: &str, concurrency: usize) -> Arc<Semaphore> {
        let _ = self.inner.name.set(name.to_owned());
        let limit = Limit::new(concurrency);
        let permits = limit.permits();
        *self.inner.limit.lock() = Some(limit);
        permits
    }

    /// Waits for [`limit::SLOW`], then raises the limit if no delivery was refused yet and all permits are in use.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub(crate) async fn held(&self) {
        sleep(limit::SLOW).await;
        self.limited(|limit| limit.waited(Instant::now()));
    }

    /// Removes those of `permits` that the limit was lowered by while they were in use.
    pub(crate) fn collect(&self, permits: &mut OwnedSemaphorePermit) {
        self.limited(|limit| limit.collect(permits));
    }

    pub(crate) fn health(&self) -> Health {
        let limit = self.inner.limit.lock().as_ref().map_or(0, Limit::get);
        let breaker = self.inner.breaker.lock();
        Health {
            is_up: !breaker.is_away(),
            is_open: breaker.is_open(),
            limit,
            warning: breaker.warning(Instant::now()),
        }
    }

    /// Sets the gauges of a subscription's sink.
    pub(crate) fn report(&self, metrics: &Metrics, topic: &str, group: &str) {
        let health = self.health();
        metrics.sink(topic, group, health.is_up, health.is_open, health.limit);
    }

    fn limited(&self, record: impl FnOnce(&mut Limit)) {
        if let Some(limit) = &mut *self.inner.limit.lock() {
            record(limit);
        }
    }

    fn change(&self, record: impl FnOnce(&mut Breaker) -> Change) {
        let change = record(&mut self.inner.breaker.lock());
        match &change {
            Change::None => return,
            Change::Closed { .. } => self.limited(Limit::restart),
            Change::Opened { .. } | Change::Reopened => {}
        }
        // First, so that nothing after it can keep a reader waiting.
        self.inner.changed.notify_waiters();
        let subscription = self.inner.name.get().map_or("", String::as_str);
        match change {
            // The group is paused, and an error is logged.
            Change::Opened {
                cause: Cause::Gone, ..
            } => {}
            Change::Opened { cause, error } => {
                tracing::warn!(subscription, error, "target {cause}; reading only probes");
            }
            Change::None | Change::Reopened => {}
            Change::Closed { outage } => {
                let outage = format_duration(Duration::from_secs(outage.as_secs()));
                tracing::info!(subscription, outage, "target recovered");
            }
        }
    }
}

/// The permission to read one message for a probe. If it is dropped before a delivery runs as the probe, the next probe is
/// due immediately.
#[derive(Debug)]
pub(crate) struct Reservation(Target);

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.change(|breaker| breaker.release(Instant::now()));
    }
}

/// The permission to run one delivery. If a probe ends without an answer, the next one is due immediately.
#[derive(Debug)]
pub(crate) struct Admission(Option<Target>);

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(target) = &self.0 {
            target.change(|breaker| breaker.probe_ended(Instant::now()));
        }
    }
}

fn text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Retry { error, .. } | Outcome::Reject { error } => error.clone(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn target(away: Away) -> Target {
        Target::new(TargetSettings::new(away))
    }

    fn away(target: &Target) -> Outcome {
        target.outcome(Answer::Away("refused".to_owned()))
    }

    #[tokio::test]
    async fn a_target_that_is_unavailable_is_not_read_except_by_one_probe_at_a_time() {
        let target = target(Away::Defer);
        assert!(target.readable().await.is_none());
        assert_eq!(away(&target), Outcome::defer(SECOND));
        assert!(target.readable().now_or_never().is_none());
        assert!(target.admit().is_none());
        let reserved = target.readable().await.expect("a probe");
        assert!(target.readable().now_or_never().is_none(), "another shard");
        let probe = target.admit().expect("the probe is due");
        drop(reserved);
        assert!(target.admit().is_none(), "a second one");
        assert!(target.readable().now_or_never().is_none());
        let again = target.readable();
        away(&target);
        drop(probe);
        assert!(again.await.is_some(), "the next probe");
        let _probe = target.admit().expect("the probe is due");
        assert_eq!(target.outcome(Answer::Accepted), Outcome::Ack);
        assert!(target.readable().await.is_none());
        assert!(target.admit().is_some() && target.admit().is_some());
    }

    #[tokio::test]
    async fn a_probe_without_an_answer_makes_room_for_the_next() {
        let target = target(Away::Defer);
        away(&target);
        let reserved = target.readable().await.expect("a probe");
        let other = target.readable();
        drop(reserved);
        let reserved = other.await.expect("no message was read for the first one");
        let probe = target.admit().expect("the probe is due");
        drop(reserved);
        assert!(target.readable().now_or_never().is_none());
        drop(probe);
        assert!(matches!(target.readable().now_or_never(), Some(Some(_))));
    }

    #[tokio::test]
    async fn an_outage_counts_if_away_is_retry_or_after_max_away() {
        let retry = Outcome::retry("refused");
        assert_eq!(away(&target(Away::Retry)), retry);
        let target = Target::new(TargetSettings {
            max_away: Duration::ZERO,
            ..TargetSettings::new(Away::Defer)
        });
        assert_eq!(away(&target), Outcome::defer(SECOND));
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(away(&target), retry);
    }

    #[tokio::test]
    async fn health_distinguishes_unavailable_from_failing() {
        let target = target(Away::Defer);
        let permits = target.permits("orders/billing", 100);
        let healthy = target.health();
        assert_eq!(
            (healthy.is_up, healthy.is_open, healthy.limit),
            (true, false, 16)
        );
        assert_eq!(permits.available_permits(), 16);
        for _ in 0..50 {
            target.timed_out();
        }
        let failing = target.health();
        assert!(
            failing.is_up && failing.is_open && failing.limit < 16,
            "{failing:?}"
        );
        assert_eq!(
            failing.warning.as_deref(),
            Some("target failing for 0s: timed out")
        );
        target.outcome(Answer::Refused(Outcome::reject("no such order")));
        assert!(!target.health().is_open, "it answered");
        target.outcome(Answer::Gone("moved out".to_owned()));
        let gone = target.health();
        assert!(!gone.is_up && gone.is_open, "{gone:?}");
    }
}
