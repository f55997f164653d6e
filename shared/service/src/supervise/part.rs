//! Loops of a supervised task that fail separately: a loop that panics is restarted while the others continue.
//!
//! A task that serves many topics runs each of its loops as a [`Part`]. Loops that must fail together form one task.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Backoff, Failures, Heartbeat, Task};
use crate::panics::panic_text;
use lisa_core::redis::{Connection, Progress};
use lisa_core::topic::{Group, Shard, Topic};

/// The interval of heartbeats while the only part of a task waits for its restart.
const BEAT_EVERY: Duration = Duration::from_millis(500);

/// The name of a part: the kind of loop and what it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartName {
    /// The kind of loop, like `mover`; also the label of its panics in the metrics.
    pub kind: &'static str,
    /// The topic that it serves.
    pub topic: Topic,
    /// The group, for a loop of one group.
    pub group: Option<Group>,
    /// The shard, for a loop of one shard.
    pub shard: Option<Shard>,
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.topic)?;
        if let Some(shard) = self.shard {
            write!(f, ":{shard}")?;
        }
        match &self.group {
            Some(group) => write!(f, "/{group}"),
            None => Ok(()),
        }
    }
}

/// A part that failed and has not yet run long enough to count as recovered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartHealth {
    /// Its name, like `mover orders:0`.
    pub name: String,
    /// The number of consecutive failures.
    pub failures: u32,
    /// The reason of the last failure.
    pub error: String,
}

/// A loop of a task that fails and is restarted separately; see [`Heartbeat::part`].
#[derive(Debug)]
pub struct Part {
    task: Arc<Task>,
    name: PartName,
    backoff: Backoff,
    is_only: bool,
    down: AtomicBool,
    progress: Progress,
    resting: AtomicBool,
}

impl Heartbeat {
    /// Creates a part of the task; [`Part::keep`] runs it.
    #[must_use]
    pub fn part(&self, name: PartName) -> Part {
        Part {
            task: self.task.clone(),
            name,
            backoff: Backoff::default(),
            is_only: false,
            down: AtomicBool::new(false),
            progress: Progress::default(),
            resting: AtomicBool::new(false),
        }
    }
}

impl Part {
    /// Makes it the only part of its task: while it waits for its restart, it sends the task's heartbeats.
    #[must_use]
    pub fn only(mut self) -> Self {
        self.is_only = true;
        self
    }

    /// Sets the pauses between restarts.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Reports that the loop has just made progress, or that Redis reported that it cannot.
    pub fn ok(&self) {
        self.progress.made();
        self.resting.store(false, Ordering::Relaxed);
    }

    /// Reports that the loop waits for handlers, however long they take. Ends with the next [`Part::ok`].
    pub fn rest(&self) {
        self.resting.store(true, Ordering::Relaxed);
    }

    /// Returns true if the loop made progress within `limit`, or currently cannot: it waits for handlers, for Redis or
    /// for its restart. Call it periodically; see [`Progress::is_stuck`].
    pub fn is_fresh(&self, connection: &Connection, limit: Duration) -> bool {
        self.down.load(Ordering::Relaxed)
            || self.resting.load(Ordering::Relaxed)
            || !self.progress.is_stuck(connection, limit)
    }

    /// Runs the future that `make` builds until it returns `Ok`, or has failed and `draining` has begun. A panic or an error
    /// is logged, counted and shown in the task's health. After a pause, by default from one second up to thirty, the
    /// future is built and run again.
    ///
    /// # Cancel safety
    /// Dropping the future drops the one that it runs.
    pub async fn keep<F, Fut, E>(&self, draining: &CancellationToken, mut make: F)
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<(), E>>,
        E: fmt::Display,
    {
        let mut failures = Failures::default();
        loop {
            self.ok();
            let run = AssertUnwindSafe(async { make().await }).catch_unwind();
            tokio::pin!(run);
            let ended = tokio::select! {
                ended = &mut run => ended,
                () = sleep(self.backoff.cap) => {
                    self.recovered(&mut failures);
                    run.await
                }
            };
            let reason = match ended {
                Ok(Ok(())) => return self.recovered(&mut failures),
                Ok(Err(error)) => error.to_string(),
                Err(panic) => panic_text(panic.as_ref()),
            };
            let restarted = draining.run_until_cancelled(self.failed(&mut failures, reason));
            if restarted.await.is_none() {
                return;
            }
        }
    }

    async fn failed(&self, failures: &mut Failures, reason: String) {
        let pause = self.backoff.pause(failures.count);
        let PartName {
            kind,
            topic,
            group,
            shard,
        } = &self.name;
        let (group, shard) = (group.as_ref().map(Group::as_str), shard.map(Shard::get));
        let restart_ms = super::millis(pause);
        if failures.is_new(&reason) {
            tracing::error!(task = kind, %topic, group, shard, reason, restart_ms, "loop failed; restarting only this loop");
        } else {
            tracing::debug!(task = kind, %topic, group, shard, reason, restart_ms, "loop failed again");
        }
        self.task.count_panic(kind);
        let health = PartHealth {
            name: self.name.to_string(),
            failures: failures.count,
            error: reason,
        };
        self.task.failing.lock().insert(health.name.clone(), health);
        self.down.store(true, Ordering::Relaxed);
        let end = Instant::now() + pause;
        while Instant::now() < end {
            if self.is_only {
                self.task.heartbeat();
            }
            sleep((end - Instant::now()).min(BEAT_EVERY)).await;
        }
        self.down.store(false, Ordering::Relaxed);
    }

    fn recovered(&self, failures: &mut Failures) {
        if failures.count > 0 {
            tracing::info!(task = self.name.kind, part = %self.name, restarts = failures.count, "loop recovered");
            *failures = Failures::default();
            self.forget();
        }
    }

    fn forget(&self) {
        self.task.failing.lock().remove(&self.name.to_string());
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.forget();
    }
}
