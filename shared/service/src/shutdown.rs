//! The two-stage shutdown of a process: drain first, then stop immediately.
//!
//! Holds the cancellation tokens, the timer of the grace period and the signal handlers. Does not own tasks
//! ([`crate::supervise`] does) and never ends the process itself.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lisa_core::sync::Mutex;
use lisa_core::task;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// The shutdown of one process or one embedded role. Cheap to clone; every task gets a clone.
///
/// Stages: running → draining (no new work; running work may finish) → now (the grace period is over, or a second signal
/// arrived). `now` implies `draining`.
#[derive(Clone, Debug)]
pub struct Shutdown {
    stages: Stages,
    // Owned here so that neither the timer nor the signal handler outlives the last handle.
    _driver: Arc<AbortOnDropHandle<()>>,
}

#[derive(Clone, Debug)]
struct Stages {
    draining: CancellationToken,
    now: CancellationToken,
    began: Arc<OnceLock<Instant>>,
    holds: TaskTracker,
    grace: Arc<Mutex<Duration>>,
}

/// A guard held by running work during which the process must stay observable; see [`Shutdown::hold`].
#[derive(Debug)]
pub struct Hold {
    _token: TaskTrackerToken,
}

/// The effect of SIGHUP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangup {
    /// Logs and ignores it: the program does not reload its configuration.
    Ignore,
    /// Begins the shutdown, because an interactive program has lost its terminal.
    End,
}

impl Shutdown {
    /// Creates a shutdown that the first SIGTERM or SIGINT begins. The second signal ends the grace period immediately.
    ///
    /// The handlers are installed when this returns. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// The operating system refused to install a signal handler.
    pub fn on_signals(grace: Duration) -> io::Result<Self> {
        Self::with_handlers(grace, None)
    }

    /// Creates a shutdown like [`Shutdown::on_signals`] that also handles SIGHUP, which would otherwise kill the process.
    ///
    /// # Errors
    /// As [`Shutdown::on_signals`].
    pub fn of_program(grace: Duration, hangup: Hangup) -> io::Result<Self> {
        Self::with_handlers(grace, Some(hangup))
    }

    fn with_handlers(grace: Duration, hangup: Option<Hangup>) -> io::Result<Self> {
        let mut hangups = match hangup {
            Some(_) => Some(signal(SignalKind::hangup())?),
            None => None,
        };
        let mut term = signal(SignalKind::terminate())?;
        let mut int = signal(SignalKind::interrupt())?;
        Ok(Self::driven(grace, move |stages| async move {
            let mut name = "SIGTERM";
            loop {
                tokio::select! {
                    _ = term.recv() => {}
                    _ = int.recv() => name = "SIGINT",
                    () = received(&mut hangups) => {
                        if hangup == Some(Hangup::Ignore) {
                            tracing::warn!("SIGHUP ignored: this program does not reload its configuration");
                            continue;
                        }
                        name = "SIGHUP";
                    }
                    () = stages.draining.cancelled() => {}
                }
                break;
            }
            if !stages.draining.is_cancelled() {
                tracing::info!(
                    signal = name,
                    grace_s = stages.grace.lock().as_secs_f64(),
                    "shutting down: draining"
                );
            }
            stages.begin();
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
                () = stages.now.cancelled() => return,
                () = stages.grace_ended() => return,
            }
            tracing::warn!("second signal: stopping now");
            stages.end();
        }))
    }

    /// Creates a shutdown that only [`Shutdown::begin`] or [`Shutdown::end`] begins, for tests and embedded roles.
    ///
    /// Must be called within a Tokio runtime.
    #[must_use]
    pub fn manual(grace: Duration) -> Self {
        Self::driven(grace, move |stages| async move {
            stages.draining.cancelled().await;
            stages.grace_ended().await;
        })
    }

    /// Creates the shutdown of a part of the process, which begins and ends at the latest with this one. Holds of the part are
    /// holds of the process.
    #[must_use]
    pub fn of_part(&self, grace: Duration) -> Self {
        let process = self.clone();
        let (grace, holds) = (Arc::new(Mutex::new(grace)), self.stages.holds.clone());
        Self::with_holds(grace, holds, move |stages| async move {
            stages
                .end_with(&process, process.draining().cancelled())
                .await;
        })
    }

    /// Creates the shutdown of a listener: it begins when the process is [quiet](Self::quiet), or earlier if the listener is
    /// closed, and ends at the latest with this one.
    #[must_use]
    pub fn of_listener(&self) -> Self {
        let process = self.clone();
        // The grace period of the process may change.
        let grace = self.stages.grace.clone();
        Self::with_holds(grace, TaskTracker::new(), move |stages| async move {
            stages.end_with(&process, process.quiet()).await;
        })
    }

    fn driven<F>(grace: Duration, driver: impl FnOnce(Stages) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::with_holds(Arc::new(Mutex::new(grace)), TaskTracker::new(), driver)
    }

    fn with_holds<F>(
        grace: Arc<Mutex<Duration>>,
        holds: TaskTracker,
        driver: impl FnOnce(Stages) -> F,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let now = CancellationToken::new();
        let stages = Stages {
            draining: now.child_token(),
            now,
            began: Arc::new(OnceLock::new()),
            holds,
            grace,
        };
        let handle = task::owned(driver(stages.clone()));
        Self {
            stages,
            _driver: Arc::new(handle),
        }
    }

    /// Returns the grace period: the time that running work has to finish after draining begins.
    #[must_use]
    pub fn grace(&self) -> Duration {
        *self.stages.grace.lock()
    }

    /// Replaces the grace period. Has no effect once draining has begun.
    pub fn set_grace(&self, grace: Duration) {
        *self.stages.grace.lock() = grace;
    }

    /// Returns the token that is cancelled when draining begins. Accept no new work after that.
    #[must_use]
    pub fn draining(&self) -> &CancellationToken {
        &self.stages.draining
    }

    /// Returns the token that is cancelled when the grace period ends or a second signal arrives. Hand back running work
    /// then.
    #[must_use]
    pub fn now(&self) -> &CancellationToken {
        &self.stages.now
    }

    /// Begins draining and starts the grace period. Later calls have no effect.
    pub fn begin(&self) {
        self.stages.begin();
    }

    /// Ends the grace period immediately. Begins the shutdown first if it has not begun.
    pub fn end(&self) {
        self.stages.begin();
        self.stages.end();
    }

    /// Returns the end of the grace period; `None` before draining begins.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.stages.began.get().map(|began| *began + self.grace())
    }

    /// Keeps the process observable while the caller finishes its work. As long as a hold exists, listeners continue to
    /// answer health, readiness and metrics requests while draining.
    #[must_use]
    pub fn hold(&self) -> Hold {
        Hold {
            _token: self.stages.holds.token(),
        }
    }

    /// Waits until draining has begun and no [`Hold`] is left, or until the grace period ends.
    ///
    /// # Cancel safety
    /// Safe: it only waits.
    pub async fn quiet(&self) {
        self.stages.draining.cancelled().await;
        tokio::select! {
            () = self.stages.holds.wait() => {}
            () = self.stages.now.cancelled() => {}
        }
    }
}

impl Stages {
    fn begin(&self) {
        // Stored before the token fires, so that every task woken by it finds a deadline.
        self.began.get_or_init(Instant::now);
        self.holds.close();
        self.draining.cancel();
    }

    fn end(&self) {
        self.now.cancel();
    }

    async fn grace_ended(&self) {
        let began = *self.began.get_or_init(Instant::now);
        let grace = *self.grace.lock();
        tokio::time::sleep_until(began + grace).await;
        self.end();
    }

    /// Begins when `begin` resolves, or was begun before, and ends after the grace period, or with the process.
    async fn end_with(&self, process: &Shutdown, begin: impl Future<Output = ()>) {
        tokio::select! {
            () = begin => self.begin(),
            () = self.draining.cancelled() => {}
        }
        tokio::select! {
            () = self.grace_ended() => {}
            () = process.now().cancelled() => self.end(),
        }
    }
}

/// Waits for a signal; forever if there is no handler.
async fn received(signal: &mut Option<Signal>) {
    if let Some(signal) = signal
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn begin_drains_at_once_and_ends_the_grace_later() {
        let shutdown = Shutdown::manual(Duration::from_millis(30));
        assert!(shutdown.deadline().is_none());
        shutdown.begin();
        assert!(shutdown.draining().is_cancelled());
        assert!(!shutdown.now().is_cancelled());
        let deadline = shutdown.deadline().unwrap();
        shutdown.now().cancelled().await;
        assert!(Instant::now() >= deadline);
    }

    #[tokio::test]
    async fn end_implies_draining() {
        let shutdown = Shutdown::manual(LONG);
        shutdown.end();
        assert!(shutdown.draining().is_cancelled() && shutdown.now().is_cancelled());
    }

    #[tokio::test]
    async fn quiet_waits_for_the_last_hold() {
        let shutdown = Shutdown::manual(LONG);
        let hold = shutdown.hold();
        shutdown.begin();
        let early = tokio::time::timeout(Duration::from_millis(20), shutdown.quiet()).await;
        assert!(early.is_err());
        drop(hold);
        shutdown.quiet().await;
    }

    #[tokio::test]
    async fn a_listener_has_the_grace_period_that_the_process_has_now() {
        let process = Shutdown::manual(Duration::from_millis(1));
        let listener = process.of_listener();
        process.set_grace(LONG);
        listener.begin();
        assert_eq!(listener.grace(), LONG);
    }

    #[tokio::test]
    async fn the_first_signal_drains_and_the_second_stops_now() {
        let shutdown = Shutdown::on_signals(LONG).unwrap();
        let kill = || {
            let pid = std::process::id().to_string();
            let status = std::process::Command::new("kill")
                .args(["-TERM", &pid])
                .status();
            assert!(status.unwrap().success());
        };
        kill();
        shutdown.draining().cancelled().await;
        assert!(!shutdown.now().is_cancelled());
        kill();
        shutdown.now().cancelled().await;
    }
}
