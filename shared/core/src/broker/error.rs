//! The errors of broker calls.

use crate::broker::InvalidCursor;
use crate::durability::Durability;
use crate::keys::LAYOUT;
use crate::redis::{ConnectionError, ConnectionErrorKind};
use crate::scripts::{UnexpectedReply, unexpected};
use crate::state::Accepted;
use crate::topic::{Group, MAX_TOPICS, OverQuota, Shard, Topic};

/// The reason why a call of the broker failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// Redis was not reached, or refused the call.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The topic does not exist.
    #[error("topic {0} is not registered")]
    UnknownTopic(Topic),
    /// The topic does not exist yet. This process declares it as soon as it can. Nothing was done.
    #[error("topic {0} is not declared yet")]
    Undeclared(Topic),
    /// The topic no longer has the shard, because it was resharded or is being removed.
    #[error("topic {topic} no longer has shard {shard}")]
    ShardGone {
        /// The topic.
        topic: Topic,
        /// The shard.
        shard: Shard,
    },
    /// The topic has no such group.
    #[error("topic {topic} has no group {group}")]
    UnknownGroup {
        /// The topic.
        topic: Topic,
        /// The group.
        group: Group,
    },
    /// The topic keeps no index of its ordering keys.
    #[error("topic {0} has no key_index")]
    NoKeyIndex(Topic),
    /// The topic's groups, class, or shards changed on every try.
    #[error("topic {0} keeps changing: try again")]
    Changing(Topic),
    /// Part of a batch was stored before this error.
    #[error("only part of the batch was stored: {0}")]
    Partly(Box<BrokerError>),
    /// The call is done, but the requested durability was not reached: a failover or a crash may still lose it.
    #[error("stored, but durability {durability} was not reached: {why}")]
    NotDurable {
        /// The requested durability.
        durability: Durability,
        /// The reason, with what was reached.
        why: String,
        /// The outcomes, one for each message. A refused message is not stored.
        accepted: Vec<Accepted>,
    },
    /// The server does not support the requested durability. Nothing was done.
    #[error("durability {durability} requires {needs}")]
    Unsupported {
        /// The requested durability.
        durability: Durability,
        /// The feature that the server lacks.
        needs: &'static str,
    },
    /// The shards of a topic disagree on their number.
    #[error(
        "the shards of topic {topic} disagree on their number ({there} and {here}): run `lisa-manager doctor`"
    )]
    Fixed {
        /// The topic.
        topic: Topic,
        /// The number in Redis.
        there: u16,
        /// The declared number.
        here: u16,
    },
    /// The topic is not at the epoch that the caller has seen. If it is declared, it also has other settings than the new ones. Nothing
    /// was done.
    #[error("{}", match .there {
        0 => format!("topic {topic} does not exist"),
        there => format!("topic {topic} already exists or has changed: it is at epoch {there}"),
    })]
    Epoch {
        /// The topic.
        topic: Topic,
        /// Its epoch, 0 if it does not exist.
        there: u64,
    },
    /// The topic would exceed the quota of the caller. Nothing was done.
    #[error("topic {topic}: {over}")]
    OverQuota {
        /// The topic.
        topic: Topic,
        /// The way in which it would.
        over: OverQuota,
    },
    /// There are as many topics as may be declared by call. Nothing was done.
    #[error("topic {0} is not created: the limit of {MAX_TOPICS} topics is reached")]
    TooManyTopics(Topic),
    /// The topic would have more than 128 groups. Nothing was done.
    #[error(
        "topic {topic} would have {groups} groups, must be at most 128: drain or drop those that its settings no longer name"
    )]
    TooManyGroups {
        /// The topic.
        topic: Topic,
        /// The number of groups, without those of instances.
        groups: usize,
    },
    /// The topic is being removed. Nothing was done.
    #[error("topic {0} is being removed")]
    BeingRemoved(Topic),
    /// The topic is being resharded to another number of shards.
    #[error(
        "topic {topic} is being resharded to {to} shards: try again when that has finished; if `lisa-manager topics reshard` \
         was interrupted, run it again"
    )]
    Resharding {
        /// The topic.
        topic: Topic,
        /// The new number of shards.
        to: u16,
    },
    /// The topic's keys were written by an incompatible version of Lisa. Nothing was done.
    #[error(
        "topic {topic} has layout {there} in Redis, this version supports {LAYOUT}: run the version that wrote it, \
         or a newer one"
    )]
    Layout {
        /// The topic.
        topic: Topic,
        /// The layout in Redis.
        there: u64,
    },
    /// The settings in Redis are unreadable, or new ones are invalid.
    #[error("invalid settings of topic {topic}: {error}")]
    Settings {
        /// The topic.
        topic: Topic,
        /// The reason.
        error: String,
    },
    /// The stream of the failed attempts of a shard is damaged. Nothing else depends on it.
    #[error(
        "the failed attempts of topic {topic} on shard {shard} are unreadable: {error}: run `lisa-manager doctor {topic}`"
    )]
    UnreadableFailures {
        /// The topic.
        topic: Topic,
        /// The shard.
        shard: Shard,
        /// The refusal by Redis.
        error: Box<ConnectionError>,
    },
    /// The start of a page is not one that a previous page returned.
    #[error("cursor: {0}")]
    Cursor(#[from] InvalidCursor),
    /// Redis sent an unexpected reply.
    #[error("{what}: unexpected reply: {error}")]
    Reply {
        /// The script or command.
        what: &'static str,
        /// The part of the reply that was not expected.
        error: UnexpectedReply,
    },
}

impl BrokerError {
    /// Returns the error of an unexpected reply to a script or command.
    pub(crate) fn reply(
        what: &'static str,
        expected: &'static str,
        got: &dyn std::fmt::Debug,
    ) -> Self {
        let error = unexpected(expected, got);
        Self::Reply { what, error }
    }

    /// Returns the error of a read of the failed attempts of a shard. A key of a wrong type is named as such.
    pub(crate) fn of_failures(self, topic: &Topic, shard: Shard) -> Self {
        match self {
            Self::Connection(error) if error.kind == ConnectionErrorKind::WrongType => {
                Self::UnreadableFailures {
                    topic: topic.clone(),
                    shard,
                    error: Box::new(error),
                }
            }
            other => other,
        }
    }

    /// Returns the kind of a connection error.
    pub(crate) fn kind(&self) -> Option<ConnectionErrorKind> {
        match self {
            Self::Connection(error) => Some(error.kind),
            _ => None,
        }
    }

    /// Returns true if the same call may succeed later without a repair by an operator.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connection(error) => error.is_retryable(),
            Self::Changing(_)
            | Self::Undeclared(_)
            | Self::ShardGone { .. }
            | Self::NotDurable { .. } => true,
            Self::Partly(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// Returns true if the topic, the group or the shard does not exist, or no longer does.
    pub fn is_gone(&self) -> bool {
        matches!(
            self,
            Self::UnknownTopic(_) | Self::UnknownGroup { .. } | Self::ShardGone { .. }
        )
    }

    /// Returns true if the stored data of the topic is at fault, so that calls for other topics may succeed.
    pub fn is_of_one_topic(&self) -> bool {
        match self {
            Self::Connection(error) => matches!(
                error.kind,
                ConnectionErrorKind::WrongType
                    | ConnectionErrorKind::NoGroup
                    | ConnectionErrorKind::Script
            ),
            Self::Partly(error) => error.is_of_one_topic(),
            _ => true,
        }
    }

    /// Returns true if Redis replied, even with an error, and did not leave the caller waiting.
    pub fn is_answered(&self) -> bool {
        match self {
            Self::Connection(error) => error.code.is_some(),
            Self::Partly(error) => error.is_answered(),
            _ => true,
        }
    }

    /// Returns true if the slot of the keys is partly on one node and partly on another.
    pub fn is_slot_moving(&self) -> bool {
        match self {
            Self::Connection(error) => error.is_slot_moving(),
            Self::Partly(error) => error.is_slot_moving(),
            _ => false,
        }
    }

    /// Returns true if the reply did not arrive completely within the response timeout.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Connection(error) if error.is_late)
    }

    /// Returns this error of a repeat as that of the whole call, whose first try Redis may have applied.
    pub(super) fn of_repeat(self) -> Self {
        match self {
            Self::Connection(error) => Self::Connection(ConnectionError {
                maybe_applied: true,
                ..error
            }),
            other => other,
        }
    }

    /// Returns true if Redis may have applied the call, or part of it.
    pub fn maybe_applied(&self) -> bool {
        match self {
            Self::Connection(error) => error.maybe_applied,
            Self::Reply { .. } | Self::Partly(_) | Self::NotDurable { .. } => true,
            _ => false,
        }
    }
}
