//! Owns every long-running task: starts it by name, watches it, restarts it or ends the process, and awaits it.
//!
//! A task that ends before the shutdown is an error. Does not report health over HTTP; `http::ops` does.

mod part;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use lisa_core::sync::Mutex;
use lisa_core::task;
use serde::Serialize;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::panics::panic_text;
use crate::shutdown::Shutdown;

pub use part::{Part, PartHealth, PartName};

/// The longest silence of a loop that sets no limit of its own: twice a blocking read, but short enough to detect a stuck
/// loop within five seconds.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(4);

/// The time that tasks get after the grace period to hand back what they hold. Then they are aborted.
const HAND_BACK: Duration = Duration::from_secs(2);

/// The reaction to a task that fails, panics, is aborted, or ends before the shutdown.
#[derive(Clone, Copy, Debug)]
pub enum Policy {
    /// Restart it after a pause.
    Restart {
        /// The pauses between starts.
        backoff: Backoff,
    },
    /// Begin the shutdown; [`Supervisor::join`] then reports the task.
    EndProcess,
}

impl Policy {
    /// Returns [`Policy::Restart`] with the default backoff.
    #[must_use]
    pub fn restart() -> Self {
        Self::Restart {
            backoff: Backoff::default(),
        }
    }
}

/// Exponential backoff between restarts: `base`, doubled each time up to `cap`, minus up to a fifth as jitter. After a run
/// longer than `cap`, the pauses start at `base` again.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first pause.
    pub base: Duration,
    /// The longest pause.
    pub cap: Duration,
}

impl Default for Backoff {
    /// Returns pauses from one second, long enough for a probe to see the failure, to thirty.
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            cap: Duration::from_secs(30),
        }
    }
}

impl Backoff {
    /// Returns the pause after a number of earlier failures.
    pub fn pause(&self, failures: u32) -> Duration {
        let factor = 1_u32 << failures.min(20);
        let pause = self.base.saturating_mul(factor).min(self.cap);
        pause.mul_f64(1.0 - 0.2 * fastrand::f64())
    }
}

/// The reason why not all tasks ended well.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// A task with [`Policy::EndProcess`] failed.
    #[error("task {name} ended the process: {reason}")]
    Ended {
        /// The task's name.
        name: String,
        /// The reason of the failure.
        reason: String,
    },
    /// Tasks had to be aborted after the grace period.
    #[error("tasks still running after the grace period: {}", names.join(", "))]
    Unfinished {
        /// The names of the tasks.
        names: Vec<String>,
    },
}

/// The owner of a role's tasks. Dropping it aborts all of them.
#[derive(Debug)]
pub struct Supervisor {
    shutdown: Shutdown,
    metrics: Option<Metrics>,
    health: Health,
    runners: Mutex<JoinSet<()>>,
    fatal: Arc<Mutex<Option<SupervisorError>>>,
}

impl Supervisor {
    /// Creates a supervisor without tasks, bound to the shutdown that its tasks obey.
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

    /// Counts the panics of all tasks that it starts from now on.
    #[must_use]
    pub fn counting(self, metrics: &Metrics) -> Self {
        Self {
            metrics: Some(metrics.clone()),
            ..self
        }
    }

    /// Starts a task under a name; `make` builds a new future for each start.
    ///
    /// The future should loop until [`Shutdown::draining`], finish what it holds, and return `Ok(())`. Must be called within
    /// a Tokio runtime.
    pub fn spawn<F, Fut, E>(&self, name: impl Into<String>, policy: Policy, make: F)
    where
        F: Fn(Heartbeat) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let task = Arc::new(Task::new(name.into(), self.metrics.clone()));
        self.health.tasks.lock().push(task.clone());
        let shutdown = self.shutdown.clone();
        let fatal = self.fatal.clone();
        self.runners.lock().spawn(async move {
            if let Some(reason) = task.run(&shutdown, policy, make).await {
                tracing::error!(task = %task.name, %reason, "task failed; ending the process");
                let name = task.name.clone();
                fatal
                    .lock()
                    .get_or_insert(SupervisorError::Ended { name, reason });
                shutdown.begin();
            }
        });
    }

    /// Returns the live state of all tasks, for probes.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Aborts the current run of every task with this name, as a bug would. Returns whether there was one.
    ///
    /// For tests: the task turns red and its policy applies.
    pub fn abort(&self, name: &str) -> bool {
        self.health.abort(name)
    }

    /// Waits for all tasks to end. Two seconds after the end of the grace period, aborts the rest.
    ///
    /// # Errors
    /// A task ended the process, or tasks had to be aborted.
    ///
    /// # Cancel safety
    /// Dropping the future aborts all tasks.
    pub async fn join(&self) -> Result<(), SupervisorError> {
        let mut runners = std::mem::take(&mut *self.runners.lock());
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
        if let Some(error) = self.fatal.lock().take() {
            return Err(error);
        }
        if !runners.is_empty() {
            let tasks = self.health.tasks.lock();
            let alive = tasks.iter().map(|task| task.health());
            let alive = alive.filter(|task| task.alive);
            return Err(SupervisorError::Unfinished {
                names: alive.map(|task| task.name).collect(),
            });
        }
        Ok(())
    }
}

/// The handle with which a run of a task reports progress. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    task: Arc<Task>,
}

impl Heartbeat {
    /// Reports that the loop has just made progress.
    pub fn ok(&self) {
        self.task.heartbeat();
    }

    /// Sets the longest silence between two calls of [`Heartbeat::ok`]. The initial limit is [`DEFAULT_LIMIT`].
    pub fn within(&self, limit: Duration) {
        self.task.limit_ms.store(millis(limit), Ordering::Relaxed);
    }

    /// Removes the limit, for tasks that wait for others, such as a listener.
    pub fn unlimited(&self) {
        self.within(Duration::MAX);
    }
}

/// The live state of a supervisor's tasks. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Health {
    tasks: Arc<Mutex<Vec<Arc<Task>>>>,
    /// The tasks of other supervisors.
    others: Arc<Mutex<Vec<Health>>>,
}

impl Health {
    /// Returns whether every task is healthy.
    #[must_use]
    pub fn is_green(&self) -> bool {
        self.all().iter().all(|task| task.health().green)
    }

    /// Returns whether any task has a failing [`Part`], even if the task itself is healthy.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        let mut tasks = self.all().into_iter();
        tasks.any(|task| !task.failing.lock().is_empty())
    }

    /// Returns the state of each task, in start order.
    #[must_use]
    pub fn tasks(&self) -> Vec<TaskHealth> {
        self.all().iter().map(|task| task.health()).collect()
    }

    /// Adds the tasks of another supervisor.
    pub fn include(&self, other: Self) {
        self.others.lock().push(other);
    }

    fn all(&self) -> Vec<Arc<Task>> {
        let mut all = self.tasks.lock().clone();
        let others = self.others.lock().clone();
        all.extend(others.iter().flat_map(Self::all));
        all
    }

    /// Aborts tasks by name, like [`Supervisor::abort`], even after [`Supervisor::join`] has consumed the supervisor.
    pub fn abort(&self, name: &str) -> bool {
        let mut found = false;
        for task in self.all().iter().filter(|task| task.name == name) {
            if let Some(run) = task.current.lock().as_ref() {
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
    /// True if the task is running and made progress within its limit, or ended as the shutdown requires.
    pub green: bool,
    /// True if the task is running.
    pub alive: bool,
    /// The time since its last progress, in ms.
    pub age_ms: u64,
    /// The longest silence allowed, in ms; `None` for no limit.
    pub limit_ms: Option<u64>,
    /// The number of restarts.
    pub restarts: u64,
    /// The reason of its last failure, if any.
    pub last_error: Option<String>,
    /// Its loops that failed and are restarted separately.
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
    /// Failed parts, by name.
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

    fn heartbeat(&self) {
        let now = millis(self.started.elapsed());
        self.last_beat_ms.store(now, Ordering::Relaxed);
    }

    /// Runs the task until the shutdown ends it, or until a failure that ends the process. Returns that failure.
    async fn run<F, Fut, E>(
        self: &Arc<Self>,
        shutdown: &Shutdown,
        policy: Policy,
        make: F,
    ) -> Option<String>
    where
        F: Fn(Heartbeat) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let mut failures = Failures::default();
        loop {
            let steady = match policy {
                Policy::Restart { backoff } => backoff.cap,
                Policy::EndProcess => Duration::MAX,
            };
            let heartbeat = Heartbeat { task: self.clone() };
            let reason = match catch_unwind(AssertUnwindSafe(|| make(heartbeat))) {
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
                None => "ended unexpectedly".to_owned(),
                Some(reason) => reason,
            };
            *self.last_error.lock() = Some(reason.clone());
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

    /// Runs the future in a Tokio task of its own, so that a panic or an abort ends the run and not its owner.
    /// Returns the failure, if any. A run that lasts longer than `steady` counts as a recovery.
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
        let mut run = task::owned(run);
        *self.current.lock() = Some(run.abort_handle());
        self.alive.store(true, Ordering::Relaxed);
        let ended = tokio::select! {
            ended = &mut run => ended,
            () = tokio::time::sleep(steady) => {
                failures.recovered(&self.name);
                run.await
            }
        };
        self.alive.store(false, Ordering::Relaxed);
        *self.current.lock() = None;
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
            last_error: self.last_error.lock().clone(),
            failing: self.failing.lock().values().cloned().collect(),
        }
    }
}

/// Consecutive failures, so that a task that keeps failing is logged once and not at each restart.
#[derive(Default)]
struct Failures {
    count: u32,
    reason: String,
}

impl Failures {
    fn log(&mut self, task: &str, reason: &str, pause: Duration) {
        let restart_ms = millis(pause);
        if self.is_new(reason) {
            tracing::error!(task, reason, restart_ms, "task failed; restarting");
        } else {
            tracing::debug!(task, reason, restart_ms, "task failed again");
        }
    }

    /// Counts a failure, and returns whether its reason differs from the previous one.
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

/// Runs a task that no supervisor restarts. A panic ends only this task, and is counted as one of `name`.
///
/// # Errors
/// The message of the panic.
pub async fn contain(
    name: &str,
    metrics: Option<&Metrics>,
    task: impl Future<Output = ()>,
) -> Result<(), String> {
    AssertUnwindSafe(task)
        .catch_unwind()
        .await
        .map_err(|panic| {
            if let Some(metrics) = metrics {
                metrics.panicked(name);
            }
            panic_text(panic.as_ref())
        })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
