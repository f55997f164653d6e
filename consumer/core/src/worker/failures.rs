//! Logs the attempts that failed and are retried. Those that move to garbage are logged when they are settled.

use std::time::Duration;

use lisa_core::broker::{Settlement, Verdict};
use lisa_core::sync::Mutex;
use lisa_core::time::{When, format_duration};
use tokio::time::Instant;

use crate::worker::state::ShardWorker;

/// The most failed attempts that a worker logs in each [`PERIOD`]: an outage of a receiver must not push other lines out of the
/// log.
const MOST: u32 = 10;
const PERIOD: Duration = Duration::from_secs(1);

/// The failed attempts of a worker that are logged.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    began: Option<Instant>,
    logged: u32,
    omitted: u64,
}

impl Window {
    /// Returns the number of failures that were left out since the last line, or `None` to leave out this one, too.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.began.is_none_or(|began| now >= began + PERIOD) {
            (self.began, self.logged) = (Some(now), 0);
        }
        if self.logged == MOST {
            self.omitted += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.omitted))
    }
}

/// Logs an attempt if it failed and the message is delivered again. Attempts beyond the limit are logged at level debug.
pub(crate) fn log(worker: &ShardWorker, settlement: &Settlement, attempt: u32) {
    let (Verdict::Retry { when, error }, id) = (&settlement.verdict, &settlement.id) else {
        return;
    };
    let max_attempts = settlement.max_attempts;
    if attempt >= max_attempts {
        return;
    }
    let (topic, group) = (worker.subscription.topic(), worker.subscription.group());
    let retry_in = match when {
        When::After(delay) => Some(format_duration(*delay)),
        When::At(_) => None,
    };
    match worker.failures.0.lock().admit(Instant::now()) {
        Some(omitted) => {
            let omitted = (omitted > 0).then_some(omitted);
            tracing::warn!(%topic, %group, %id, attempt, max_attempts, error, retry_in, omitted, "attempt failed; retrying");
        }
        None => {
            tracing::debug!(%topic, %group, %id, attempt, max_attempts, error, retry_in, "attempt failed; retrying");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_failures_is_left_out_and_its_number_is_in_the_next_line() {
        let (mut window, now) = (Window::default(), Instant::now());
        for _ in 0..MOST {
            assert_eq!(window.admit(now), Some(0));
        }
        assert_eq!((window.admit(now), window.admit(now)), (None, None));
        assert_eq!(window.admit(now + PERIOD), Some(2));
        assert_eq!(window.admit(now + PERIOD), Some(0));
    }
}
