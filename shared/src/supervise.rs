//! Ownership of every long-running task: started by name, watched, restarted or fatal, awaited.
//!
//! A loop that ends by itself is an error here. What a task does is its own business; what health
//! looks like over HTTP is in [`crate::http::ops`].

mod part;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::metrics::Metrics;
use crate::shutdown::Shutdown;

pub use part::{Part, PartHealth, PartName};

/// Longest silence of a loop that sets no limit of its own: twice a blocking read, and short enough
/// for a stuck loop to be seen within five seconds.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(4);

/// After the grace has ended, tasks get this long to hand back what they hold before they are cut off.
const HAND_BACK: Duration = Duration::from_secs(2);

/// What happens when a task fails, panics, is killed, or ends although nobody asked it to.
#[derive(Clone, Copy, Debug)]
pub enum Policy {
    /// Start it again after a pause.
    Restart {
        /// The pauses between starts.
        backoff: Backoff,
    },
    /// Begin the shutdown; [`Supervisor::join`] then reports the task.
    EndProcess,
}

impl Policy {
    /// [`Policy::Restart`] with the default pauses.
    #[must_use]
    pub fn restart() -> Self {
        Self::Restart {
            backoff: Backoff::default(),
        }
    }
}

/// Pauses between restarts: `base`, doubled each time, never above `cap`, with up to a fifth of
/// jitter taken off. A task that stays up for longer than `cap` starts again from `base`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first pause.
    pub base: Duration,
    /// The longest pause.
    pub cap: Duration,
}

impl Default for Backoff {
    /// One second (long enough for a probe to see the fall) up to thirty.
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            cap: Duration::from_secs(30),
        }
    }
}

impl Backoff {
    fn pause(&self, failures: u32) -> Duration {
        let factor = 1_u32 << failures.min(20);
        let pause = self.base.saturating_mul(factor).min(self.cap);
        pause.mul_f64(1.0 - 0.2 * fastrand::f64())
    }
}

/// Why the tasks did not all end well.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// A task with [`Policy::EndProcess`] failed.
    #[error("task {name} ended the process: {reason}")]
    Ended {
        /// The task's name.
        name: String,
        /// What happened to it.
        reason: String,
    },
    /// Tasks had to be cut off when the grace ended.
    #[error("tasks still running when the grace ended: {}", names.join(", "))]
    Unfinished {
        /// Their names.
        names: Vec<String>,
    },
}

/// Owner of a role's tasks. Dropping it aborts all of them.
#[derive(Debug)]
pub struct Supervisor {
    shutdown: Shutdown,
    metrics: Option<Metrics>,
    health: Health,
    runners: Mutex<JoinSet<()>>,
    fatal: Arc<Mutex<Option<SupervisorError>>>,
}

impl Supervisor {
    /// A supervisor without tasks, bound to the shutdown its tasks obey.
    #[must_use]
    pub fn new(shutdown: &Shutdown) -> Self {
        Self {
            shutdown: shutdown.clone(),
            metrics: None,
            health: Health::default(),
            runners: Mutex::new(JoinSet::new()),
            fatal: Arc::new(Mutex::new(None)),
        }
    }

    /// Counts panics of the tasks that it starts from now on.
    #[must_use]
    pub fn counting(self, metrics: &Metrics) -> Self {
        Self {
            metrics: Some(metrics.clone()),
            ..self
        }
    }

    /// Starts a task under a name; `make` builds its future anew for each start.
    ///
    /// The future should loop until [`Shutdown::draining`], finish what it holds, and return
    /// `Ok(())`. Must be called inside a Tokio runtime.
    pub fn spawn<F, Fut, E>(&self, name: impl Into<String>, policy: Policy, make: F)
    where
        F: Fn(Beat) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let task = Arc::new(Task::new(name.into(), self.metrics.clone()));
        lock(&self.health.tasks).push(task.clone());
        let shutdown = self.shutdown.clone();
        let fatal = self.fatal.clone();
        lock(&self.runners).spawn(async move {
            if let Some(reason) = task.run(&shutdown, policy, make).await {
                tracing::error!(task = %task.name, %reason, "task failed: ending the process");
                let name = task.name.clone();
                lock(&fatal).get_or_insert(SupervisorError::Ended { name, reason });
                shutdown.begin();
            }
        });
    }

    /// The state of all tasks, kept up to date; a cheap clone for probes.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Kills the current run of every task of this name, as a bug would; returns whether there was one.
    ///
    /// For tests: the task turns red and its policy applies.
    pub fn abort(&self, name: &str) -> bool {
        self.health.abort(name)
    }

    /// Waits for all tasks; when the shutdown's grace ends, for two more seconds, then cuts off the rest.
    ///
    /// # Errors
    /// A task ended the process, or tasks had to be cut off.
    ///
    /// # Cancel safety
    /// Dropping the future aborts all tasks.
    pub async fn join(self) -> Result<(), SupervisorError> {
        let mut runners = std::mem::take(&mut *lock(&self.runners));
        let cut_off = async {
            self.shutdown.now().cancelled().await;
            tokio::time::sleep(HAND_BACK).await;
        };
        tokio::pin!(cut_off);
        loop {
            tokio::select! {
                ended = runners.join_next() => if ended.is_none() { break },
                () = &mut cut_off => break,
            }
        }
        if let Some(error) = lock(&self.fatal).take() {
            return Err(error);
        }
        if !runners.is_empty() {
            let alive = self.health.tasks().into_iter().filter(|task| task.alive);
            return Err(SupervisorError::Unfinished {
                names: alive.map(|task| task.name).collect(),
            });
        }
        Ok(())
    }
}

/// Given to each run of a task, to say that it makes progress. A cheap clone.
#[derive(Clone, Debug)]
pub struct Beat {
    task: Arc<Task>,
}

impl Beat {
    /// Marks that the loop made progress just now.
    pub fn ok(&self) {
        self.task.beat();
    }

    /// Sets the longest silence between two calls of [`Beat::ok`]; [`DEFAULT_LIMIT`] holds until then.
    pub fn within(&self, limit: Duration) {
        self.task.limit_ms.store(millis(limit), Ordering::Relaxed);
    }

    /// Lifts the limit: for tasks that wait for others, such as a listener.
    pub fn unlimited(&self) {
        self.within(Duration::MAX);
    }
}

/// The live state of a supervisor's tasks; a cheap clone.
#[derive(Clone, Debug, Default)]
pub struct Health {
    tasks: Arc<Mutex<Vec<Arc<Task>>>>,
}

impl Health {
    /// Whether every task is well.
    #[must_use]
    pub fn is_green(&self) -> bool {
        lock(&self.tasks).iter().all(|task| task.health().green)
    }

    /// Whether a loop of some task keeps failing by itself, while its task is well.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        let tasks = lock(&self.tasks);
        tasks.iter().any(|task| !lock(&task.failing).is_empty())
    }

    /// The state of each task, in the order of their start.
    #[must_use]
    pub fn tasks(&self) -> Vec<TaskHealth> {
        lock(&self.tasks).iter().map(|task| task.health()).collect()
    }

    /// Kills tasks by name; see [`Supervisor::abort`], which a joined supervisor can no longer offer.
    pub fn abort(&self, name: &str) -> bool {
        let mut found = false;
        for task in lock(&self.tasks).iter().filter(|task| task.name == name) {
            if let Some(run) = lock(&task.current).as_ref() {
                run.abort();
                found = true;
            }
        }
        found
    }
}

/// The state of one task at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct TaskHealth {
    /// The task's name.
    pub name: String,
    /// Alive and not silent for too long, or ended as the shutdown asked.
    pub green: bool,
    /// Whether it runs at this moment.
    pub alive: bool,
    /// Milliseconds since it last made progress.
    pub age_ms: u64,
    /// The longest silence allowed, in milliseconds; `None` for a task that may wait for ever.
    pub limit_ms: Option<u64>,
    /// How often it was started again.
    pub restarts: u64,
    /// Why it last fell, if it ever did.
    pub last_error: Option<String>,
    /// Loops of it that fell and are restarted by themselves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failing: Vec<PartHealth>,
}

#[derive(Debug)]
struct Task {
    name: String,
    started: Instant,
    last_beat_ms: AtomicU64,
    limit_ms: AtomicU64,
    alive: AtomicBool,
    finished: AtomicBool,
    restarts: AtomicU64,
    last_error: Mutex<Option<String>>,
    current: Mutex<Option<AbortHandle>>,
    /// Parts that fell, by name.
    failing: Mutex<BTreeMap<String, PartHealth>>,
    metrics: Option<Metrics>,
}

impl Task {
    fn new(name: String, metrics: Option<Metrics>) -> Self {
        Self {
            name,
            metrics,
            started: Instant::now(),
            last_beat_ms: AtomicU64::new(0),
            limit_ms: AtomicU64::new(millis(DEFAULT_LIMIT)),
            alive: AtomicBool::new(true),
            finished: AtomicBool::new(false),
            restarts: AtomicU64::new(0),
            last_error: Mutex::new(None),
            current: Mutex::new(None),
            failing: Mutex::default(),
        }
    }

    fn count_panic(&self, task: &str) {
        if let Some(metrics) = &self.metrics {
            metrics.panicked(task);
        }
    }

    fn beat(&self) {
        let now = millis(self.started.elapsed());
        self.last_beat_ms.store(now, Ordering::Relaxed);
    }

    /// Runs to the end of the shutdown, or to the failure that ends the process, which is returned.
    async fn run<F, Fut, E>(
        self: &Arc<Self>,
        shutdown: &Shutdown,
        policy: Policy,
        make: F,
    ) -> Option<String>
    where
        F: Fn(Beat) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let mut failures = Failures::default();
        loop {
            let steady = match policy {
                Policy::Restart { backoff } => backoff.cap,
                Policy::EndProcess => Duration::MAX,
            };
            let beat = Beat { task: self.clone() };
            let reason = match catch_unwind(AssertUnwindSafe(|| make(beat))) {
                Ok(future) => self.run_once(future, steady, &mut failures).await,
                Err(panic) => {
                    self.count_panic(&self.name);
                    Some(panic_text(panic.as_ref()))
                }
            };
            let draining = shutdown.draining().is_cancelled();
            let reason = match reason {
                None if draining => {
                    self.finished.store(true, Ordering::Relaxed);
                    return None;
                }
                None => "ended by itself".to_owned(),
                Some(reason) => reason,
            };
            *lock(&self.last_error) = Some(reason.clone());
            if draining {
                tracing::warn!(task = %self.name, %reason, "task failed while draining");
                return None;
            }
            let Policy::Restart { backoff } = policy else {
                return Some(reason);
            };
            let pause = backoff.pause(failures.count);
            failures.log(&self.name, &reason, pause);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shutdown.draining().cancelled() => return None,
            }
            self.restarts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One run in a task of its own, so that a panic or an abort ends the run and not its owner.
    /// Returns what went wrong. A run that lasts longer than `steady` is a recovery.
    async fn run_once<Fut, E>(
        &self,
        future: Fut,
        steady: Duration,
        failures: &mut Failures,
    ) -> Option<String>
    where
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let run = async move { future.await.map_err(|error| error.to_string()) };
        let mut run = AbortOnDropHandle::new(tokio::spawn(run));
        *lock(&self.current) = Some(run.abort_handle());
        self.alive.store(true, Ordering::Relaxed);
        let ended = tokio::select! {
            ended = &mut run => ended,
            () = tokio::time::sleep(steady) => {
                failures.recovered(&self.name);
                run.await
            }
        };
        self.alive.store(false, Ordering::Relaxed);
        *lock(&self.current) = None;
        match ended {
            Ok(Ok(())) => None,
            Ok(Err(reason)) => Some(reason),
            Err(error) => {
                if error.is_panic() {
                    self.count_panic(&self.name);
                }
                Some(join_text(error))
            }
        }
    }

    fn health(&self) -> TaskHealth {
        let now = millis(self.started.elapsed());
        let age_ms = now.saturating_sub(self.last_beat_ms.load(Ordering::Relaxed));
        let limit_ms = Some(self.limit_ms.load(Ordering::Relaxed)).filter(|ms| *ms != u64::MAX);
        let alive = self.alive.load(Ordering::Relaxed);
        let fresh = limit_ms.is_none_or(|limit| age_ms <= limit);
        TaskHealth {
            name: self.name.clone(),
            green: self.finished.load(Ordering::Relaxed) || (alive && fresh),
            alive,
            age_ms,
            limit_ms,
            restarts: self.restarts.load(Ordering::Relaxed),
            last_error: lock(&self.last_error).clone(),
            failing: lock(&self.failing).values().cloned().collect(),
        }
    }
}

/// Failures in a row, so that a task that keeps failing is logged once and not once a restart.
#[derive(Default)]
struct Failures {
    count: u32,
    reason: String,
}

impl Failures {
    fn log(&mut self, task: &str, reason: &str, pause: Duration) {
        let restart_ms = millis(pause);
        if self.is_new(reason) {
            tracing::error!(task, reason, restart_ms, "task failed: restarting");
        } else {
            tracing::debug!(task, reason, restart_ms, "task failed again");
        }
    }

    /// Counts a failure, and says whether its reason is another one than before.
    fn is_new(&mut self, reason: &str) -> bool {
        self.count = self.count.saturating_add(1);
        let is_new = self.reason != reason;
        reason.clone_into(&mut self.reason);
        is_new
    }

    fn recovered(&mut self, task: &str) {
        if self.count > 0 {
            tracing::info!(task, restarts = self.count, "task recovered");
            *self = Self::default();
        }
    }
}

fn join_text(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => panic_text(panic.as_ref()),
        Err(_) => "killed".to_owned(),
    }
}

/// Gives what a panic said, as in `panicked: index out of bounds`.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("no message"))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The data under these locks is a plain value at every moment, so a panic elsewhere cannot spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
