//! Why Redis could not be asked, or answered what nobody expects.

use crate::durability::Durability;
use crate::keys::LAYOUT;
use crate::link::{LinkError, LinkErrorKind};
use crate::scripts::UnexpectedReply;
use crate::state::Accepted;
use crate::topic::{Group, Shard, Topic};

/// Why a call of the broker failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// Redis was not reached, or refused.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// No such topic.
    #[error("topic {0} is not registered")]
    UnknownTopic(Topic),
    /// No such topic yet: this process declares it as soon as it can. Nothing was done.
    #[error("topic {0} is not declared yet")]
    Undeclared(Topic),
    /// The topic has no such shard: it had, before it was resharded.
    #[error("topic {topic} has no shard {shard} any more")]
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
    /// The topic's groups, class or shards changed with each try.
    #[error("topic {0} keeps changing")]
    Changing(Topic),
    /// Part of a batch was stored before this went wrong.
    #[error("part of the batch was stored: {0}")]
    Partly(Box<BrokerError>),
    /// What was asked for is done, but not as safe as it was to be: a fail-over or a crash may still lose it.
    #[error("it is stored, but {durability} was not reached: {why}")]
    NotDurable {
        /// What was asked for.
        durability: Durability,
        /// What was reached.
        why: String,
        /// What was answered, one for each message: what was refused is not stored.
        accepted: Vec<Accepted>,
    },
    /// The server cannot do what was asked for. Nothing was done.
    #[error("durability {durability} needs {needs}")]
    Unsupported {
        /// What was asked for.
        durability: Durability,
        /// What the server lacks.
        needs: &'static str,
    },
    /// The shards of a topic do not agree on how many they are.
    #[error(
        "a shard of topic {topic} says that there are {there}, not {here}: run `lisa-manager doctor`"
    )]
    Fixed {
        /// The topic.
        topic: Topic,
        /// What Redis holds.
        there: u16,
        /// What was declared.
        here: u16,
    },
    /// The topic is on its way to another number of shards.
    #[error("topic {topic} is being resharded to {to}: that must be finished first")]
    Resharding {
        /// The topic.
        topic: Topic,
        /// How many it will have.
        to: u16,
    },
    /// The topic's keys are of another version of Lisa. Nothing was done.
    #[error(
        "topic {topic} has layout {there} in redis, this version knows {LAYOUT}: run the version that wrote it, or a newer one"
    )]
    Layout {
        /// The topic.
        topic: Topic,
        /// What Redis holds.
        there: u64,
    },
    /// The settings in Redis cannot be read.
    #[error("the settings of topic {topic} in redis cannot be read: {error}")]
    Settings {
        /// The topic.
        topic: Topic,
        /// Why.
        error: String,
    },
    /// A reply that should not exist.
    #[error("{what}: unexpected reply: {error}")]
    Reply {
        /// The script or command.
        what: &'static str,
        /// What was wrong with it.
        error: UnexpectedReply,
    },
}

impl BrokerError {
    /// Says whether the same call may succeed later without anything being mended by a person.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Link(error) => error.is_retryable(),
            Self::Changing(_)
            | Self::Undeclared(_)
            | Self::ShardGone { .. }
            | Self::NotDurable { .. } => true,
            Self::Partly(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// Says whether what is stored of the topic is at fault, so that other topics may do.
    pub fn is_of_one_topic(&self) -> bool {
        match self {
            Self::Link(error) => matches!(
                error.kind,
                LinkErrorKind::WrongType | LinkErrorKind::NoGroup | LinkErrorKind::Script
            ),
            Self::Partly(error) => error.is_of_one_topic(),
            _ => true,
        }
    }

    /// Says whether Redis answered: with an error, but it did not leave the caller waiting.
    pub fn is_answered(&self) -> bool {
        match self {
            Self::Link(error) => error.code.is_some(),
            Self::Partly(error) => error.is_answered(),
            _ => true,
        }
    }

    /// Says whether the slot of the keys is half on one node and half on another.
    pub fn is_slot_moving(&self) -> bool {
        match self {
            Self::Link(error) => error.is_slot_moving(),
            Self::Partly(error) => error.is_slot_moving(),
            _ => false,
        }
    }

    /// Says whether a reply did not come whole within the response time-out.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Link(error) if error.is_late)
    }

    /// Says whether Redis may have done what was asked, though nobody knows.
    pub fn maybe_applied(&self) -> bool {
        match self {
            Self::Link(error) => error.maybe_applied,
            Self::Reply { .. } | Self::Partly(_) | Self::NotDurable { .. } => true,
            _ => false,
        }
    }
}
