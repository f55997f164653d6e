//! The reports of running processes: one field of one hash for each, replaced every few seconds.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError};
use crate::time::UnixMs;
use crate::topic::{Group, Shard, Topic};

/// The interval between the reports of a process.
pub const REPORT_EVERY: Duration = Duration::from_secs(5);
/// The age of a report from which on its process counts as gone.
pub const GONE_AFTER: Duration = Duration::from_secs(20);
/// The age at which a report is removed.
const REMOVED_AFTER: Duration = Duration::from_secs(60);
/// The most subscriptions, and the most topics with shards, in one report.
const MOST: usize = 200;
/// The most names of workers that pulled, in one report. A name may have 100 bytes.
const MOST_PULLERS: usize = 1000;

/// The description of a process by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// The role: `consumer`, `gateway` or `manager`.
    pub role: String,
    /// The version of Lisa.
    pub version: String,
    /// The name of the host.
    pub host: String,
    /// The process ID.
    pub pid: u32,
    /// The start of the process, on Redis's clock.
    pub started: UnixMs,
    /// The groups from which it reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subscriptions: Vec<SubscriptionReport>,
    /// The shards that it serves as a manager.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<ShardsReport>,
    /// True if the report omits some of them, because there are more than 200, or more than 1,000 names of workers that pulled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

/// A group from which a process reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionReport {
    /// The topic.
    pub topic: Topic,
    /// The group.
    pub group: Group,
    /// The largest number of handlers that run at a time; `None` for a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<usize>,
    /// The number of deliveries that it holds or, for a gateway, of pulls that wait.
    pub busy: usize,
    /// The names of workers that pulled from a gateway in the last 30 s, up to 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pullers: Vec<String>,
}

/// The shards of a topic that a manager serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ShardsReport {
    /// The topic.
    pub topic: Topic,
    /// Its shards.
    pub shards: Vec<Shard>,
}

/// A process that has reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// The name of the consumer, gateway or manager.
    pub name: String,
    /// The time since its report.
    pub age: Duration,
    /// Its report.
    pub report: WorkerReport,
}

impl Broker {
    /// Replaces the report of a process. Costs one `HSET`.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn report_worker(
        &self,
        name: &str,
        mut report: WorkerReport,
    ) -> Result<(), BrokerError> {
        report.is_cut = report.subscriptions.len() > MOST || report.shards.len() > MOST;
        report.subscriptions.truncate(MOST);
        report.shards.truncate(MOST);
        let mut left = MOST_PULLERS;
        for subscription in &mut report.subscriptions {
            report.is_cut |= subscription.pullers.len() > left;
            subscription.pullers.truncate(left);
            left -= subscription.pullers.len();
        }
        let text = serde_json::to_string(&report)
            .map_err(|error| BrokerError::reply("HSET", "a report", &error))?;
        let set = command("HSET", &self.inner.registry.workers).arg(name);
        let set = set.arg(format!("{} {text}", self.now().get()));
        let _: u64 = self.ask(set).await?;
        Ok(())
    }

    /// Removes the report of a process that ends.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn forget_worker(&self, name: &str) -> Result<(), BrokerError> {
        self.forget_workers(&[name.to_owned()]).await
    }

    /// Returns the running processes by name, with one `HGETALL`. A report that this version cannot read is left out.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn workers(&self) -> Result<Vec<Worker>, BrokerError> {
        let now = self.now();
        let mut workers: Vec<Worker> = self
            .fields(&self.inner.registry.workers)
            .await?
            .into_iter()
            .filter_map(|(name, text)| {
                let (at, report) = text.split_once(' ')?;
                Some(Worker {
                    name,
                    age: now.since(UnixMs::new(at.parse().ok()?)),
                    report: serde_json::from_str(report).ok()?,
                })
            })
            .filter(|worker| worker.age < GONE_AFTER)
            .collect();
        workers.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(workers)
    }

    /// Removes the reports of processes that are gone, and returns their number. A process that reports at that moment
    /// appears again with its next report.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn clean_workers(&self) -> Result<u64, BrokerError> {
        let now = self.now();
        let is_gone = |text: &str| {
            let at = text.split(' ').next().and_then(|at| at.parse().ok());
            at.is_none_or(|at| now.since(UnixMs::new(at)) > REMOVED_AFTER)
        };
        let reports = self.fields(&self.inner.registry.workers).await?;
        let gone = reports.into_iter().filter(|(_, text)| is_gone(text));
        let gone: Vec<String> = gone.map(|(name, _)| name).collect();
        for names in gone.chunks(100) {
            self.forget_workers(names).await?;
        }
        Ok(gone.len() as u64)
    }

    async fn forget_workers(&self, names: &[String]) -> Result<(), BrokerError> {
        let removal = command("HDEL", &self.inner.registry.workers).arg(names);
        let _: u64 = self.ask(removal).await?;
        Ok(())
    }
}
