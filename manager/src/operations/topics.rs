//! Creates, changes and removes topics, and reads the statistics of all, for HTTP, the command line and the dashboard.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lisa_core::broker::{
    Broker, BrokerError, CONCURRENT_READS, Declare, Removal, TopicHandle, TopicStats,
};
use lisa_core::fields::plain;
use lisa_core::time::shorten;
use lisa_core::topic::{Group, Topic, TopicSettings};
use lisa_service::config::Config;
use lisa_service::http::auth::Reach;
use lisa_service::http::client::{reaches, reaches_named, topic_quota};
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

/// The most settings that the refusal of a creation names.
const MAX_NAMED: usize = 3;
/// The most streams of a topic, one for each group on each shard: each costs Redis memory and calls, also at rest.
const MAX_STREAMS: usize = 4096;

/// Creates a topic, or replaces its settings. `read` returns them; it gets the values of those that are not given: `topic_defaults`,
/// except that an existing topic keeps its number of shards. Returns the topic, and whether it is new.
///
/// # Errors
/// The client does not reach the topic, or the one to which garbage is to be forwarded; the settings; the managers' configuration
/// declares the topic; it is being removed, or at another epoch; the quota of the client; Redis.
pub(crate) async fn put(
    broker: &Broker,
    config: &Config,
    name: &Topic,
    mode: Declare,
    read: impl FnOnce(&Map<String, Value>) -> Result<TopicSettings, Problem>,
    action: impl FnOnce(&str) -> Action,
) -> Result<(Arc<TopicHandle>, bool), Problem> {
    // A form names the topic in its body.
    if !reaches(name) {
        let why = format!("the token does not reach the topic {name}");
        return Err(Problem::new(ProblemCode::Forbidden, why));
    }
    let before = match broker.newest(name).await {
        Ok(topic) if topic.removal().is_some() => {
            return Err(BrokerError::BeingRemoved(name.clone()).into());
        }
        Ok(topic) => Some(topic),
        Err(BrokerError::UnknownTopic(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let before = before.as_deref();
    let mut settings = settings(before, &config.topic_defaults, read)?;
    let quota = topic_quota();
    if let Some(quota) = &quota {
        quota.fill(&mut settings);
    }
    not_in_file(config, name)?;
    let to = settings.garbage.topic.as_ref();
    let is_new = before.is_none_or(|before| before.settings().garbage.topic.as_ref() != to);
    if to.is_some_and(|to| is_new && !reaches(to)) {
        let why = "the token does not reach this topic";
        return Err(invalid("garbage.topic", why));
    }
    let (verb, changes) = match before {
        Some(before) => ("change_topic", differences(before.settings(), &settings)),
        None => {
            let changes = differences(&TopicSettings::default(), &settings);
            ("create_topic", changes)
        }
    };
    let action = action(verb).topic(name).details(changes);
    let epoch = before.map_or(0, TopicHandle::epoch);
    let declare = broker.declare_by_call(name, &settings, mode, quota);
    let declared = action.run(declare, |declared| {
        audit::changed(declared.epoch() != epoch)
    });
    let declared = declared.await.map_err(|error| match (&error, before) {
        (BrokerError::Epoch { .. }, Some(before)) if mode == Declare::UpdateAt(0) => {
            exists_with_others(before, &settings).unwrap_or_else(|| error.into())
        }
        _ => error.into(),
    });
    Ok((declared?, before.is_none()))
}

/// Refuses to create a topic that exists with other settings than these, and names some of them.
fn exists_with_others(there: &TopicHandle, wanted: &TopicSettings) -> Option<Problem> {
    let fields =
        |settings| -> BTreeMap<_, _> { flat("", &fields_of(settings)).into_iter().collect() };
    let (now, wanted) = (fields(there.settings()), fields(wanted));
    let text = |value: &Value| match value {
        Value::Null => "unset".to_owned(),
        value => shorten(&plain(value)),
    };
    let names: BTreeSet<_> = now.keys().chain(wanted.keys()).collect();
    let others = names.into_iter().filter_map(|name| {
        let of =
            |fields: &BTreeMap<_, _>| fields.get(name).map_or_else(|| text(&Value::Null), text);
        let (now, wanted) = (of(&now), of(&wanted));
        (now != wanted).then(|| format!("{name} is {now}, not {wanted}"))
    });
    let others: Vec<_> = others.collect();
    let (named, rest) = others.split_at(others.len().min(MAX_NAMED));
    let rest = match rest.len() {
        0 => String::new(),
        rest => format!("; and {}", counted(rest as u64, "other setting")),
    };
    let (topic, named) = (there.name(), named.join("; "));
    let why = format!("topic {topic} exists with other settings: {named}{rest}");
    (!named.is_empty()).then(|| Problem::new(ProblemCode::PreconditionFailed, why))
}

/// Reads settings, and checks what depends on the existing topic.
fn settings(
    before: Option<&TopicHandle>,
    defaults: &TopicSettings,
    read: impl FnOnce(&Map<String, Value>) -> Result<TopicSettings, Problem>,
) -> Result<TopicSettings, Problem> {
    let mut defaults = defaults.clone();
    if let Some(before) = before {
        defaults.shards = before.settings().shards;
    }
    let shards = defaults.shards;
    let Ok(Value::Object(defaults)) = serde_json::to_value(&defaults) else {
        unreachable!("settings are an object");
    };
    let settings = read(&defaults)?;
    if before.is_some() && settings.shards != shards {
        let why = format!(
            "the topic has {shards}: only `lisa-manager topics reshard` changes the number"
        );
        return Err(invalid("shards", &why));
    }
    let had = before.map_or(&[][..], |before| before.groups());
    let groups = settings.groups_after(had).len();
    let streams = usize::from(settings.shards) * groups;
    let grows = !settings.groups.iter().all(|group| had.contains(group));
    if grows && streams > MAX_STREAMS {
        let why = format!("shards × groups is {streams}, must be at most {MAX_STREAMS}");
        return Err(invalid("shards", &why));
    }
    Ok(settings)
}

fn invalid(field: &str, why: &str) -> Problem {
    Problem::new(ProblemCode::Invalid, format!("{field}: {why}")).error(field, why)
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
    let before = fields_of(before);
    let changed = fields_of(after).into_iter();
    let changed = changed.filter(|(name, value)| before.get(name) != Some(value));
    let texts = changed.map(|(name, value)| format!("{name}={}", plain(&value)));
    texts.collect::<Vec<_>>().join(", ")
}

fn fields_of(settings: &TopicSettings) -> Map<String, Value> {
    match serde_json::to_value(settings) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

/// Returns the fields of an object; those of a table with its name in front.
pub(crate) fn flat(prefix: &str, object: &Map<String, Value>) -> Vec<(String, Value)> {
    let fields = object.iter().flat_map(|(name, value)| {
        let name = format!("{prefix}{name}");
        match value {
            Value::Object(table) => flat(&format!("{name}."), table),
            value => vec![(name, value.clone())],
        }
    });
    fields.collect()
}

/// Returns the registered topics that the client of the request reaches.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn registered(broker: &Broker) -> Result<Vec<Arc<TopicHandle>>, BrokerError> {
    let mut topics = broker.refresh().await?;
    topics.retain(|topic| reaches(topic.name()));
    Ok(topics)
}

/// Returns the topics that the client reaches and that cannot be read, each with its error.
pub(crate) fn unreadable(broker: &Broker) -> BTreeMap<String, String> {
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
    /// Returns those that a client reaches.
    pub(crate) fn within(&self, reach: &Reach) -> Self {
        let unanswered = self.unanswered.iter();
        let damaged = self.damaged.iter().filter(|damaged| {
            let topic = damaged.topic.parse();
            topic.is_ok_and(|topic| reach.has_topic(&topic))
        });
        Self {
            unanswered: unanswered
                .filter(|topic| reach.has_topic(topic))
                .cloned()
                .collect(),
            damaged: damaged.cloned().collect(),
        }
    }

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
