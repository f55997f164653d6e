//! Reads statistics of all topics, for HTTP and the command line.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lisa_core::broker::{Broker, BrokerError, CONCURRENT_READS, TopicHandle, TopicStats};
use lisa_core::topic::Topic;
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

impl DamagedTopic {
    pub(super) fn all(damaged: BTreeMap<String, String>) -> Vec<Self> {
        let damaged = damaged.into_iter();
        damaged
            .map(|(topic, error)| Self { topic, error })
            .collect()
    }
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
    missing.damaged = DamagedTopic::all(damaged);
    Ok((found, missing))
}
