//! Why a message was not taken, or why nobody knows whether it was.

use std::sync::Arc;

use lisa_shared::broker::BrokerError;
use lisa_shared::link::LinkErrorKind;
use lisa_shared::message::{InvalidRecord, MessageId};
use lisa_shared::state::{Accepted, Blocked, SendOutcome};
use lisa_shared::topic::Topic;

/// Why a send, cancel, reschedule or get failed. That a message is known already is no error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The payload is larger than the topic allows.
    #[error("the payload has {size} bytes, the topic takes up to {limit}")]
    TooLarge {
        /// Its length in bytes.
        size: u64,
        /// The topic's `max_payload` in bytes.
        limit: u64,
    },
    /// No such topic.
    #[error("topic {0} is not registered")]
    UnknownTopic(Topic),
    /// A value is not allowed.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The value could not be written as JSON.
    #[error("encode the payload")]
    Encode(#[source] serde_json::Error),
    /// The topic holds as much as its `max_messages` or `max_bytes` allow: send less for a while. Nothing was stored.
    #[error("the topic is full")]
    Full,
    /// Redis is at its memory limit: send less for a while. Nothing was stored.
    #[error("redis is full")]
    RedisFull,
    /// The message that was to be replaced could not be cancelled. Nothing was stored.
    #[error("message {id} is not replaced: {}", why(*.blocked))]
    Unreplaced {
        /// The message that was to be replaced.
        id: MessageId,
        /// Why it could not be.
        blocked: Blocked,
    },
    /// Redis is away, or the topic is not declared yet. Nothing was done.
    #[error("unavailable: {0}")]
    Unavailable(#[source] Arc<BrokerError>),
    /// Redis is away or slow, and so many bytes of sends wait for it that this one was refused. Nothing was done.
    #[error("{limit} bytes of sends already wait for Redis; retry later")]
    Busy {
        /// The bytes that may wait in one process.
        limit: usize,
    },
    /// Nobody knows whether what was asked for this message is done, or it is done and not as safe as it was to be. Repeat
    /// it with the same id.
    #[error("the fate of message {id} is not sure: {why}")]
    Indeterminate {
        /// The message.
        id: MessageId,
        /// What happened, for people.
        why: String,
        /// Whether Redis has done it, and only the [`durability`](lisa_shared::durability) was not reached. If not, nobody
        /// knows.
        stored: bool,
    },
    /// Redis refuses, or answers what nobody expects: a person must look at it.
    #[error("redis refused: {0}")]
    Refused(#[source] Arc<BrokerError>),
    /// What is stored of the message was not written by this version, or not by Lisa.
    #[error("the stored message cannot be read: {0}")]
    Unreadable(#[from] InvalidRecord),
}

/// Says in words why a message could not be replaced.
fn why(blocked: Blocked) -> &'static str {
    match blocked {
        Blocked::InFlight => "it is ready or being handled, too late",
        Blocked::Garbage => "it was given up",
        Blocked::Unknown => "there is none on this shard, or it has ended",
    }
}

/// A value that is not allowed, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct Invalid {
    /// What it is: `topic`, `id`, `due`, `max_attempts`, `headers`, `key`, `merge_key`, `ttl`, `expires_at`, `retry`,
    /// `replace` or `durability`.
    pub field: &'static str,
    /// What is wrong with it, and what would be right.
    pub detail: String,
}

impl Invalid {
    pub(crate) fn new(field: &'static str, why: impl ToString) -> Self {
        Self {
            field,
            detail: why.to_string(),
        }
    }
}

impl SendError {
    /// Says whether the same call, with the same id, may succeed later without anything being mended.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Full
            | Self::RedisFull
            | Self::Unavailable(_)
            | Self::Busy { .. }
            | Self::Indeterminate { .. } => true,
            Self::TooLarge { .. }
            | Self::Unreplaced { .. }
            | Self::UnknownTopic(_)
            | Self::Invalid(_)
            | Self::Encode(_)
            | Self::Refused(_)
            | Self::Unreadable(_) => false,
        }
    }

    /// Says whether the message itself is at fault: repeating it as it is cannot help.
    pub(crate) fn is_about_the_message(&self) -> bool {
        matches!(
            self,
            Self::TooLarge { .. } | Self::Invalid(_) | Self::Encode(_) | Self::Unreplaced { .. }
        )
    }

    /// Gives the word for it in metrics.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "too_large",
            Self::UnknownTopic(_) => "unknown_topic",
            Self::Invalid(_) | Self::Encode(_) => "invalid",
            Self::Full | Self::RedisFull => "full",
            Self::Unreplaced { .. } => "unreplaced",
            Self::Unavailable(_) | Self::Busy { .. } => "unavailable",
            Self::Indeterminate { .. } => "indeterminate",
            Self::Refused(_) | Self::Unreadable(_) => "refused",
        }
    }

    /// Judges a failed call that named one message.
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

    /// Judges a failed call that changed nothing.
    pub(crate) fn of_call(error: Arc<BrokerError>) -> Self {
        match &*error {
            BrokerError::UnknownTopic(topic) => Self::UnknownTopic(topic.clone()),
            BrokerError::Link(link) if link.kind == LinkErrorKind::Full => Self::RedisFull,
            BrokerError::Unsupported { .. } => Invalid::new("durability", error).into(),
            BrokerError::NoKeyIndex(_) => Invalid::new("key", error).into(),
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
    /// What the messages behind a failed batch are told: they were not tried.
    pub(crate) fn of_those_behind(&self) -> Self {
        Self {
            error: self.error.clone(),
            maybe_applied: false,
        }
    }

    /// What the message at this place of the batch is told. One that was refused is not stored, however safe the others are.
    pub(crate) fn of_place(&self, place: usize) -> Result<Accepted, Self> {
        if let BrokerError::NotDurable { accepted, .. } = &*self.error
            && let Some(answer) = accepted.get(place)
            && matches!(answer.outcome, SendOutcome::Full | SendOutcome::Unreplaced)
        {
            return Ok(answer.clone());
        }
        Err(self.clone())
    }

    /// Says whether a key holds another type. Redis names the script in such an error, as if something may have been
    /// written; but ours look at the types first, and repeating the call would hide what a person must mend.
    fn is_wrong_type(&self) -> bool {
        matches!(&*self.error, BrokerError::Link(link) if link.kind == LinkErrorKind::WrongType)
    }

    /// Says whether Redis was out of reach, so that there is no use in trying the next batch now.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(&*self.error, BrokerError::Link(link) if link.kind == LinkErrorKind::Unavailable)
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
