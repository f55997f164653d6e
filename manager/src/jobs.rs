//! The periodic work of a manager, one module for each job: a `run_once` that gives a report.
//!
//! When they run is [`crate::schedule`]'s business. Each job is safe in any number of managers at a time.

pub(crate) mod clean;
pub(crate) mod doctor;
pub(crate) mod reclaim;
mod round;
pub(crate) mod statistics;
pub(crate) mod sweep;

use lisa_shared::broker::{Broker, BrokerError};
use lisa_shared::config::ManagerConfig;
use lisa_shared::metrics::Metrics;
use lisa_shared::shutdown::Shutdown;
use lisa_shared::topic::Topic;
use std::sync::Arc;
use tokio::sync::Mutex as AsyncMutex;
use tokio_util::sync::CancellationToken;

use crate::schedule::Schedule;
use crate::share::Shares;

/// What every job needs.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    pub(crate) broker: Broker,
    pub(crate) metrics: Metrics,
    pub(crate) shares: Shares,
    /// Held while a topic is examined: one at a time in a process, by whomever.
    pub(crate) examining: Arc<AsyncMutex<()>>,
    /// Cancelled when the process drains: jobs stop between batches then.
    pub(crate) draining: CancellationToken,
}

impl Tools {
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }
}

/// Why a run failed, in part: whatever could be served was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    /// A server did not answer.
    #[error(transparent)]
    Redis(#[from] BrokerError),
    /// A server was away, or had not answered before in the same run.
    #[error("Redis {server} unavailable; its shards were skipped")]
    Away {
        /// Its address.
        server: String,
    },
    /// What is stored of a topic is damaged; the others were served.
    #[error("topic {topic}: {error}; the other topics were served")]
    Topic {
        /// The first such topic.
        topic: Topic,
        /// What is wrong with it.
        error: String,
    },
}

impl JobError {
    fn topic(topic: &Topic, error: &dyn std::fmt::Display) -> Self {
        Self::Topic {
            topic: topic.clone(),
            error: error.to_string(),
        }
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
