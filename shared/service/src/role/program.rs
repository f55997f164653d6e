//! A program that runs a role until a signal, and reloads its configuration while it runs.
//!
//! A reload starts the role once more, beside the running one, with the new configuration. Once it runs, the listeners switch to
//! it, and the earlier one drains as at a shutdown. If it does not start, the earlier one goes on. So every setting can be
//! reloaded, and no connection of a client ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::changed_files::ChangedFiles;
use super::listeners::Claims;
use super::{Flags, Process, Runtime, StartError, descriptors, prepare, systemd};
use crate::config::{Config, ConfigError, Loaded, SinkSecrets};
use crate::shutdown::Shutdown;
use lisa_core::task;

/// The time within which the role must start with a new configuration.
const START_WITHIN: Duration = Duration::from_secs(30);
/// The time after which a start that failed is tried again: Redis may have been unavailable.
const RETRY_EVERY: Duration = Duration::from_mins(1);
/// The number of earlier starts that may drain at a time. Until one has ended, the next reload waits.
const DRAINING: usize = 4;
/// The time between the switch of the listeners and the drain. Requests that arrived before the switch reach their earlier routes
/// within it; draining routes refuse requests.
const SWITCHED: Duration = Duration::from_millis(100);

/// A program that runs a role. SIGTERM and SIGINT shut it down. SIGHUP reloads the configuration, and a changed file that the
/// configuration names, such as one with a password, reloads the files.
#[derive(Debug)]
pub struct Program {
    role: &'static str,
    flags: Flags,
    adjust: fn(&mut Config),
    loaded: Loaded,
    files: ChangedFiles,
    hangups: Signal,
}

/// The cause of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// SIGHUP: everything is read again.
    Signal,
    /// A changed file that the configuration names: these files are read again.
    Files,
}

/// One start of the role, with one configuration.
struct Generation {
    shutdown: Shutdown,
    claims: Arc<Claims>,
    task: AbortOnDropHandle<Result<(), StartError>>,
}

impl Program {
    /// Loads the configuration and sets up logging, as [`prepare`] does. From this call on, SIGHUP does not end the process. `role` names the roles of the process, for example
    /// `consumer` or `manager+producer`. `adjust` changes each loaded configuration.
    ///
    /// # Errors
    /// As [`prepare`].
    ///
    /// # Panics
    /// If called outside a Tokio runtime.
    pub fn prepare(
        role: &'static str,
        flags: Flags,
        adjust: fn(&mut Config),
    ) -> Result<Self, StartError> {
        let hangups = signal(SignalKind::hangup()).map_err(StartError::Signals)?;
        let mut loaded = prepare(&flags)?;
        adjust(&mut loaded.config);
        Ok(Self {
            role,
            flags,
            adjust,
            files: ChangedFiles::default().after_load(&loaded.files),
            loaded,
            hangups,
        })
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// Runs the role to its end. `run` runs it with one configuration, and is called again for each reload.
    ///
    /// # Errors
    /// [`StartError`] of the first start, or of the role while it runs. A reload that fails is only logged.
    ///
    /// # Cancel safety
    /// Dropping the future aborts all tasks.
    pub async fn run<F, Fut>(mut self, run: F) -> Result<(), StartError>
    where
        F: Fn(Runtime) -> Fut,
        Fut: Future<Output = Result<(), StartError>> + Send + 'static,
    {
        let shutdown = Shutdown::on_signals(self.config().shutdown.grace);
        let shutdown = shutdown.map_err(StartError::Signals)?;
        let process = Process::new(self.role, shutdown.clone(), self.config())?;
        let (mut current, _) = Generation::start(&process, self.config(), &run, false)?;
        let mut earlier = JoinSet::new();
        let (mut failed, mut retry) = (None, None);
        let ended = loop {
            let may_reload = earlier.len() < DRAINING;
            let cause = tokio::select! {
                ended = &mut current.task => break ended,
                Some(_) = earlier.join_next() => continue,
                _ = self.hangups.recv(), if may_reload => Cause::Signal,
                () = self.files.changed(), if may_reload => Cause::Files,
                cause = due(&retry), if may_reload => {
                    retry = None;
                    cause
                }
            };
            if shutdown.draining().is_cancelled() {
                continue;
            }
            systemd::reloading().await;
            // A file that changes while it is read is then read again.
            let files = self.files.now().await;
            let started = match self.load(cause) {
                Ok(Some(loaded)) => {
                    let claims = current.claims.clone();
                    let started = tokio::select! {
                        started = self.start(&process, &loaded, &claims, &mut earlier, &run) => started,
                        ended = &mut current.task => break ended,
                    };
                    started.map(|next| Some((next, loaded)))
                }
                Ok(None) => Ok(None),
                Err(error) => Err(error.into()),
            };
            let result = match started {
                Ok(Some((next, loaded))) => {
                    self.files = files.after_load(&loaded.files);
                    self.log_changes(&loaded);
                    process.shutdown.set_grace(loaded.config.shutdown.grace);
                    self.loaded = loaded;
                    let before = std::mem::replace(&mut current, next);
                    earlier.spawn(before.drain());
                    "applied"
                }
                Ok(None) => {
                    tracing::info!("configuration reloaded: nothing has changed");
                    "unchanged"
                }
                Err(error) => {
                    // To read everything again includes the files.
                    let again = failed.filter(|of| *of == Cause::Signal).unwrap_or(cause);
                    failed = Some(again);
                    if !matches!(error, StartError::Config(_)) {
                        retry = Some((Instant::now() + RETRY_EVERY, again));
                    }
                    let text = format!("the new configuration is not in effect: {error}");
                    let before = process.rejected.lock().replace(text.clone());
                    // A start that is tried again each minute would log the same again.
                    if before.as_ref() != Some(&text) {
                        tracing::error!("{text}");
                    }
                    "failed"
                }
            };
            // New contents of files do not make a configuration good that was refused.
            let is_settled = cause == Cause::Signal || failed == Some(Cause::Files);
            if result != "failed" && is_settled {
                (failed, retry) = (None, None);
                process.rejected.lock().take();
            }
            process.metrics.reloaded(result);
            systemd::reloaded().await;
        };
        // If the role ended by itself, its earlier starts must end, too.
        shutdown.begin();
        while earlier.join_next().await.is_some() {}
        process.end(joined(ended)).await
    }

    /// Loads the configuration again. Returns `None` if nothing has changed.
    fn load(&self, cause: Cause) -> Result<Option<Loaded>, ConfigError> {
        let mut loaded = match cause {
            Cause::Signal => self.flags.load(SinkSecrets::Required)?,
            Cause::Files => self.loaded.read_files_again()?,
        };
        (self.adjust)(&mut loaded.config);
        // A file that is only read later, such as a certificate, is not part of the configuration.
        let is_same = matches!(cause, Cause::Signal) && loaded.config == self.loaded.config;
        if matches!(cause, Cause::Signal) {
            for warning in &loaded.warnings {
                tracing::warn!("{warning}");
            }
        }
        Ok((!is_same).then_some(loaded))
    }

    /// Starts the role with a new configuration, beside the current one.
    async fn start<F, Fut>(
        &self,
        process: &Arc<Process>,
        loaded: &Loaded,
        current: &Claims,
        earlier: &mut JoinSet<()>,
        run: &F,
    ) -> Result<Generation, StartError>
    where
        F: Fn(Runtime) -> Fut,
        Fut: Future<Output = Result<(), StartError>> + Send + 'static,
    {
        descriptors::raise(loaded.config.http.max_connections);
        let (mut next, started) = Generation::start(process, &loaded.config, run, true)?;
        let error = match timeout(START_WITHIN, started).await {
            Ok(Ok(())) => match process.set_certificate(&loaded.config) {
                Ok(()) => {
                    process.listeners.switch(&next.claims);
                    return Ok(next);
                }
                Err(error) => error,
            },
            Ok(Err(_)) => {
                process.listeners.abandon(&next.claims, current);
                let ended = joined((&mut next.task).await);
                let stopped = "the role ended before it was ready".to_owned();
                return Err(ended.err().unwrap_or(StartError::Unavailable(stopped)));
            }
            Err(_) => StartError::Unavailable(format!("not ready within {START_WITHIN:?}")),
        };
        process.listeners.abandon(&next.claims, current);
        // It may hold deliveries already.
        earlier.spawn(next.drain());
        Err(error)
    }

    fn log_changes(&self, loaded: &Loaded) {
        let changed = self.loaded.changes(loaded);
        if changed.iter().any(|key| key == "log.format") {
            tracing::warn!("log.format has changed: restart the process to apply it");
        }
        let changed = match changed.is_empty() {
            true => "contents of files".to_owned(),
            false => changed.join(", "),
        };
        tracing::info!(changed, "configuration reloaded");
    }
}

impl Generation {
    /// Starts the role. The receiver gets a message when it runs.
    fn start<F, Fut>(
        process: &Arc<Process>,
        config: &Config,
        run: &F,
        is_reload: bool,
    ) -> Result<(Self, oneshot::Receiver<()>), StartError>
    where
        F: Fn(Runtime) -> Fut,
        Fut: Future<Output = Result<(), StartError>> + Send + 'static,
    {
        let shutdown = process.shutdown.of_part(config.shutdown.grace);
        let mut runtime = Runtime::of_process(process.clone(), config.clone(), shutdown.clone())?;
        let (sender, started) = oneshot::channel();
        runtime.started = Some(sender);
        runtime.is_reload = is_reload;
        let claims = runtime.claims.clone();
        let task = task::owned(run(runtime));
        let generation = Self {
            shutdown,
            claims,
            task,
        };
        Ok((generation, started))
    }

    /// Drains the role, whose listeners serve a later configuration.
    async fn drain(self) {
        sleep(SWITCHED).await;
        self.shutdown.begin();
        if let Err(error) = joined(self.task.await) {
            tracing::warn!(%error, "the earlier start of the role ended with an error");
        }
    }
}

/// Waits for the next try of a start that failed; forever without one.
async fn due(retry: &Option<(Instant, Cause)>) -> Cause {
    match retry {
        Some((at, cause)) => {
            sleep_until(*at).await;
            *cause
        }
        None => std::future::pending().await,
    }
}

/// Returns the result of a task. Panics if it panicked.
fn joined(ended: Result<Result<(), StartError>, JoinError>) -> Result<(), StartError> {
    match ended {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(StartError::Unavailable("the role was aborted".to_owned())),
        },
    }
}
