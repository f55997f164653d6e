//! Reads statistics of all topics, for HTTP and the command line.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lisa_core::broker::{Broker, BrokerError, CONCURRENT_READS, Removal, TopicHandle, TopicStats};
use lisa_core::fields::plain;
use lisa_core::topic::{Group, Topic, TopicSettings};
use lisa_service::config::Config;
use lisa_service::http::client::{reaches, reaches_named};
use lisa_service::http::{Problem, ProblemCode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout, timeout_at};
use utoipa::ToSchema;

use super::audit::{self, Action};
use super::counted;

/// A topic with its settings.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct TopicEntry {
    pub(crate) topic: Topic,
    /// A number that grows with each change of the topic, and goes on if it is created again.
    pub(crate) epoch: u64,
    pub(crate) settings: TopicSettings,
    /// All its groups, including those that the settings do not name.
    pub(crate) groups: Vec<Group>,
    /// True while its number of shards is changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) resharding: bool,
    /// The way in which it is being removed, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) removal: Option<Removal>,
}

/// A topic that is being removed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct TopicRemoval {
    pub(crate) topic: Topic,
    /// The way in which it is being removed. A removal by force stays one.
    pub(crate) removal: Removal,
    /// The messages that are still stored.
    pub(crate) stored: u64,
}

/// Registered topics.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct TopicList {
    pub(crate) topics: Vec<TopicEntry>,
    /// The topics whose settings cannot be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) damaged: Vec<DamagedTopic>,
}

/// A topic that was paused or resumed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct TopicPaused {
    pub(crate) topic: Topic,
    pub(crate) paused: bool,
    /// False if it was in that state already.
    pub(crate) changed: bool,
}

impl TopicEntry {
    pub(crate) fn of(topic: &TopicHandle) -> Self {
        Self {
            topic: topic.name().clone(),
            epoch: topic.epoch(),
            settings: topic.settings().clone(),
            groups: topic.groups().to_vec(),
            resharding: topic.is_resharding(),
            removal: topic.removal(),
        }
    }
}

/// The action of a removal in the audit log.
pub(crate) const REMOVE: &str = "remove_topic";

/// Begins the removal of a topic. Without `how`, it must not have messages.
///
/// # Errors
/// The managers' configuration declares the topic; it has messages; Redis.
pub(crate) async fn remove(
    broker: &Broker,
    config: &Config,
    topic: &TopicHandle,
    how: Option<Removal>,
    epoch: Option<u64>,
    action: Action,
) -> Result<TopicRemoval, Problem> {
    not_in_file(config, topic.name())?;
    // This process may not have noticed a removal, or that the topic was created again.
    let topic = broker.newest(topic.name()).await?;
    let (name, before) = (topic.name(), topic.removal());
    let stored = broker.stats(&topic).await?.stored;
    let messages = counted(stored, "message");
    if how.is_none() && before.is_none() && stored > 0 {
        let why = format!(
            "topic {name} has {messages}: how=drain delivers what is stored first, and how=force removes it"
        );
        return Err(Problem::new(ProblemCode::NotEmpty, why));
    }
    let how = how.unwrap_or(Removal::Drain);
    let action = action.details(format!("{how}, {messages}"));
    let removed = action.run(broker.remove_topic(name, how, epoch), |removed| {
        audit::changed(Some(*removed) != before)
    });
    let removal = removed.await?;
    tracing::info!(topic = %name, %removal, stored, "removed by an operator");
    Ok(TopicRemoval {
        topic: name.clone(),
        removal,
        stored,
    })
}

/// Refuses to change or remove a topic that the managers' configuration declares.
///
/// # Errors
/// It declares the topic.
pub(crate) fn not_in_file(config: &Config, topic: &Topic) -> Result<(), Problem> {
    if !config.topics.contains_key(topic) {
        return Ok(());
    }
    let why = format!(
        "the managers' configuration declares topic {topic}: edit topics.{topic} there, and reload the managers"
    );
    Err(Problem::new(ProblemCode::DeclaredInFile, why))
}

/// Returns the settings that a change replaces, as `lease=1m, ttl=5s`; empty if there are none.
pub(crate) fn differences(before: &TopicSettings, after: &TopicSettings) -> String {
    let fields = |settings| match serde_json::to_value(settings) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let before = fields(before);
    let changed = fields(after).into_iter();
    let changed = changed.filter(|(name, value)| before.get(name) != Some(value));
    let texts = changed.map(|(name, value)| format!("{name}={}", plain(&value)));
    texts.collect::<Vec<_>>().join(", ")
}

/// Returns the registered topics that the client of the request reaches.
///
/// # Errors
/// [`BrokerError`].
pub(super) async fn registered(broker: &Broker) -> Result<Vec<Arc<TopicHandle>>, BrokerError> {
    let mut topics = broker.refresh().await?;
    topics.retain(|topic| reaches(topic.name()));
    Ok(topics)
}

/// Returns the topics that the client reaches and that cannot be read, each with its error.
pub(super) fn unreadable(broker: &Broker) -> BTreeMap<String, String> {
    let mut topics = broker.unreadable_topics();
    topics.retain(|name, _| reaches_named(Some(name)));
    topics
}

/// Lists the registered topics whose names begin with `prefix`.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn list(broker: &Broker, prefix: &str) -> Result<TopicList, BrokerError> {
    let topics = registered(broker).await?;
    let mut damaged = DamagedTopic::all(unreadable(broker));
    damaged.retain(|topic| topic.topic.starts_with(prefix));
    let topics = topics.iter();
    let topics = topics.filter(|topic| topic.name().as_str().starts_with(prefix));
    Ok(TopicList {
        topics: topics.map(|topic| TopicEntry::of(topic)).collect(),
        damaged,
    })
}

/// The counts of all topics.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct StatsList {
    pub(crate) topics: Vec<TopicStats>,
    /// The number of running managers; due messages are not moved without one. Absent if it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) managers: Option<usize>,
    #[serde(flatten)]
    pub(crate) missing: Missing,
}

impl StatsList {
    /// Drops all but one topic. Returns false if that is not registered.
    pub(crate) fn keep_only(&mut self, topic: &Topic) -> bool {
        self.topics.retain(|stats| stats.topic == *topic);
        let missing = &mut self.missing;
        missing.damaged.retain(|one| one.topic == topic.as_str());
        missing.unanswered.retain(|name| name == topic);
        !self.topics.is_empty() || !self.missing.is_empty()
    }
}

/// The topics missing from a result about all topics.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub(crate) struct Missing {
    /// The topics for which Redis did not answer in time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unanswered: Vec<Topic>,
    /// The topics that cannot be read completely.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) damaged: Vec<DamagedTopic>,
}

impl Missing {
    /// Returns true if no topic is missing.
    pub(crate) fn is_empty(&self) -> bool {
        self.damaged.is_empty() && self.unanswered.is_empty()
    }

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
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
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
    let read = async {
        let known = registered(broker).await?;
        let load = |topic: Arc<TopicHandle>| async move { broker.stats(&topic).await };
        let named = known.iter().map(|topic| (topic.name(), topic.clone()));
        of_all(broker, named, within, load).await
    };
    let (managers, all) = tokio::join!(timeout(within, broker.managers()), read);
    let (topics, missing) = all?;
    Ok(StatsList {
        topics,
        managers: managers.ok().and_then(Result::ok).map(|all| all.len()),
        missing,
    })
}

/// Reads topics with `read`, at most [`CONCURRENT_READS`] at a time.
pub(super) async fn of_all<'t, K, T, F: Future<Output = Result<T, BrokerError>>>(
    broker: &Broker,
    topics: impl Iterator<Item = (&'t Topic, K)>,
    within: Duration,
    read: impl Fn(K) -> F,
) -> Result<(Vec<T>, Missing), AllTopicsError> {
    let until = Instant::now() + within;
    let (names, reads): (Vec<_>, Vec<_>) = topics
        .map(|(name, topic)| (name, timeout_at(until, read(topic))))
        .unzip();
    let mut reads = stream::iter(reads).buffered(CONCURRENT_READS);
    let mut found = Vec::new();
    let mut missing = Missing::default();
    let mut damaged = unreadable(broker);
    for name in names {
        match reads.next().await {
            Some(Ok(Ok(one))) => found.push(one),
            Some(Ok(Err(error))) if error.is_of_one_topic() => {
                damaged.insert(name.to_string(), error.to_string());
            }
            Some(Ok(Err(error))) if !error.is_retryable() => return Err(error.into()),
            _ => missing.unanswered.push(name.clone()),
        }
    }
    if found.is_empty() && !missing.unanswered.is_empty() {
        return Err(AllTopicsError::Unanswered);
    }
    missing.damaged = DamagedTopic::all(damaged);
    Ok((found, missing))
}
