//! How topics, messages and consumers are shown, in JSON the same by HTTP and on the command line.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use futures_util::{StreamExt, stream};
use lisa_shared::broker::{
    Broker, BrokerError, CONCURRENT_READS, ConsumerInfo, Copy, Details, Found, Listed, Page,
    TopicHandle, TopicStats,
};
use lisa_shared::message::{InvalidRecord, MessageId, OrderingKey, Record};
use lisa_shared::retry::RetryPolicy;
use lisa_shared::state::{Ended, State};
use lisa_shared::topic::{Group, Topic};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout, timeout_at};

/// The counts of all topics.
#[derive(Debug, Serialize)]
pub(crate) struct StatsList {
    pub(crate) topics: Vec<TopicStats>,
    /// How many managers are running: without one, due messages are not moved. Left out where that cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) managers: Option<usize>,
    #[serde(flatten)]
    pub(crate) missing: Missing,
}

/// The consumers of all topics.
#[derive(Debug, Serialize)]
pub(crate) struct WorkersList {
    pub(crate) groups: Vec<GroupConsumers>,
    #[serde(flatten)]
    pub(crate) missing: Missing,
}

/// The consumers that a group has seen.
#[derive(Debug, Serialize)]
pub(crate) struct GroupConsumers {
    pub(crate) topic: Topic,
    pub(crate) group: Group,
    pub(crate) consumers: Vec<ConsumerView>,
}

/// The topics that are missing in an answer about all of them.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Missing {
    /// Those that Redis did not answer for in time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) unanswered: Vec<Topic>,
    /// Those of which not all can be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) damaged: Vec<DamagedTopic>,
}

impl Missing {
    /// Returns a sentence for each of them.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let damaged = self.damaged.iter();
        let damaged = damaged.map(|damaged| format!("topic {}: {}", damaged.topic, damaged.error));
        let unanswered = self.unanswered.iter();
        let unanswered = unanswered.map(|topic| format!("topic {topic}: Redis did not answer"));
        damaged.chain(unanswered).collect()
    }
}

/// A topic of which not all can be read, and why.
#[derive(Debug, Serialize)]
pub(crate) struct DamagedTopic {
    pub(crate) topic: String,
    pub(crate) error: String,
}

/// Why nothing is known of any topic.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AllTopicsError {
    /// The topics could not be read, or Redis refuses.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// There are topics, and none of them answered.
    #[error("Redis did not answer for any topic")]
    Unanswered,
}

/// Counts the messages of every registered topic; what is wrong with one does not hide the others. Topics that do not
/// answer `within` are named.
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

/// Lists the consumers of every group of every registered topic, as [`stats_of_all`] does.
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

/// Reads something of every registered topic.
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

/// A page of messages.
#[derive(Debug, Serialize)]
pub(crate) struct MessagePage {
    pub(crate) topic: Topic,
    /// The group that has these messages; none while they wait for several groups, or for one to come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<Group>,
    pub(crate) messages: Vec<MessageView>,
    /// The cursor of the next page; null at the end.
    pub(crate) next: Option<String>,
}

impl MessagePage {
    pub(crate) fn new(topic: &TopicHandle, group: Option<&Group>, page: Page) -> Self {
        Self {
            group: group.cloned(),
            ..Self::of_key(topic, page)
        }
    }

    /// A page of the messages of one ordering key, each as the first group that owes it has it.
    pub(crate) fn of_key(topic: &TopicHandle, page: Page) -> Self {
        Self {
            topic: topic.name().clone(),
            group: None,
            messages: page.items.into_iter().map(MessageView::from).collect(),
            next: page.next,
        }
    }
}

/// A message without what it holds.
#[derive(Debug, Serialize)]
pub(crate) struct MessageView {
    pub(crate) id: MessageId,
    pub(crate) state: State,
    /// When it is due, was due (ready, in flight), or comes again (retry); left out where that is too far behind on the
    /// stream to be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) due_at: Option<String>,
    /// When it was given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) garbage_at: Option<String>,
    /// The attempt that runs or comes next; in garbage, those made.
    pub(crate) attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) consumer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl From<Listed> for MessageView {
    fn from(listed: Listed) -> Self {
        let time = listed.time.map(|time| time.to_string());
        let (due_at, garbage_at) = match listed.state {
            State::Garbage => (None, time),
            _ => (time, None),
        };
        let (reason, error) = match listed.dead {
            Some(dead) => (Some(dead.reason.as_str()), Some(dead.error)),
            None => (None, listed.last_error),
        };
        Self {
            id: listed.id,
            state: listed.state,
            due_at,
            garbage_at,
            attempt: listed.attempt,
            consumer: listed.consumer,
            reason,
            error: error.filter(|error| !error.is_empty()),
        }
    }
}

/// Where a message is in one group.
#[derive(Debug, Serialize)]
pub(crate) struct CopyView {
    pub(crate) group: Group,
    /// `done` once the group owes it no more; `unknown` where it may be too far behind on the stream to be found.
    pub(crate) state: &'static str,
    /// What it waits for there, in words; behind many others it says "at least".
    pub(crate) why: String,
}

impl From<Copy> for CopyView {
    fn from(copy: Copy) -> Self {
        Self {
            state: copy.state(),
            group: copy.group,
            why: copy.why,
        }
    }
}

/// A message with what it holds.
#[derive(Debug, Serialize)]
pub(crate) struct FullMessage {
    pub(crate) topic: Topic,
    #[serde(flatten)]
    pub(crate) message: MessageView,
    /// Its own bound on attempts; without it, the topic's holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_attempts: Option<u32>,
    /// Its own retry policy, with the keys of the configuration; without it, the topic's holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry: Option<RetryPolicy>,
    /// Its ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) merge_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<i32>,
    /// From when on it is not worth delivering.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<String>,
    /// Where it is in each group, and why it has not run there.
    pub(crate) groups: Vec<CopyView>,
    pub(crate) headers: Map<String, Value>,
    /// As text, where it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload_base64: Option<String>,
}

impl FullMessage {
    fn new(topic: &TopicHandle, listed: Listed, record: &Record, details: Details) -> Self {
        let text = std::str::from_utf8(&record.payload).ok().map(str::to_owned);
        let payload_base64 = match text {
            Some(_) => None,
            None => Some(base64::engine::general_purpose::STANDARD.encode(&record.payload)),
        };
        let headers = record.headers.iter();
        Self {
            topic: topic.name().clone(),
            message: listed.into(),
            max_attempts: record.max_attempts,
            retry: record.retry.clone(),
            key: details.key,
            merge_key: details.merge_key,
            priority: Some(details.priority).filter(|priority| *priority != 0),
            expires_at: details.expires.map(|at| at.to_string()),
            groups: details.copies.into_iter().map(CopyView::from).collect(),
            headers: headers
                .map(|(name, value)| (name.to_owned(), value.into()))
                .collect(),
            payload: text,
            payload_base64,
        }
    }
}

/// Why a message cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindError {
    /// Redis could not be asked.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// There is none, or it has ended.
    #[error("message {id} is not stored: {}", .end.as_ref().map_or("unknown".to_owned(), Ended::to_string))]
    Unknown { id: MessageId, end: Option<Ended> },
    /// Its record is damaged.
    #[error("message {id}: {error}")]
    Unreadable { id: MessageId, error: InvalidRecord },
}

/// Finds one message of a topic, by its key too where that is known.
///
/// # Errors
/// [`FindError`].
pub(crate) async fn find(
    broker: &Broker,
    topic: &TopicHandle,
    id: &MessageId,
    key: Option<&OrderingKey>,
) -> Result<Box<FullMessage>, FindError> {
    match broker.lookup(topic, id, key).await? {
        Found::Stored {
            listed,
            record,
            details,
        } => {
            let record = Record::decode(record).map_err(|error| FindError::Unreadable {
                id: id.clone(),
                error,
            })?;
            let message = FullMessage::new(topic, listed, &record, *details);
            Ok(Box::new(message))
        }
        Found::Unknown { end } => Err(FindError::Unknown {
            id: id.clone(),
            end,
        }),
    }
}

/// A consumer of a group on all shards together.
#[derive(Debug, Serialize)]
pub(crate) struct ConsumerView {
    pub(crate) name: String,
    /// Deliveries that it holds.
    pub(crate) in_flight: u64,
    /// Since it last asked for messages, or reported that it is there, on any shard.
    pub(crate) idle_ms: u64,
}

/// The consumers that a group of a topic has seen, by name.
pub(crate) async fn consumers_of(
    broker: &Broker,
    topic: &TopicHandle,
    group: &Group,
) -> Result<Vec<ConsumerView>, BrokerError> {
    let mut all: Vec<ConsumerView> = Vec::new();
    let mut shards = broker.each_shard(topic);
    while let Some((topic, shard)) = shards.next().await? {
        for ConsumerInfo {
            name,
            pending,
            idle,
        } in broker.consumers(&topic, shard, group).await?
        {
            let idle_ms = lisa_shared::time::millis(idle);
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
