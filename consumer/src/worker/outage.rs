//! Consecutive read errors: which are logged, and how long to pause after each.

use std::time::Duration;

use lisa_core::broker::BrokerError;

use crate::worker::state::ShardWorker;

/// The pause after the first error. Doubles with each further error.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The current run of consecutive errors: the next pause, and the error that was last logged.
#[derive(Default)]
pub(crate) struct Outage {
    pause: Option<Duration>,
    said: String,
}

impl Outage {
    pub(crate) fn any(&self) -> bool {
        self.pause.is_some()
    }

    /// Records an error, logs it if it is new, and returns the pause before the next try.
    ///
    /// Of the retryable errors of one outage, only the first one is logged: their texts may differ each time.
    pub(crate) fn met(&mut self, worker: &ShardWorker, error: &BrokerError) -> Duration {
        let text = error.to_string();
        let is_news = if error.is_retryable() {
            !self.any()
        } else {
            text != self.said
        };
        if is_news {
            tracing::warn!(error = text, subscription = %worker.subscription, shard = %worker.shard, "cannot read messages; retrying");
            self.said = text;
        }
        let pause = self.pause.unwrap_or(FIRST_PAUSE);
        self.pause = Some((pause * 2).min(LONGEST_PAUSE));
        // Jitter: readers that failed together must not return together.
        pause.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    pub(crate) fn over(&mut self, worker: &ShardWorker) {
        if self.pause.take().is_some() {
            tracing::info!(subscription = %worker.subscription, shard = %worker.shard, "reading again");
            self.said.clear();
        }
    }
}
