//! Reads statistics and consumers of all topics, for HTTP and the command line.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lisa_core::broker::{
    Broker, BrokerError, CONCURRENT_READS, ConsumerInfo, TopicHandle, TopicStats,
};
use lisa_core::topic::{Group, Topic};
use serde::Serialize;
use tokio::time::{Instant, timeout, timeout_at};
use utoipa::ToSchema;

/// The counts of all topics.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StatsList {
    pub(crate) topics: Vec<TopicStats>,
    /// The number of running managers; due messages are not moved without one. Absent if it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) managers: Option<usize>,
    #[serde(flatten)]
    pub(crate) missing: Missing,
}

/// The consumers of all topics.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkersList {
    pub(crate) groups: Vec<GroupConsumers>,
    #[serde(flatten)]
    pub(crate) missing: Missing,
}

/// The consumers that a group has seen.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GroupConsumers {
    pub(crate) topic: Topic,
    pub(crate) group: Group,
    pub(crate) consumers: Vec<ConsumerView>,
}

/// The topics missing from a result about all topics.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Missing {
    /// The topics for which Redis did not answer in time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unanswered: Vec<Topic>,
    /// The topics that cannot be read completely.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) damaged: Vec<DamagedTopic>,
}

impl Missing {
    /// Returns one error text for each of them.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let damaged = self.damaged.iter();
        let damaged = damaged.map(|damaged| format!("topic {}: {}", damaged.topic, damaged.error));
        let unanswered = self.unanswered.iter();
        let unanswered = unanswered.map(|topic| format!("topic {topic}: Redis did not answer"));
        damaged.chain(unanswered).collect()
    }
}

/// A topic that cannot be read completely, and the reason.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct DamagedTopic {
    pub(crate) topic: String,
    pub(crate) error: String,
}

/// The reason no topic could be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AllTopicsError {
    /// The registry could not be read, or Redis refused a call.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// There are topics, but Redis answered for none of them in time.
    #[error("Redis did not answer for any topic")]
    Unanswered,
}

/// Counts the messages of every registered topic. The result names the topics that are damaged and those for which Redis
/// did not answer `within`; it contains all others.
///
/// # Errors
/// [`AllTopicsError`].
pub(crate) async fn stats_of_all(
    broker: &Broker,
    within: Duration,
) -> Result<StatsList, AllTopicsError> {
    let read = |topic: Arc<TopicHandle>| async move { broker.stats(&topic).await };
    let (managers, all) = tokio::join!(
        timeout(within, broker.managers()),
        of_all(broker, within, read)
    );
    let (topics, missing) = all?;
    Ok(StatsList {
        topics,
        managers: managers.ok().and_then(Result::ok).map(|all| all.len()),
        missing,
    })
}

/// Lists the consumers of every group of every registered topic, with the same treatment of failures as [`stats_of_all`].
///
/// # Errors
/// [`AllTopicsError`].
pub(crate) async fn workers_of_all(
    broker: &Broker,
    within: Duration,
) -> Result<WorkersList, AllTopicsError> {
    let read = |topic: Arc<TopicHandle>| async move {
        let mut groups = Vec::new();
        for group in topic.groups() {
            groups.push(GroupConsumers {
                topic: topic.name().clone(),
                group: group.clone(),
                consumers: consumers_of(broker, &topic, group).await?,
            });
        }
        Ok(groups)
    };
    let (topics, missing) = of_all(broker, within, read).await?;
    Ok(WorkersList {
        groups: topics.into_iter().flatten().collect(),
        missing,
    })
}

/// Reads every registered topic with `read`, at most [`CONCURRENT_READS`] at a time.
async fn of_all<T, F: Future<Output = Result<T, BrokerError>>>(
    broker: &Broker,
    within: Duration,
    read: impl Fn(Arc<TopicHandle>) -> F,
) -> Result<(Vec<T>, Missing), AllTopicsError> {
    let until = Instant::now() + within;
    let known = broker.refresh().await?;
    let reads: Vec<_> = known
        .iter()
        .map(|topic| timeout_at(until, read(topic.clone())))
        .collect();
    let mut reads = stream::iter(reads).buffered(CONCURRENT_READS);
    let mut found = Vec::new();
    let mut missing = Missing::default();
    let mut damaged = broker.unreadable_topics();
    for topic in &known {
        match reads.next().await {
            Some(Ok(Ok(one))) => found.push(one),
            Some(Ok(Err(error))) if error.is_of_one_topic() => {
                damaged.insert(topic.name().to_string(), error.to_string());
            }
            Some(Ok(Err(error))) if !error.is_retryable() => return Err(error.into()),
            _ => missing.unanswered.push(topic.name().clone()),
        }
    }
    if found.is_empty() && !missing.unanswered.is_empty() {
        return Err(AllTopicsError::Unanswered);
    }
    missing.damaged = damaged
        .into_iter()
        .map(|(topic, error)| DamagedTopic { topic, error })
        .collect();
    Ok((found, missing))
}

/// A consumer of a group, summed over all shards.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ConsumerView {
    pub(crate) name: String,
    /// The number of deliveries it holds.
    pub(crate) in_flight: u64,
    /// Milliseconds since it last asked for messages or reported its presence, on any shard.
    pub(crate) idle_ms: u64,
}

/// Returns the consumers that a group of a topic has seen, by name.
pub(crate) async fn consumers_of(
    broker: &Broker,
    topic: &TopicHandle,
    group: &Group,
) -> Result<Vec<ConsumerView>, BrokerError> {
    let mut all: Vec<ConsumerView> = Vec::new();
    let mut shards = broker.all_shards(topic);
    while let Some((topic, shard)) = shards.next().await? {
        for ConsumerInfo {
            name,
            pending,
            idle,
        } in broker.consumers(&topic, shard, group).await?
        {
            let idle_ms = lisa_core::time::millis(idle);
            match all.iter_mut().find(|consumer| consumer.name == name) {
                Some(consumer) => {
                    consumer.in_flight += pending;
                    consumer.idle_ms = consumer.idle_ms.min(idle_ms);
                }
                None => all.push(ConsumerView {
                    name,
                    in_flight: pending,
                    idle_ms,
                }),
            }
        }
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}
