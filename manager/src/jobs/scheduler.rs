//! Runs the periodic jobs at the times of their cron expressions.
//!
//! A thin layer over tokio-cron-scheduler, which is only a trigger here: by itself it starts runs that overlap, and does not
//! wait for them at its end. The jobs themselves are in [`crate::jobs`].

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lisa_core::sync::Mutex;
use lisa_core::time::{UnixMs, format_age, format_duration, millis};
use lisa_service::config::Cron;
use lisa_service::cron::TimeZone;
use lisa_service::metrics::Metrics;
use lisa_service::panics::panic_text;
use lisa_service::shutdown::Shutdown;
use lisa_service::supervise::Heartbeat;
use serde::Serialize;
use tokio::sync::Mutex as AsyncMutex;
use tokio_cron_scheduler::{Job as Trigger, JobScheduler as CronScheduler, JobSchedulerError};
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use super::JobReport;

const EVERY_SECOND: &str = "* * * * * *";
/// The number of intervals of its cron expression from which a run is reported as long.
const LONG_RUN: u32 = 10;

/// The result of a run: a report as JSON, or the error.
type Outcome = Result<serde_json::Value, String>;
type Run = Box<dyn Fn() -> BoxFuture<'static, Outcome> + Send + Sync>;

/// The scheduler of all jobs of a manager. Cheap to clone.
#[derive(Clone)]
pub struct JobScheduler {
    jobs: Arc<BTreeMap<&'static str, Arc<Job>>>,
    shutdown: Shutdown,
}

/// The state of a job.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct JobState {
    /// The name of the job.
    pub name: &'static str,
    /// The cron expression of its runs, in UTC.
    pub cron: String,
    /// True while it runs.
    pub running: bool,
    /// The last run that ended.
    pub last: Option<LastRun>,
}

/// A run of a job that ended.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LastRun {
    /// The start of the run, on this host's clock.
    pub started_at: String,
    /// The duration of the run, in ms.
    pub took_ms: u64,
    /// True if the run succeeded.
    pub ok: bool,
    /// The report of a run that succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<JobReport>)]
    pub report: Option<serde_json::Value>,
    /// The error of a run that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

struct Job {
    name: &'static str,
    cron: Cron,
    metrics: Metrics,
    run: Run,
    /// Locked while the job runs.
    running: AsyncMutex<()>,
    /// The start of the run, while the job runs.
    since: Mutex<Option<(Instant, UnixMs)>>,
    last: Mutex<Option<LastRun>>,
}

impl JobScheduler {
    /// Creates a scheduler without jobs.
    pub(crate) fn new(shutdown: &Shutdown) -> Self {
        Self {
            jobs: Arc::default(),
            shutdown: shutdown.clone(),
        }
    }

    /// Adds a job. `run` starts one run and returns its report.
    pub(crate) fn add<F, Fut, R, E>(
        mut self,
        name: &'static str,
        cron: &Cron,
        metrics: &Metrics,
        run: F,
    ) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: Serialize,
        E: std::fmt::Display,
    {
        let run: Run = Box::new(move || {
            let run = run();
            Box::pin(async move {
                let report = run.await.map_err(|error| error.to_string())?;
                serde_json::to_value(report).map_err(|error| error.to_string())
            })
        });
        let job = Job {
            name,
            cron: cron.clone(),
            metrics: metrics.clone(),
            run,
            running: AsyncMutex::new(()),
            since: Mutex::new(None),
            last: Mutex::new(None),
        };
        Arc::make_mut(&mut self.jobs).insert(name, Arc::new(job));
        self
    }

    /// Returns the state of each job, by name.
    pub fn jobs(&self) -> Vec<JobState> {
        self.jobs.values().map(|job| job.state()).collect()
    }

    /// Returns a sentence for each job that has run for 10 times as long as the interval between its runs.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let jobs = self.jobs.values();
        jobs.filter_map(|job| job.warning(Instant::now())).collect()
    }

    /// Runs a job now, after a run that may be under way, and returns the result; `None` if no job has this name.
    ///
    /// # Cancel safety
    /// Dropping the future aborts the run. Each of its steps is atomic.
    pub async fn run_now(&self, name: &str) -> Option<LastRun> {
        let job = self.jobs.get(name)?;
        let running = job.running.lock().await;
        let last = job.run(&self.shutdown).await;
        drop(running);
        Some(last)
    }

    /// Triggers the jobs until the shutdown begins, then waits for those that run.
    pub(crate) async fn keep(
        &self,
        heartbeat: Heartbeat,
        shutdown: &Shutdown,
    ) -> Result<(), JobSchedulerError> {
        let mut scheduler = CronScheduler::new().await?;
        // If this future is dropped, the scheduler's own task continues: its triggers must then do nothing.
        let stopped = CancellationToken::new();
        let _stop = stopped.clone().drop_guard();
        for job in self.jobs.values() {
            let cron = job.cron.to_string();
            // The scheduler's own tasks never end, and keep what a trigger owns, such as a connection.
            let (job, shutdown, stopped) = (Arc::downgrade(job), shutdown.clone(), stopped.clone());
            let trigger = Trigger::new_async(cron.as_str(), move |_, _| {
                let (job, shutdown, stopped) = (job.upgrade(), shutdown.clone(), stopped.clone());
                Box::pin(async move {
                    if stopped.is_cancelled() || shutdown.draining().is_cancelled() {
                        return;
                    }
                    let Some(job) = job else { return };
                    match job.running.try_lock() {
                        Ok(_running) => {
                            job.run(&shutdown).await;
                        }
                        Err(_) => {
                            tracing::debug!(job = job.name, "job still running; trigger skipped")
                        }
                    }
                })
            })?;
            scheduler.add(trigger).await?;
        }
        let heart = Trigger::new(EVERY_SECOND, move |_, _| {
            if !stopped.is_cancelled() {
                heartbeat.ok();
            }
        })?;
        scheduler.add(heart).await?;
        scheduler.start().await?;
        shutdown.draining().cancelled().await;
        scheduler.shutdown().await?;
        for job in self.jobs.values() {
            let _ended = job.running.lock().await;
        }
        Ok(())
    }
}

impl std::fmt::Debug for JobScheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.jobs.keys()).finish()
    }
}

/// Marks a job as running until it is dropped, also if the run is aborted.
struct Since<'j>(&'j Mutex<Option<(Instant, UnixMs)>>);

impl<'j> Since<'j> {
    fn begin(since: &'j Mutex<Option<(Instant, UnixMs)>>, now: (Instant, UnixMs)) -> Self {
        *since.lock() = Some(now);
        Self(since)
    }
}

impl Drop for Since<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

impl Job {
    /// Runs the job once, until it ends or the grace period does. The caller holds the lock `running`.
    async fn run(&self, shutdown: &Shutdown) -> LastRun {
        let (started, started_at) = (Instant::now(), jiff::Timestamp::now());
        let _since = Since::begin(&self.since, (started, started_at.into()));
        let run = AssertUnwindSafe(async { (self.run)().await }).catch_unwind();
        let outcome = tokio::select! {
            outcome = run => outcome.unwrap_or_else(|panic| Err(panic_text(&*panic))),
            () = shutdown.now().cancelled() => Err("cut off by the shutdown".to_owned()),
        };
        let took = started.elapsed();
        self.metrics.job(self.name, took);
        let (report, error) = match outcome {
            Ok(report) => (Some(report), None),
            Err(error) => (None, Some(error)),
        };
        let last = LastRun {
            started_at: format!("{started_at:.3}"),
            took_ms: millis(took),
            ok: error.is_none(),
            report,
            error,
        };
        let before = self.last.lock().replace(last.clone());
        self.log(&last, before.is_none_or(|before| before.ok));
        last
    }

    fn warning(&self, now: Instant) -> Option<String> {
        let (started, started_at) = (*self.since.lock())?;
        let next = |after| self.cron.next(&TimeZone::UTC, after);
        let due = next(started_at)?;
        let interval = next(due)?.since(due);
        let took = now.saturating_duration_since(started);
        (took >= interval * LONG_RUN).then(|| {
            let (took, interval) = (format_age(millis(took)), format_duration(interval));
            format!(
                "job {} has run for {took}; its interval is {interval}",
                self.name
            )
        })
    }

    /// Logs the change between success and failure, so that a job that runs every second logs it once.
    fn log(&self, last: &LastRun, was_ok: bool) {
        match last.error {
            Some(_) => self.metrics.job_failed(self.name),
            None => {
                let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
                self.metrics.job_succeeded(self.name, UnixMs::new(now));
            }
        }
        match &last.error {
            Some(error) if was_ok => tracing::warn!(job = self.name, error, "job failed"),
            Some(error) => tracing::debug!(job = self.name, error, "job failed again"),
            None if !was_ok => tracing::info!(job = self.name, "job succeeds again"),
            None => {}
        }
    }

    fn state(&self) -> JobState {
        JobState {
            name: self.name,
            cron: self.cron.to_string(),
            running: self.running.try_lock().is_err(),
            last: self.last.lock().clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    fn metrics() -> Metrics {
        Metrics::new(
            prometheus_client::registry::Registry::default(),
            "0",
            "manager",
        )
    }

    fn schedule(shutdown: &Shutdown) -> JobScheduler {
        JobScheduler::new(shutdown)
    }

    #[tokio::test]
    async fn a_job_that_panics_or_fails_is_counted_and_runs_again() {
        let metrics = metrics();
        let shutdown = Shutdown::manual(Duration::from_secs(5));
        let count = Arc::new(AtomicU32::new(0));
        let cron = "0 0 0 1 1 *".parse().unwrap();
        let schedule = schedule(&shutdown).add("clean", &cron, &metrics, {
            let count = count.clone();
            move || {
                let run = count.fetch_add(1, Ordering::Relaxed);
                async move {
                    match run {
                        0 => panic!("boom"),
                        1 => Err("Redis unavailable"),
                        run => Ok(run),
                    }
                }
            }
        });
        let error = |last: Option<LastRun>| last.unwrap().error;
        assert_eq!(
            error(schedule.run_now("clean").await).unwrap(),
            "panicked: boom"
        );
        assert_eq!(
            error(schedule.run_now("clean").await).unwrap(),
            "Redis unavailable"
        );
        assert_eq!(
            schedule.run_now("clean").await.unwrap().report,
            Some(2.into())
        );
        assert!(schedule.run_now("sweep").await.is_none());
        assert!(schedule.jobs()[0].last.as_ref().unwrap().ok);
        let text = metrics.encode();
        assert!(
            text.contains(r#"lisa_job_failures_total{name="clean"} 2"#),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_job_that_runs_for_ten_intervals_is_reported_until_it_ends() {
        let shutdown = Shutdown::manual(Duration::from_secs(5));
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let cron = "*/2 * * * * *".parse().unwrap();
        let schedule = schedule(&shutdown).add("reclaim", &cron, &metrics(), {
            let gate = gate.clone();
            move || {
                let gate = gate.clone();
                async move {
                    gate.acquire().await.unwrap().forget();
                    Ok::<_, String>(())
                }
            }
        });
        let run = schedule.run_now("reclaim");
        tokio::pin!(run);
        assert!(futures_util::poll!(&mut run).is_pending());
        let job = &schedule.jobs["reclaim"];
        let (started, _) = job.since.lock().unwrap();
        let after = |secs| job.warning(started + Duration::from_secs(secs));
        assert_eq!(after(19), None);
        let expected = "job reclaim has run for 20s; its interval is 2s";
        assert_eq!(after(20).as_deref(), Some(expected));
        gate.add_permits(1);
        assert!(run.await.unwrap().ok);
        assert_eq!(job.warning(Instant::now() + Duration::from_secs(60)), None);
    }

    #[tokio::test]
    async fn runs_of_one_job_never_overlap_and_the_end_waits_for_them() {
        let shutdown = Shutdown::manual(Duration::from_secs(30));
        let (running, most, ended) = <(Arc<AtomicU32>, Arc<AtomicU32>, Arc<AtomicU32>)>::default();
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let schedule =
            schedule(&shutdown).add("clean", &"* * * * * *".parse().unwrap(), &metrics(), {
                let (running, most, ended, gate) =
                    (running.clone(), most.clone(), ended.clone(), gate.clone());
                move || {
                    let (running, most, ended, gate) =
                        (running.clone(), most.clone(), ended.clone(), gate.clone());
                    async move {
                        let now = running.fetch_add(1, Ordering::Relaxed) + 1;
                        most.fetch_max(now, Ordering::Relaxed);
                        gate.acquire().await.unwrap().forget();
                        running.fetch_sub(1, Ordering::Relaxed);
                        ended.fetch_add(1, Ordering::Relaxed);
                        Ok::<_, String>(())
                    }
                }
            });
        let supervisor = lisa_service::supervise::Supervisor::new(&shutdown);
        let (kept, end) = (schedule.clone(), shutdown.clone());
        supervisor.spawn(
            "schedule",
            lisa_service::supervise::Policy::EndProcess,
            move |heartbeat| {
                let (kept, end) = (kept.clone(), end.clone());
                async move { kept.keep(heartbeat, &end).await }
            },
        );
        while !schedule.jobs()[0].running {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Long enough for two more triggers.
        tokio::time::sleep(Duration::from_millis(2200)).await;
        shutdown.begin();
        gate.add_permits(1);
        supervisor.join().await.unwrap();
        assert_eq!(most.load(Ordering::Relaxed), 1);
        assert_eq!(ended.load(Ordering::Relaxed), 1);
    }
}
