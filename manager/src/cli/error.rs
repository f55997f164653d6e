//! The errors of the command line, and their exit codes.

use std::fmt;

use lisa_core::broker::BrokerError;
use lisa_service::cli::escape;
use lisa_service::role::StartError;
use serde_json::Value;

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
    /// The manager refused the request.
    #[error("{0}")]
    Refused(Refusal),
    /// A verb for messages failed.
    #[error(transparent)]
    Message(#[from] lisa_producer::cli::CliError),
    /// The result could not be printed, or the runtime could not be created.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl CliError {
    /// Returns true if the same request may succeed later: a manager or its Redis is unavailable.
    pub(crate) fn is_unavailable(&self) -> bool {
        match self {
            Self::Start(error) => matches!(error, StartError::Unavailable(_)),
            Self::Refused(refusal) => matches!(refusal.status, 502..=504),
            _ => false,
        }
    }

    /// Returns the exit code of the process: that of a [`StartError`], 1 for a failure, 2 for wrong usage.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Start(error) => error.exit_code(),
            Self::Failed(_) | Self::Io(_) => 1,
            Self::Usage(_) => 2,
            Self::Message(error) => error.exit_code(),
            Self::Refused(refusal) => refusal.exit_code(),
        }
    }
}

/// A request that a manager refused, as problem details.
#[derive(Debug)]
pub struct Refusal {
    status: u16,
    code: String,
    text: String,
    is_usage: bool,
    problem: Box<Value>,
}

impl Refusal {
    /// Creates a refusal. Of an invalid value, it names the option, as the command line does over Redis.
    pub(crate) fn new(status: u16, code: String, text: &str, problem: Value) -> Self {
        let (mut text, mut is_usage) = (text.to_owned(), false);
        if let Some(error) = problem["errors"].get(0) {
            let word = |name: &str| error[name].as_str().unwrap_or_default();
            text = match word("field") {
                // The option is right, but the topic has no such group, or no index of keys.
                "group" | "key" => word("detail").to_owned(),
                field => {
                    is_usage = true;
                    format!("--{field}: {}", word("detail"))
                }
            };
        }
        Self {
            status,
            code,
            text: escape(&text).into_owned(),
            is_usage,
            problem: Box::new(problem),
        }
    }

    /// Returns the code of the problem.
    pub(crate) fn code(&self) -> &str {
        &self.code
    }

    /// Returns the problem.
    pub(crate) fn problem(&self) -> &Value {
        &self.problem
    }

    fn exit_code(&self) -> u8 {
        match self.status {
            502..=504 => 69,
            _ if self.is_usage => 2,
            _ => 1,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
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
        match error {
            BrokerError::Cursor(_) => Self::Usage(error.to_string()),
            error => Self::Start(error.into()),
        }
    }
}
