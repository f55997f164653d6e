//! The errors of roles and verbs, and their exit codes.

use std::io;
use std::net::SocketAddr;

use crate::config::ConfigError;
use crate::supervise::SupervisorError;
use crate::telemetry::TelemetryError;
use lisa_core::broker::BrokerError;
use lisa_core::redis::{ConnectionError, ConnectionErrorKind};

/// The reason why a role or a verb fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration is invalid.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// Logging cannot be set up.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The configuration is valid, but it or the Redis server cannot be used.
    #[error("{0}")]
    Refused(String),
    /// The command line is invalid.
    #[error("{0}")]
    Usage(String),
    /// The command was not confirmed.
    #[error("{0}")]
    Unconfirmed(String),
    /// Another service is unavailable: no manager answers, or no Redis server could be started.
    #[error("{0}")]
    Unavailable(String),
    /// A result could not be written.
    #[error("{0}")]
    Write(io::Error),
    /// Redis could not be reached in time, or refuses this process.
    #[error("cannot use Redis at {address}: {source}")]
    Redis {
        /// The address of Redis, with the password hidden.
        address: String,
        /// The cause.
        source: ConnectionError,
    },
    /// The listener cannot bind its address.
    #[error("cannot listen on {address}: {source}; --listen chooses another address")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The signal handlers cannot be installed.
    #[error("cannot handle signals: {0}")]
    Signals(#[source] io::Error),
    /// An operation on Redis failed.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// A task failed, or did not end in time.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
}

impl StartError {
    /// Returns the exit code of the process: 2 usage, 69 Redis or another service unavailable, 78 configuration, else 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Telemetry(_) | Self::Refused(_) => 78,
            Self::Usage(_) => 2,
            Self::Unavailable(_) => 69,
            Self::Redis { source, .. } => code_of_connection(source),
            Self::Broker(BrokerError::Connection(error)) => code_of_connection(error),
            Self::Broker(BrokerError::Fixed { .. } | BrokerError::Layout { .. }) => 78,
            Self::Unconfirmed(_)
            | Self::Broker(_)
            | Self::Write(_)
            | Self::Listen { .. }
            | Self::Signals(_)
            | Self::Supervisor(_) => 1,
        }
    }
}

fn code_of_connection(error: &ConnectionError) -> u8 {
    match error.kind {
        ConnectionErrorKind::Unavailable => 69,
        ConnectionErrorKind::Denied
        | ConnectionErrorKind::Invalid
        | ConnectionErrorKind::NotSupported => 78,
        _ => 1,
    }
}
