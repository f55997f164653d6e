//! Runs the periodic jobs at the times of their cron expressions.
//!
//! A thin shell around tokio-cron-scheduler, which is only a trigger here: it starts runs that overlap and does not wait
//! for them at its end. What a job does is in [`crate::jobs`].

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use lisa_shared::config::Cron;
use lisa_shared::metrics::Metrics;
use lisa_shared::shutdown::Shutdown;
use lisa_shared::supervise::{Beat, panic_text};
use lisa_shared::time::millis;
use serde::Serialize;
use tokio::sync::Mutex as AsyncMutex;
use tokio_cron_scheduler::{Job as Trigger, JobScheduler, JobSchedulerError};
use tokio_util::sync::CancellationToken;

const EVERY_SECOND: &str = "* * * * * *";

/// What a run gives: a report as JSON, or why it failed.
type Outcome = Result<serde_json::Value, String>;
type Run = Box<dyn Fn() -> BoxFuture<'static, Outcome> + Send + Sync>;

/// All jobs of a manager. A cheap clone.
#[derive(Clone)]
pub struct Schedule {
    jobs: Arc<BTreeMap<&'static str, Arc<Job>>>,
    shutdown: Shutdown,
}

/// What is known of a job.
#[derive(Clone, Debug, Serialize)]
pub struct JobState {
    /// Its name.
    pub name: &'static str,
    /// When it runs, in UTC.
    pub cron: String,
    /// Whether it runs now.
    pub running: bool,
    /// The last run that ended.
    pub last: Option<LastRun>,
}

/// A run that ended.
#[derive(Clone, Debug, Serialize)]
pub struct LastRun {
    /// When it began, on this host's clock.
    pub started_at: String,
    /// How long it took, in ms.
    pub took_ms: u64,
    /// Whether it did its work.
    pub ok: bool,
    /// What it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<serde_json::Value>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

struct Job {
    name: &'static str,
    cron: Cron,
    metrics: Metrics,
    run: Run,
    /// Held while it runs.
    turn: AsyncMutex<()>,
    last: Mutex<Option<LastRun>>,
}

impl Schedule {
    /// A schedule without jobs.
    pub(crate) fn new(shutdown: &Shutdown) -> Self {
        Self {
            jobs: Arc::default(),
            shutdown: shutdown.clone(),
        }
    }

    /// Adds a job; `run` begins one run and gives its report.
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
            turn: AsyncMutex::new(()),
            last: Mutex::new(None),
        };
        Arc::make_mut(&mut self.jobs).insert(name, Arc::new(job));
        self
    }

    /// What is known of each job, by name.
    pub fn jobs(&self) -> Vec<JobState> {
        self.jobs.values().map(|job| job.state()).collect()
    }

    /// Runs a job now, after the run that may be under way, and gives the result; `None` for a name that no job has.
    ///
    /// # Cancel safety
    /// Dropping the future cuts the run off; each of its steps is whole.
    pub async fn run_now(&self, name: &str) -> Option<LastRun> {
        let job = self.jobs.get(name)?;
        let turn = job.turn.lock().await;
        let last = job.run(&self.shutdown).await;
        drop(turn);
        Some(last)
    }

    /// Triggers the jobs until the shutdown, then waits for those that run.
    pub(crate) async fn keep(
        &self,
        beat: Beat,
        shutdown: &Shutdown,
    ) -> Result<(), JobSchedulerError> {
        let mut scheduler = JobScheduler::new().await?;
        // If this future is dropped, the scheduler's own task goes on: its triggers must do nothing then.
        let stopped = CancellationToken::new();
        let _stop = stopped.clone().drop_guard();
        for job in self.jobs.values() {
            let (job, shutdown, stopped) = (job.clone(), shutdown.clone(), stopped.clone());
            let cron = job.cron.to_string();
            let trigger = Trigger::new_async(cron.as_str(), move |_, _| {
                let (job, shutdown, stopped) = (job.clone(), shutdown.clone(), stopped.clone());
                Box::pin(async move {
                    if stopped.is_cancelled() || shutdown.draining().is_cancelled() {
                        return;
                    }
                    match job.turn.try_lock() {
                        Ok(_turn) => {
                            job.run(&shutdown).await;
                        }
                        Err(_) => tracing::debug!(job = job.name, "still running: skipped"),
                    }
                })
            })?;
            scheduler.add(trigger).await?;
        }
        let heart = Trigger::new(EVERY_SECOND, move |_, _| {
            if !stopped.is_cancelled() {
                beat.ok();
            }
        })?;
        scheduler.add(heart).await?;
        scheduler.start().await?;
        shutdown.draining().cancelled().await;
        scheduler.shutdown().await?;
        for job in self.jobs.values() {
            let _ended = job.turn.lock().await;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.jobs.keys()).finish()
    }
}

impl Job {
    /// Runs it once, to its end or that of the grace; the caller holds its turn.
    async fn run(&self, shutdown: &Shutdown) -> LastRun {
        let (started, started_at) = (Instant::now(), jiff::Timestamp::now());
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
        let before = self.last().replace(last.clone());
        self.tell(&last, before.is_none_or(|before| before.ok));
        last
    }

    /// Logs a change between well and failing, so that a job that runs each second says it once.
    fn tell(&self, last: &LastRun, was_well: bool) {
        if last.error.is_some() {
            self.metrics.job_failed(self.name);
        }
        match &last.error {
            Some(error) if was_well => tracing::warn!(job = self.name, error, "job failed"),
            Some(error) => tracing::debug!(job = self.name, error, "job failed again"),
            None if !was_well => tracing::info!(job = self.name, "job works again"),
            None => {}
        }
    }

    fn state(&self) -> JobState {
        JobState {
            name: self.name,
            cron: self.cron.to_string(),
            running: self.turn.try_lock().is_err(),
            last: self.last().clone(),
        }
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Option<LastRun>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn schedule(shutdown: &Shutdown) -> Schedule {
        Schedule::new(shutdown)
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
                        1 => Err("redis is away"),
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
            "redis is away"
        );
        assert_eq!(
            schedule.run_now("clean").await.unwrap().report,
            Some(2.into())
        );
        assert!(schedule.run_now("sweep").await.is_none());
        assert!(schedule.jobs()[0].last.as_ref().unwrap().ok);
        let text = metrics.encode();
        assert!(
            text.contains(r#"lisa_job_failures_total{job="clean"} 2"#),
            "{text}"
        );
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
        let supervisor = lisa_shared::supervise::Supervisor::new(&shutdown);
        let (kept, end) = (schedule.clone(), shutdown.clone());
        supervisor.spawn(
            "schedule",
            lisa_shared::supervise::Policy::EndProcess,
            move |beat| {
                let (kept, end) = (kept.clone(), end.clone());
                async move { kept.keep(beat, &end).await }
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
