//! Lists messages and finds single ones, for HTTP and the command line.

use std::borrow::Cow;

use base64::Engine as _;
use lisa_core::broker::{
    Broker, BrokerError, Details, FailedAttempt, Found, GroupCopy, Listed, Page, TopicHandle,
};
use lisa_core::message::{Headers, InvalidRecord, MessageId, OrderingKey, Record};
use lisa_core::retry::RetryPolicy;
use lisa_core::state::{Ended, GarbageReason, State};
use lisa_core::topic::{Group, Topic};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The error about a range of times, or an order, for a state whose messages are not stored by time.
pub(crate) const UNTIMED: &str =
    "only waiting, retry and garbage can be listed by time; leave out from, to and newest first";

/// A page of messages.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct MessagePage {
    pub(crate) topic: Topic,
    /// The group that has these messages; absent if they wait for several groups, or the topic has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<Group>,
    pub(crate) messages: Vec<MessageView>,
    /// The cursor of the next page; null at the end.
    pub(crate) next: Option<String>,
    /// The number of messages examined, in a search of garbage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) looked_at: Option<usize>,
}

impl MessagePage {
    pub(crate) fn new(topic: &TopicHandle, group: Option<&Group>, page: Page) -> Self {
        Self {
            group: group.cloned(),
            ..Self::of_key(topic, page)
        }
    }

    /// Returns a page of the messages of one ordering key, each in its state in the first group that owes it.
    pub(crate) fn of_key(topic: &TopicHandle, page: Page) -> Self {
        Self {
            topic: topic.name().clone(),
            group: None,
            messages: page.items.into_iter().map(MessageView::from).collect(),
            next: page.next,
            looked_at: None,
        }
    }
}

/// A message without its payload and options.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct MessageView {
    pub(crate) id: MessageId,
    pub(crate) state: State,
    /// The time it is due, was due (ready, in flight) or is retried; absent if too far behind on the stream to be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) due_at: Option<String>,
    /// The time it was moved to garbage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) garbage_at: Option<String>,
    /// The number of the current or next attempt; in garbage, of attempts made.
    pub(crate) attempt: u32,
    /// Its ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) consumer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<GarbageReason>,
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
        let (reason, error) = match listed.garbage {
            Some(garbage) => (Some(garbage.reason), Some(garbage.error)),
            None => (None, listed.last_error),
        };
        Self {
            id: listed.id,
            state: listed.state,
            due_at,
            garbage_at,
            attempt: listed.attempt,
            key: listed.key.map(|key| key.as_str().to_owned()),
            consumer: listed.consumer,
            reason,
            error: error.filter(|error| !error.is_empty()),
        }
    }
}

/// The state of a message in one group.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct CopyView {
    pub(crate) group: Group,
    /// A state; `done` if the group no longer owes it; `unknown` if it may be too far behind on the stream to be found.
    #[schema(schema_with = lisa_core::openapi::copy_states)]
    pub(crate) state: Cow<'static, str>,
    /// The thing it waits for, in words; says "at least" behind many others.
    pub(crate) why: String,
    /// The message that holds its ordering key, if it is parked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<MessageId>,
    /// The last failed attempts, up to five, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) attempts: Vec<FailedAttempt>,
}

impl From<GroupCopy> for CopyView {
    fn from(copy: GroupCopy) -> Self {
        Self {
            state: Cow::Borrowed(copy.state()),
            group: copy.group,
            why: copy.why,
            holder: copy.holder,
            attempts: copy.attempts,
        }
    }
}

/// A message with its payload and options.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct FullMessage {
    pub(crate) topic: Topic,
    #[serde(flatten)]
    pub(crate) message: MessageView,
    /// The number of attempts after which it goes to garbage (dead letters): its own limit, or the topic's.
    pub(crate) max_attempts: u32,
    /// Its own retry policy, with the keys of the configuration; if absent, the topic's applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry: Option<RetryPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) merge_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<i32>,
    /// The time it expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<String>,
    /// Its state in each group, and the reason it has not run there.
    pub(crate) groups: Vec<CopyView>,
    pub(crate) headers: Headers,
    /// The payload as text, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload: Option<String>,
    /// Any other payload, in base64.
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
        Self {
            topic: topic.name().clone(),
            message: MessageView {
                key: details.key,
                ..listed.into()
            },
            max_attempts: record.max_attempts.unwrap_or(topic.settings().max_attempts),
            retry: record.retry.clone(),
            merge_key: details.merge_key,
            priority: Some(details.priority).filter(|priority| *priority != 0),
            expires_at: details.expires.map(|at| at.to_string()),
            groups: details.copies.into_iter().map(CopyView::from).collect(),
            headers: record.headers.clone(),
            payload: text,
            payload_base64,
        }
    }
}

/// The reason a message cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FindError {
    /// Redis could not be reached, or refused the call.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// No such message is stored, or it has ended.
    #[error("topic {topic} has no message {id}{}", .end.as_ref().map_or(String::new(), |end| format!(" any more: it was {end}")))]
    Unknown {
        topic: Topic,
        id: MessageId,
        end: Option<Ended>,
    },
    /// Its record is damaged.
    #[error("message {id}: {error}")]
    Unreadable { id: MessageId, error: InvalidRecord },
}

/// Finds one message of a topic by its id, and its key if that is known.
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
            topic: topic.name().clone(),
            id: id.clone(),
            end,
        }),
    }
}
