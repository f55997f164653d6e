//! The suspects of a subscription: messages that two or more processes held when they died. An outcome of the handler clears
//! the suspicion.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lisa_core::sync::{Mutex, MutexGuard};
use lisa_service::metrics::Metrics;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// The shortest pause of a suspect that finds the trial slot taken.
const PAUSE: Duration = Duration::from_secs(1);

/// The interval between suspects that come back, so that many of them cost at most 50 reads and hand-backs a second.
const SPACING: Duration = Duration::from_millis(20);

/// The trial slot of a subscription in this process, and the suspects that wait for it.
#[derive(Debug)]
pub(crate) struct Suspects {
    slot: Arc<Semaphore>,
    /// The times at which suspects that this process handed back return, earliest first.
    returns: Mutex<VecDeque<Instant>>,
}

impl Default for Suspects {
    fn default() -> Self {
        Self {
            slot: Arc::new(Semaphore::new(1)),
            returns: Mutex::default(),
        }
    }
}

impl Suspects {
    /// Takes the trial slot if it is free. Dropping the permit frees it.
    pub(crate) fn take_slot(&self) -> Option<OwnedSemaphorePermit> {
        self.slot.clone().try_acquire_owned().ok()
    }

    /// Returns the pause of a suspect that must wait, and reserves its position in the queue. If that position is later than
    /// `most`, returns `most` and reserves nothing.
    pub(crate) fn put_off(&self, now: Instant, most: Duration) -> Duration {
        let mut returns = self.returns_after(now);
        let earliest = now + PAUSE;
        let at = returns
            .back()
            .map_or(earliest, |last| (*last + SPACING).max(earliest));
        if most < at - now {
            return most;
        }
        returns.push_back(at);
        at - now
    }

    /// Returns the number of suspects on trial, 0 or 1, and the number that this process handed back.
    fn counts(&self) -> (usize, usize) {
        let running = 1 - self.slot.available_permits();
        (running, self.returns_after(Instant::now()).len())
    }

    fn returns_after(&self, now: Instant) -> MutexGuard<'_, VecDeque<Instant>> {
        let mut returns = self.returns.lock();
        while returns.front().is_some_and(|at| *at <= now) {
            returns.pop_front();
        }
        returns
    }

    /// Returns a warning for operators if there are suspects.
    pub(crate) fn warning(&self) -> Option<String> {
        let (running, waiting) = self.counts();
        (running + waiting > 0).then(|| {
            format!(
                "messages suspected of killing their process: {}, waiting for their turn: {waiting}",
                running + waiting
            )
        })
    }

    pub(crate) fn report(&self, metrics: &Metrics, topic: &str, group: &str) {
        let (running, waiting) = self.counts();
        metrics.suspects(topic, group, "running", running as u64);
        metrics.suspects(topic, group, "waiting", waiting as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspects_come_back_one_after_the_other() {
        let suspects = Suspects::default();
        let now = Instant::now();
        let any = Duration::MAX;
        let pauses = [(); 3].map(|()| suspects.put_off(now, any));
        assert_eq!(pauses, [PAUSE, PAUSE + SPACING, PAUSE + 2 * SPACING]);
        // A suspect that comes back sooner takes no position in the queue.
        let short = PAUSE / 4;
        assert_eq!(suspects.put_off(now, short), short);
        assert_eq!(suspects.returns_after(now).len(), 3);
        // Suspects that came back leave the queue.
        let later = now + PAUSE + SPACING;
        assert_eq!(suspects.put_off(later, any), PAUSE);
        assert_eq!(suspects.returns_after(later).len(), 2);
    }

    #[test]
    fn only_one_suspect_at_a_time_is_on_trial() {
        let suspects = Suspects::default();
        assert_eq!(suspects.warning(), None);
        let slot = suspects.take_slot().expect("a free slot");
        assert!(suspects.take_slot().is_none());
        assert_eq!(suspects.counts(), (1, 0));
        suspects.put_off(Instant::now(), Duration::MAX);
        assert_eq!(
            suspects.warning().as_deref(),
            Some("messages suspected of killing their process: 2, waiting for their turn: 1")
        );
        drop(slot);
        assert!(suspects.take_slot().is_some());
    }
}
