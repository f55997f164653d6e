//! Why Redis could not be asked, or answered what nobody expects.

use crate::link::{LinkError, LinkErrorKind};
use crate::scripts::UnexpectedReply;
use crate::topic::{Group, Topic};

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
    /// The topic has no such group.
    #[error("topic {topic} has no group {group}")]
    UnknownGroup {
        /// The topic.
        topic: Topic,
        /// The group.
        group: Group,
    },
    /// The topic's class is one that this version does not know.
    #[error("topic {0} uses features of a newer version")]
    Class(Topic),
    /// A declaration that differs in what cannot be changed.
    #[error(
        "topic {topic} has {what} {there}, the configuration says {here}: this is fixed for the life of a topic"
    )]
    Fixed {
        /// The topic.
        topic: Topic,
        /// `shards` or `groups`.
        what: &'static str,
        /// What Redis holds.
        there: String,
        /// What was declared.
        here: String,
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
        matches!(self, Self::Link(error) if error.is_retryable())
    }

    /// Says whether what is stored of the topic is at fault, so that other topics may do.
    pub fn is_of_one_topic(&self) -> bool {
        match self {
            Self::Link(error) => matches!(
                error.kind,
                LinkErrorKind::WrongType | LinkErrorKind::NoGroup | LinkErrorKind::Script
            ),
            Self::UnknownTopic(_)
            | Self::UnknownGroup { .. }
            | Self::Class(_)
            | Self::Fixed { .. }
            | Self::Settings { .. }
            | Self::Reply { .. } => true,
        }
    }

    /// Says whether Redis answered: with an error, but it did not leave the caller waiting.
    pub fn is_answered(&self) -> bool {
        match self {
            Self::Link(error) => error.code.is_some(),
            Self::UnknownTopic(_)
            | Self::UnknownGroup { .. }
            | Self::Class(_)
            | Self::Fixed { .. }
            | Self::Settings { .. }
            | Self::Reply { .. } => true,
        }
    }

    /// Says whether Redis may have done what was asked, though nobody knows.
    pub fn maybe_applied(&self) -> bool {
        match self {
            Self::Link(error) => error.maybe_applied,
            Self::Reply { .. } => true,
            Self::UnknownTopic(_)
            | Self::UnknownGroup { .. }
            | Self::Class(_)
            | Self::Fixed { .. }
            | Self::Settings { .. } => false,
        }
    }
}
