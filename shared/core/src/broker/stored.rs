//! A stored message: the same fields in Rust and in the JSON of every process.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::broker::stats::text;
use crate::broker::{Details, FailedAttempt, GarbageInfo, GroupCopy, TopicHandle};
use crate::message::{Headers, InvalidRecord, MessageId, OrderingKey, Record};
use crate::retry::RetryPolicy;
use crate::state::{GarbageReason, State};
use crate::time::UnixMs;
use crate::topic::{Group, Topic};

/// A stored message without its payload and most of its options, as in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListedMessage {
    /// Its id.
    pub id: MessageId,
    /// Its state. That of a lookup is its state in the first group that owes it.
    pub state: State,
    /// The time it is due, was due (ready, in flight) or is retried; absent in garbage, and if too far behind on the stream to
    /// be read.
    #[serde(default, with = "text", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = false))]
    pub due_at: Option<UnixMs>,
    /// The time it was moved to garbage (dead letters).
    #[serde(default, with = "text", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = false))]
    pub garbage_at: Option<UnixMs>,
    /// The number of the current or next attempt; in garbage, of attempts made.
    pub attempt: u32,
    /// Its ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = OrderingKey, required = false))]
    pub key: Option<OrderingKey>,
    /// The consumer that holds it while it is in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = false))]
    pub consumer: Option<String>,
    /// The reason it is in garbage.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = GarbageReason, required = false))]
    pub reason: Option<GarbageReason>,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = false))]
    pub error: Option<String>,
}

impl ListedMessage {
    /// Creates one without a key, a consumer, a reason or an error. The time is that of its state.
    #[must_use]
    pub fn new(id: MessageId, state: State, time: Option<UnixMs>, attempt: u32) -> Self {
        let (due_at, garbage_at) = match state {
            State::Garbage => (None, time),
            _ => (time, None),
        };
        Self {
            id,
            state,
            due_at,
            garbage_at,
            attempt,
            key: None,
            consumer: None,
            reason: None,
            error: None,
        }
    }

    /// Creates one in garbage, from its text there. If that is unreadable, it has no reason and no attempts.
    pub(super) fn in_garbage(id: MessageId, time: Option<UnixMs>, text: &str) -> Self {
        let listed = Self::new(id, State::Garbage, time, 0);
        match GarbageInfo::parse(text) {
            Some(info) => Self {
                attempt: info.attempts,
                reason: Some(info.reason),
                error: Some(info.error).filter(|error| !error.is_empty()),
                ..listed
            },
            None => listed,
        }
    }

    /// Returns the time of its state: the one it was moved to garbage, or the one it is or was due.
    #[must_use]
    pub fn time(&self) -> Option<UnixMs> {
        self.garbage_at.or(self.due_at)
    }
}

/// The state of a message in one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageInGroup {
    /// The group.
    pub group: Group,
    /// A state; `done` if the group no longer owes it; `unknown` if it may be too far behind on the stream to be found.
    #[cfg_attr(feature = "openapi", schema(schema_with = crate::openapi::copy_states))]
    pub state: Cow<'static, str>,
    /// The thing it waits for, in words; says "at least" behind many others.
    pub why: String,
    /// The message that holds its ordering key, if it is parked.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = MessageId, required = false))]
    pub holder: Option<MessageId>,
    /// The last failed attempts, up to five, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<FailedAttempt>,
}

impl From<GroupCopy> for MessageInGroup {
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

/// A stored message with its payload, its options and its state in each group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Message))]
pub struct StoredMessage {
    /// Its topic.
    pub topic: Topic,
    /// The fields that a list shows, too.
    #[serde(flatten)]
    pub listed: ListedMessage,
    /// The time it was sent, by the clock of its sender; absent if the sender chose its id.
    #[serde(default, with = "text", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = false))]
    pub sent_at: Option<UnixMs>,
    /// The number of attempts after which it goes to garbage (dead letters): its own limit, or the topic's.
    pub max_attempts: u32,
    /// Its own retry policy, with the keys of the configuration; if absent, the topic's applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = RetryPolicy, required = false))]
    pub retry: Option<RetryPolicy>,
    /// Its merge key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = false))]
    pub merge_key: Option<String>,
    /// Its priority.
    pub priority: i32,
    /// The time it expires.
    #[serde(default, with = "text", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = false))]
    pub expires_at: Option<UnixMs>,
    /// Its state in each group, and the reason it has not run there.
    pub groups: Vec<MessageInGroup>,
    /// Its headers.
    pub headers: Headers,
    /// Its payload.
    #[serde(flatten)]
    pub payload: Payload,
}

impl StoredMessage {
    /// Combines what a lookup in a topic has found.
    ///
    /// # Errors
    /// [`InvalidRecord`]: the record is damaged.
    pub fn new(
        topic: &TopicHandle,
        listed: ListedMessage,
        record: Bytes,
        details: Details,
    ) -> Result<Self, InvalidRecord> {
        let record = Record::decode(record)?;
        Ok(Self {
            topic: topic.name().clone(),
            sent_at: listed.id.generated_at(),
            listed,
            max_attempts: record.max_attempts.unwrap_or(topic.settings().max_attempts),
            retry: record.retry,
            merge_key: details.merge_key,
            priority: details.priority,
            expires_at: details.expires,
            groups: details.copies.into_iter().map(Into::into).collect(),
            headers: record.headers,
            payload: Payload(record.payload),
        })
    }
}

/// The payload of a message. In JSON, it is the field `payload` if it is UTF-8, else `payload_base64`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "PayloadFields", try_from = "PayloadFields")]
pub struct Payload(pub Bytes);

/// The payload of a message: exactly one of these fields.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
struct PayloadFields {
    /// The payload, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = false))]
    payload: Option<String>,
    /// Any other payload, in base64 with padding.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = false))]
    payload_base64: Option<String>,
}

impl Payload {
    /// Returns it as text, if it is UTF-8.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl From<Payload> for PayloadFields {
    fn from(payload: Payload) -> Self {
        let text = payload.text().map(str::to_owned);
        let payload_base64 = match text {
            Some(_) => None,
            None => Some(STANDARD.encode(payload.0)),
        };
        Self {
            payload: text,
            payload_base64,
        }
    }
}

impl TryFrom<PayloadFields> for Payload {
    type Error = base64::DecodeError;

    fn try_from(fields: PayloadFields) -> Result<Self, Self::Error> {
        match (fields.payload, fields.payload_base64) {
            (Some(text), _) => Ok(Self(text.into())),
            (None, Some(text)) => STANDARD.decode(text).map(|bytes| Self(bytes.into())),
            (None, None) => Ok(Self::default()),
        }
    }
}

#[cfg(feature = "openapi")]
crate::openapi_schema!(Payload, <PayloadFields as utoipa::PartialSchema>::schema());

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_is_the_same_after_json_and_absent_values_are_no_fields() {
        let message = StoredMessage {
            topic: "orders".parse().unwrap(),
            listed: ListedMessage {
                id: "order-7".parse().unwrap(),
                state: State::Retry,
                due_at: Some(UnixMs::new(1_700_000_000_123)),
                garbage_at: None,
                attempt: 2,
                key: None,
                consumer: None,
                reason: None,
                error: Some("no".to_owned()),
            },
            sent_at: None,
            max_attempts: 16,
            retry: None,
            merge_key: None,
            priority: 0,
            expires_at: None,
            groups: Vec::new(),
            headers: Headers::default(),
            payload: Payload(Bytes::from_static(b"hello")),
        };
        let expected = json!({
            "topic": "orders", "id": "order-7", "state": "retry", "due_at": "2023-11-14T22:13:20.123Z", "attempt": 2, "error": "no",
            "max_attempts": 16, "priority": 0, "groups": [], "headers": {}, "payload": "hello",
        });
        assert_eq!(serde_json::to_value(&message).unwrap(), expected);
        let read: StoredMessage = serde_json::from_value(expected).unwrap();
        assert_eq!(read, message);
    }

    #[test]
    fn a_payload_that_is_not_text_is_base64() {
        let payload = Payload(Bytes::from_static(&[0, 255]));
        let expected = json!({ "payload_base64": "AP8=" });
        assert_eq!(serde_json::to_value(&payload).unwrap(), expected);
        let read: Payload = serde_json::from_value(expected).unwrap();
        assert_eq!(read, payload);
        let broken = serde_json::from_value::<Payload>(json!({ "payload_base64": "?" }));
        assert!(broken.is_err());
    }
}
