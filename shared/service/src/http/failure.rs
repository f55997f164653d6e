//! Converts failures of the broker to problems.

use std::fmt::Display;

use lisa_core::broker::{Broker, BrokerError};
use lisa_core::redis::ConnectionErrorKind;

use super::client::may_learn_names;
use super::problem::{Problem, ProblemCode};

impl Problem {
    /// Converts a failure that is not the fault of the request, and logs it.
    pub fn internal(error: &dyn Display) -> Self {
        tracing::error!(%error, "request failed");
        Self::new(ProblemCode::Internal, error.to_string())
    }

    /// Converts a failure of the broker. One about an unknown topic suggests the nearest known topic, if the client may read.
    pub fn suggesting_topic(error: BrokerError, broker: &Broker) -> Self {
        match &error {
            BrokerError::UnknownTopic(topic) if may_learn_names() => {
                let help = match broker.suggest_topic(topic) {
                    none if none.is_empty() => {
                        format!(
                            ": declare it in the managers' configuration, or run `lisa-manager topics create {topic}`"
                        )
                    }
                    suggestion => suggestion,
                };
                Self::new(ProblemCode::UnknownTopic, format!("{error}{help}"))
            }
            _ => error.into(),
        }
    }
}

/// Converts a failure of the broker.
impl From<BrokerError> for Problem {
    fn from(error: BrokerError) -> Self {
        let code = match &error {
            BrokerError::UnknownTopic(_) | BrokerError::BeingRemoved(_) => {
                ProblemCode::UnknownTopic
            }
            BrokerError::UnknownGroup { .. } => ProblemCode::NotFound,
            BrokerError::Epoch { .. } => ProblemCode::PreconditionFailed,
            BrokerError::OverQuota { .. } => ProblemCode::Quota,
            BrokerError::TooManyTopics(_) | BrokerError::TooManyGroups { .. } => ProblemCode::Busy,
            BrokerError::Cursor(wrong) => {
                let problem = Self::new(ProblemCode::Invalid, error.to_string());
                return problem.error("cursor", wrong.to_string());
            }
            BrokerError::Changing(_)
            | BrokerError::Undeclared(_)
            | BrokerError::Resharding { .. }
            | BrokerError::ShardGone { .. } => ProblemCode::Unavailable,
            BrokerError::Connection(connection)
                if connection.kind == ConnectionErrorKind::Unavailable =>
            {
                match connection.maybe_applied {
                    true => ProblemCode::Indeterminate,
                    false => ProblemCode::Unavailable,
                }
            }
            _ => return Self::internal(&error),
        };
        Self::new(code, error.to_string())
    }
}
