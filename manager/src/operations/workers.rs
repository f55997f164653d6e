//! Lists the running processes, and the consumers of each group, from the reports of the processes.

use lisa_core::broker::{Broker, BrokerError, ShardsReport, SubscriptionReport, Worker};
use lisa_core::time::millis;
use lisa_core::topic::{Group, Topic};
use lisa_service::http::auth::Reach;
use lisa_service::http::client::{reach, reaches_named};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::topics::{DamagedTopic, Missing, registered, unreadable};

/// The role of managers in reports.
const MANAGER: &str = "manager";

/// The running processes and the consumers of all groups.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WorkersList {
    /// The groups of all topics, each with its consumers. If a group has no consumers, no process reads it.
    pub(crate) groups: Vec<GroupConsumers>,
    /// The running consumers, gateways and managers.
    pub(crate) workers: Vec<WorkerView>,
    #[serde(flatten)]
    pub(crate) missing: Missing,
}

/// The running processes, and the managers among them that share the work.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WorkersAndManagers {
    pub(crate) managers: Vec<String>,
    #[serde(flatten)]
    pub(crate) list: WorkersList,
}

/// The consumers of a group.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct GroupConsumers {
    pub(crate) topic: Topic,
    pub(crate) group: Group,
    pub(crate) consumers: Vec<ConsumerView>,
}

/// A consumer or gateway that reads a group.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ConsumerView {
    pub(crate) name: String,
    /// The number of deliveries that it holds; of a gateway, the number of pulls that wait.
    pub(crate) in_flight: usize,
    /// The largest number of handlers that it runs at a time; absent for a gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) concurrency: Option<usize>,
    /// The names of workers that pulled from the gateway in the last 30 s, up to 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) pullers: Vec<String>,
    /// Milliseconds since its last report.
    pub(crate) idle_ms: u64,
}

/// A running process.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct WorkerView {
    pub(crate) name: String,
    /// The role: `consumer`, `gateway` or `manager`.
    pub(crate) role: String,
    /// The version of Lisa.
    pub(crate) version: String,
    pub(crate) host: String,
    /// The process ID.
    pub(crate) pid: u32,
    pub(crate) started_at: String,
    /// Milliseconds since its last report.
    pub(crate) idle_ms: u64,
    /// The shards that it serves as a manager.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) shards: Vec<ShardsReport>,
    /// True if it reads more than 200 groups, or serves shards of more than 200 topics. The others are not listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_cut: bool,
    /// The topics that it reads.
    #[serde(skip)]
    subscribed: Vec<Topic>,
}

impl WorkerView {
    fn new(worker: &Worker) -> Self {
        let report = &worker.report;
        Self {
            name: worker.name.clone(),
            role: report.role.clone(),
            version: report.version.clone(),
            host: report.host.clone(),
            pid: report.pid,
            started_at: report.started.to_string(),
            idle_ms: millis(worker.age),
            shards: report.shards.clone(),
            is_cut: report.is_cut,
            subscribed: { report.subscriptions.iter() }
                .map(|subscription| subscription.topic.clone())
                .collect(),
        }
    }

    /// Leaves out the shards of topics that a client does not reach. Returns `None` if the process serves none that it reaches. Managers
    /// serve all topics in turn.
    fn within(&self, reach: &Reach) -> Option<Self> {
        let mut view = self.clone();
        view.shards.retain(|it| reach.has_topic(&it.topic));
        view.subscribed.retain(|topic| reach.has_topic(topic));
        let is_shown =
            view.role == MANAGER || !view.subscribed.is_empty() || !view.shards.is_empty();
        is_shown.then_some(view)
    }
}

impl WorkersList {
    /// Returns the groups of the topics that a client reaches, and the processes that serve them.
    pub(crate) fn within(&self, reach: &Reach) -> Self {
        let groups = self.groups.iter();
        let groups = groups.filter(|group| reach.has_topic(&group.topic));
        let workers = self.workers.iter();
        Self {
            groups: groups.cloned().collect(),
            workers: workers.filter_map(|worker| worker.within(reach)).collect(),
            missing: self.missing.within(reach),
        }
    }
}

/// Lists the running processes and the consumers of each group of every registered topic that the client reaches. Reads two
/// hashes, and the settings of topics that have changed.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn list(broker: &Broker) -> Result<WorkersList, BrokerError> {
    let topics = registered(broker).await?;
    let workers = broker.workers().await?;
    let mut groups = Vec::new();
    for topic in &topics {
        groups.extend(topic.groups().iter().map(|group| GroupConsumers {
            topic: topic.name().clone(),
            group: group.clone(),
            consumers: consumers(&workers, topic.name(), group),
        }));
    }
    let all = WorkersList {
        groups,
        workers: workers.iter().map(WorkerView::new).collect(),
        missing: Missing {
            damaged: DamagedTopic::all(unreadable(broker)),
            ..Missing::default()
        },
    };
    Ok(match reaches_named(None) {
        true => all,
        false => all.within(&reach()),
    })
}

fn consumers(workers: &[Worker], topic: &Topic, group: &Group) -> Vec<ConsumerView> {
    let of = |subscription: &&SubscriptionReport| {
        subscription.topic == *topic && subscription.group == *group
    };
    let view = |worker: &Worker| {
        let subscription = worker.report.subscriptions.iter().find(of)?;
        Some(ConsumerView {
            name: worker.name.clone(),
            in_flight: subscription.busy,
            concurrency: subscription.concurrency,
            pullers: subscription.pullers.clone(),
            idle_ms: millis(worker.age),
        })
    };
    workers.iter().filter_map(view).collect()
}
