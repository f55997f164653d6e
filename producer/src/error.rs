//! The errors of sends and other calls of the producer.

use std::sync::Arc;

use lisa_core::broker::BrokerError;
use lisa_core::message::{InvalidRecord, MessageId};
use lisa_core::redis::ConnectionErrorKind;
use lisa_core::state::{Accepted, Blocked, SendOutcome};
use lisa_core::topic::Topic;

/// The reason a send, cancel, reschedule or get failed. A duplicate is not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The payload is larger than the topic allows.
    #[error("payload of at least {size} bytes; the topic's max_payload is {limit} bytes")]
    TooLarge {
        /// Its length in bytes, or that of the part that was read.
        size: u64,
        /// The topic's `max_payload` in bytes.
        limit: u64,
    },
    /// No such topic.
    #[error("topic {0} is not registered")]
    UnknownTopic(Topic),
    /// The topic is being removed, and accepts no new messages.
    #[error("topic {0} is being removed: it accepts no new messages")]
    BeingRemoved(Topic),
    /// A value is not allowed.
    #[error(transparent)]
    Invalid(#[from] InvalidField),
    /// The value could not be encoded as JSON.
    #[error("cannot encode the payload as JSON: {0}")]
    Encode(#[source] serde_json::Error),
    /// The topic has reached its `max_messages` or `max_bytes`: back off and retry. Nothing was stored.
    #[error("the topic has reached its max_messages or max_bytes; nothing was stored")]
    Full,
    /// The token of the client has sent as many messages as it may in a second, in this process: back off and retry. Nothing was stored.
    #[error(
        "the token may send {per_second} messages a second in each process; nothing was stored"
    )]
    OverQuota {
        /// Its quota.
        per_second: u32,
    },
    /// Redis has reached its memory limit: back off and retry. Nothing was stored.
    #[error("Redis has reached its memory limit; nothing was stored")]
    RedisFull,
    /// The message that was to be replaced could not be cancelled. Nothing was stored.
    #[error("cannot replace message {id}: {}", why(*.blocked))]
    ReplaceConflict {
        /// The message that was to be replaced.
        id: MessageId,
        /// The reason it could not be.
        blocked: Blocked,
    },
    /// Redis is unavailable, or the topic is not declared yet. Nothing was done.
    #[error("unavailable: {0}")]
    Unavailable(#[source] Arc<BrokerError>),
    /// Redis is unavailable or slow, and the sends that wait for it fill the buffer. Nothing was done.
    #[error("send buffer full: {limit} bytes already waiting for Redis")]
    Busy {
        /// The size of the buffer, in bytes per producer.
        limit: usize,
    },
    /// It is unknown whether the call took effect, or it did without reaching the requested durability. Repeat it with the
    /// same id.
    #[error("outcome of message {id} is uncertain: {why}")]
    Indeterminate {
        /// The message.
        id: MessageId,
        /// A description of the failure.
        why: String,
        /// True if the call took effect, and only the [`durability`](lisa_core::durability) was not reached. False if it is
        /// unknown whether it took effect.
        stored: bool,
    },
    /// Redis refused the call, or its reply was unexpected: an operator must look into it.
    #[error("Redis refused the call: {0}")]
    Refused(#[source] Arc<BrokerError>),
    /// The stored message cannot be decoded: another version, or another program, wrote it.
    #[error("cannot read the stored message: {0}")]
    Unreadable(#[from] InvalidRecord),
}

/// Returns the reason that a message could not be replaced, in words.
fn why(blocked: Blocked) -> &'static str {
    match blocked {
        Blocked::InFlight => "it is ready or in flight",
        Blocked::Garbage => "it is in garbage",
        Blocked::Unknown => "it is not stored on this shard, or has ended",
    }
}

/// A value that is not allowed, and the field it is in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct InvalidField {
    /// The field: `topic`, `settings`, `id`, `due`, `max_attempts`, `headers`, `key`, `merge_key`, `ttl`, `expires_at`,
    /// `retry`, `replace` or `durability`.
    pub field: &'static str,
    /// The problem with the value, and the allowed values.
    pub detail: String,
}

impl InvalidField {
    pub(crate) fn new(field: &'static str, why: impl ToString) -> Self {
        Self {
            field,
            detail: why.to_string(),
        }
    }
}

impl SendError {
    /// Returns true if the same call, with the same id, may succeed later without a repair.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Full
            | Self::OverQuota { .. }
            | Self::RedisFull
            | Self::Unavailable(_)
            | Self::Busy { .. }
            | Self::Indeterminate { .. } => true,
            Self::TooLarge { .. }
            | Self::ReplaceConflict { .. }
            | Self::UnknownTopic(_)
            | Self::BeingRemoved(_)
            | Self::Invalid(_)
            | Self::Encode(_)
            | Self::Refused(_)
            | Self::Unreadable(_) => false,
        }
    }

    /// Returns true if the message itself is at fault, so that repeating it unchanged cannot help.
    #[cfg(feature = "cli")]
    pub(crate) fn is_about_the_message(&self) -> bool {
        matches!(
            self,
            Self::TooLarge { .. }
                | Self::Invalid(_)
                | Self::Encode(_)
                | Self::ReplaceConflict { .. }
        )
    }

    /// Returns the outcome label of this error in metrics.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "too_large",
            Self::UnknownTopic(_) | Self::BeingRemoved(_) => "unknown_topic",
            Self::Invalid(_) | Self::Encode(_) => "invalid",
            Self::Full | Self::RedisFull => "full",
            Self::OverQuota { .. } => "over_quota",
            Self::ReplaceConflict { .. } => "replace_conflict",
            Self::Unavailable(_) | Self::Busy { .. } => "unavailable",
            Self::Indeterminate { .. } => "indeterminate",
            Self::Refused(_) | Self::Unreadable(_) => "refused",
        }
    }

    /// Converts the failure of a call for one message.
    pub(crate) fn of_message(failure: Failure, id: &MessageId) -> Self {
        if failure.maybe_applied && !failure.is_wrong_type() {
            Self::Indeterminate {
                id: id.clone(),
                why: failure.error.to_string(),
                stored: matches!(&*failure.error, BrokerError::NotDurable { .. }),
            }
        } else {
            Self::of_call(failure.error)
        }
    }

    /// Converts the failure of a call that changed nothing.
    pub(crate) fn of_call(error: Arc<BrokerError>) -> Self {
        match &*error {
            BrokerError::UnknownTopic(topic) => Self::UnknownTopic(topic.clone()),
            BrokerError::BeingRemoved(topic) => Self::BeingRemoved(topic.clone()),
            BrokerError::Connection(connection) if connection.kind == ConnectionErrorKind::Full => {
                Self::RedisFull
            }
            BrokerError::Unsupported { .. } => InvalidField::new("durability", error).into(),
            BrokerError::NoKeyIndex(_) => InvalidField::new("key", error).into(),
            retryable if retryable.is_retryable() => Self::Unavailable(error),
            _ => Self::Refused(error),
        }
    }
}

/// A failed call, shared by all messages of its batch.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) error: Arc<BrokerError>,
    pub(crate) maybe_applied: bool,
}

impl Failure {
    /// Returns the failure for the messages behind a failed batch, which were not tried.
    pub(crate) fn of_those_behind(&self) -> Self {
        Self {
            error: self.error.clone(),
            maybe_applied: false,
        }
    }

    /// Returns the answer for the message at this index of the batch. If only the durability was missed, a message that was
    /// refused keeps its refusal: it is not stored.
    pub(crate) fn of_index(&self, index: usize) -> Result<Accepted, Self> {
        if let BrokerError::NotDurable { accepted, .. } = &*self.error
            && let Some(answer) = accepted.get(index)
            && matches!(
                answer.outcome,
                SendOutcome::Full | SendOutcome::ReplaceConflict
            )
        {
            return Ok(answer.clone());
        }
        Err(self.clone())
    }

    /// Returns true if a key holds a value of another type. Redis reports this as an error of the script, as if a write may
    /// have happened. Lisa's scripts check types before they write, and repeating the call would hide a fault that an
    /// operator must repair.
    fn is_wrong_type(&self) -> bool {
        matches!(&*self.error, BrokerError::Connection(connection) if connection.kind == ConnectionErrorKind::WrongType)
    }

    /// Returns true if Redis was unavailable, so that trying the next batch now is pointless.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(&*self.error, BrokerError::Connection(connection) if connection.kind == ConnectionErrorKind::Unavailable)
    }
}

impl From<BrokerError> for Failure {
    fn from(error: BrokerError) -> Self {
        Self {
            maybe_applied: error.maybe_applied(),
            error: Arc::new(error),
        }
    }
}
