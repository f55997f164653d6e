//! The periodic work of a manager, one module for each job: a `run_once` that gives a report.
//!
//! When they run is [`crate::schedule`]'s business. Each job is safe in any number of managers at a time.

pub(crate) mod clean;
pub(crate) mod doctor;
pub(crate) mod reclaim;
pub(crate) mod statistics;
pub(crate) mod sweep;

use lisa_shared::broker::{Broker, BrokerError};
use lisa_shared::config::ManagerConfig;
use lisa_shared::metrics::Metrics;
use lisa_shared::shutdown::Shutdown;
use lisa_shared::topic::Topic;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use crate::schedule::Schedule;
use crate::share::Shares;

/// What every job needs.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    pub(crate) broker: Broker,
    pub(crate) metrics: Metrics,
    pub(crate) shares: Shares,
    /// Cancelled when the process drains: jobs stop between batches then.
    pub(crate) draining: CancellationToken,
}

impl Tools {
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }
}

/// Why a run failed, in whole or in part.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    /// Redis could not be asked: the run ended there.
    #[error(transparent)]
    Redis(#[from] BrokerError),
    /// What is stored of a topic is damaged; the others were served.
    #[error("topic {topic}: {error}; the other topics were served")]
    Topic {
        /// The first such topic.
        topic: Topic,
        /// What is wrong with it.
        error: BrokerError,
    },
}

/// Damaged topics of one run: a person must mend them, and until then the others must not suffer.
#[derive(Debug, Default)]
pub(crate) struct Damage(Option<JobError>);

impl Damage {
    /// Passes on what a call for a topic gave; nothing, and a note, if this topic is at fault. A group that was removed
    /// meanwhile, or a shard that was given up, gives nothing and is nobody's fault.
    ///
    /// # Errors
    /// Any other failure: it ends the run.
    pub(crate) fn beside<T>(
        &mut self,
        topic: &Topic,
        called: Result<T, BrokerError>,
    ) -> Result<Option<T>, JobError> {
        match called {
            Err(BrokerError::UnknownGroup { .. } | BrokerError::ShardGone { .. }) => Ok(None),
            Err(error) if error.is_of_one_topic() => {
                let topic = topic.clone();
                self.0.get_or_insert(JobError::Topic { topic, error });
                Ok(None)
            }
            called => Ok(Some(called?)),
        }
    }

    /// Ends the run.
    pub(crate) fn report<T>(self, report: T) -> Result<T, JobError> {
        self.0.map_or(Ok(report), Err)
    }
}

/// Puts all jobs on a schedule.
pub(crate) fn schedule(tools: &Tools, config: &ManagerConfig, shutdown: &Shutdown) -> Schedule {
    let crons = &config.jobs;
    let reclaim = Arc::new(reclaim::Reclaim::new(tools.clone()));
    let clean = Arc::new(clean::Clean::new(tools.clone()));
    let statistics = Arc::new(statistics::Statistics::new(tools.clone()));
    let sweep = tools.clone();
    let doctor = Arc::new(doctor::Doctor::new(tools.clone(), config.doctor));
    let metrics = &tools.metrics;
    Schedule::new(shutdown)
        .add("reclaim", &crons.reclaim, metrics, move || {
            let job = reclaim.clone();
            async move { job.run_once().await }
        })
        .add("clean", &crons.clean, metrics, move || {
            let job = clean.clone();
            async move { job.run_once().await }
        })
        .add("statistics", &crons.statistics, metrics, move || {
            let job = statistics.clone();
            async move { job.run_once().await }
        })
        .add("sweep", &crons.sweep, metrics, move || {
            let tools = sweep.clone();
            async move { sweep::run_once(&tools).await }
        })
        .add("doctor", &crons.doctor, metrics, move || {
            let job = doctor.clone();
            async move { job.run_once().await }
        })
}
