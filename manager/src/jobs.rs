//! The periodic jobs of a manager: one module for each, with a `run_once` that returns a report.
//!
//! The [`scheduler`] decides when they run. Each job is safe in any number of managers at a time.

pub(crate) mod clean;
pub(crate) mod doctor;
mod history;
pub(crate) mod reclaim;
mod round;
pub(crate) mod scheduler;
pub(crate) mod statistics;
pub(crate) mod sweep;

use lisa_core::broker::{Broker, BrokerError};
use lisa_core::topic::Topic;
use lisa_service::config::ManagerConfig;
use lisa_service::metrics::Metrics;
use lisa_service::shutdown::Shutdown;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use crate::assignment::Assignments;
use crate::jobs::scheduler::JobScheduler;
use crate::operations::doctor::Examinations;

/// The dependencies of every job.
#[derive(Clone, Debug)]
pub(crate) struct Tools {
    pub(crate) broker: Broker,
    pub(crate) metrics: Metrics,
    pub(crate) assignments: Assignments,
    pub(crate) examinations: Arc<Examinations>,
    /// The wakes that the movers received.
    pub(crate) wakes: Arc<crate::wakes::Wakes>,
    /// Cancelled when the process drains. Jobs then stop between batches.
    pub(crate) draining: CancellationToken,
}

impl Tools {
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }
}

/// The error of a run. The run served all other topics and servers.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    /// A server did not answer.
    #[error(transparent)]
    Redis(#[from] BrokerError),
    /// A server was unavailable, or failed to answer earlier in the same run.
    #[error("Redis {server} unavailable; its shards were skipped")]
    Away {
        /// The address of the server.
        server: String,
    },
    /// The stored data of a topic is damaged, or the job panicked on the topic. The others were served.
    #[error("topic {topic}: {error}; the other topics were served")]
    Topic {
        /// The first such topic.
        topic: Topic,
        /// The error.
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

/// The report of a run, which depends on the job.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only describes what the scheduler keeps as JSON")]
pub(crate) enum JobReport {
    Reclaim(reclaim::Report),
    Clean(clean::Report),
    Statistics(statistics::Report),
    Sweep(sweep::Report),
    Doctor(doctor::Report),
}

/// Creates the scheduler of all jobs.
pub(crate) fn schedule(tools: &Tools, config: &ManagerConfig, shutdown: &Shutdown) -> JobScheduler {
    let crons = &config.jobs;
    let reclaim = Arc::new(reclaim::Reclaim::new(tools.clone()));
    let clean = Arc::new(clean::Clean::new(tools.clone()));
    let statistics = Arc::new(statistics::Statistics::new(tools.clone(), config.history));
    let sweep = tools.clone();
    let doctor = Arc::new(doctor::Doctor::new(tools.clone(), config.doctor));
    let metrics = &tools.metrics;
    JobScheduler::new(shutdown)
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
