//! The errors of the command line, and their exit codes.

use lisa_core::broker::BrokerError;
use lisa_service::role::StartError;

use crate::operations::topics::AllTopicsError;

/// The reason a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CliError {
    /// The configuration, Redis, the listener or a task failed.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The command is valid, but could not be carried out.
    #[error("{0}")]
    Failed(String),
    /// The command line is invalid.
    #[error("{0}")]
    Usage(String),
    /// The result could not be printed, or the runtime could not be created.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl CliError {
    /// Returns the exit code of the process: that of a [`StartError`], 1 for a failure, 2 for wrong usage.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Start(error) => error.exit_code(),
            Self::Failed(_) | Self::Io(_) => 1,
            Self::Usage(_) => 2,
        }
    }
}

impl From<AllTopicsError> for CliError {
    fn from(error: AllTopicsError) -> Self {
        match error {
            AllTopicsError::Broker(error) => error.into(),
            AllTopicsError::Unanswered => StartError::Unavailable(error.to_string()).into(),
        }
    }
}

impl From<BrokerError> for CliError {
    fn from(error: BrokerError) -> Self {
        Self::Start(error.into())
    }
}
