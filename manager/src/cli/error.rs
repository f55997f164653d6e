//! The errors of the command line, and their exit codes.

use std::fmt;

use axum::http::StatusCode;
use lisa_core::broker::BrokerError;
use lisa_service::cli::escape;
use lisa_service::role::StartError;
use serde_json::Value;

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
    /// The request was refused.
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
            Self::Refused(refusal) => refusal.is_unavailable(),
            _ => false,
        }
    }

    /// Turns a refusal of fields that were given as `KEY=VALUE` into wrong usage. Its detail names them.
    pub(crate) fn about_settings(self) -> Self {
        match self {
            Self::Refused(refusal) if refusal.code() == "invalid" => {
                Self::Usage(refusal.detail().to_owned())
            }
            other => other,
        }
    }

    /// Advises how to change a topic that exists with other settings.
    pub(crate) fn about_creation(mut self) -> Self {
        if let Self::Refused(refusal) = &mut self
            && refusal.code() == "precondition_failed"
        {
            refusal.text.push_str("; change it with `topics change`");
        }
        self
    }

    /// Names the options of `topics remove` in a refusal that advises the values of `how`.
    pub(crate) fn about_removal(mut self) -> Self {
        if let Self::Refused(refusal) = &mut self
            && refusal.code() == "not_empty"
        {
            refusal.text = refusal.text.replace("how=", "--");
        }
        self
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

/// A request that was refused, as problem details.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    problem: Box<Value>,
    is_usage: bool,
    pub(super) text: String,
}

impl Refusal {
    /// Creates a refusal. For an invalid value, its text names the option.
    pub(crate) fn new(status: StatusCode, problem: Value) -> Self {
        let mut refusal = Self {
            status,
            problem: Box::new(problem),
            is_usage: false,
            text: String::new(),
        };
        refusal.text = match refusal.detail() {
            "" => status.to_string(),
            detail => detail.to_owned(),
        };
        if let Some(error) = refusal.problem["errors"].get(0) {
            let word = |name: &str| error[name].as_str().unwrap_or_default();
            let (field, detail) = (word("field"), word("detail"));
            (refusal.is_usage, refusal.text) = match field {
                // The option is right, but the topic has no such group, or no index of keys.
                "group" | "key" => (false, detail.to_owned()),
                field => (true, format!("--{field}: {detail}")),
            };
        }
        refusal
    }

    /// Returns the status of the response.
    pub(super) const fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the code of the problem; empty if the response is not a problem.
    pub(crate) fn code(&self) -> &str {
        self.problem["code"].as_str().unwrap_or_default()
    }

    /// Returns the explanation in the problem.
    pub(crate) fn detail(&self) -> &str {
        self.problem["detail"].as_str().unwrap_or_default()
    }

    fn is_unavailable(&self) -> bool {
        matches!(self.status.as_u16(), 502..=504)
    }

    fn exit_code(&self) -> u8 {
        match self.is_usage {
            _ if self.is_unavailable() => 69,
            true => 2,
            false => 1,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape(&self.text))
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
