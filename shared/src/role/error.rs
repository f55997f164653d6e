//! Why a role or a verb ends badly, and with which exit code.

use std::io;
use std::net::SocketAddr;

use crate::broker::BrokerError;
use crate::config::ConfigError;
use crate::link::{LinkError, LinkErrorKind};
use crate::supervise::SupervisorError;
use crate::telemetry::TelemetryError;

/// Why a role or a verb cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration has mistakes.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The logs cannot be set up.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The configuration is well-formed, but cannot be used.
    #[error("{0}")]
    Refused(String),
    /// What was asked for on the command line needs a yes.
    #[error("{0}")]
    Usage(String),
    /// There is no Redis that this process could start.
    #[error("{0}")]
    Unavailable(String),
    /// Redis was not reached in time, or refuses us.
    #[error("cannot use redis at {address}: {source}")]
    Redis {
        /// Its address, password hidden.
        address: String,
        /// Why.
        source: LinkError,
    },
    /// The address of the listener cannot be taken.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The handlers of the signals cannot be installed.
    #[error("cannot handle signals: {0}")]
    Signals(#[source] io::Error),
    /// Redis was asked, in vain.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// A task fell, or did not end.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
}

impl StartError {
    /// Gives the exit code of the process: 69 Redis unavailable, 78 configuration, else 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Telemetry(_) | Self::Refused(_) => 78,
            Self::Usage(_) => 2,
            Self::Unavailable(_) => 69,
            Self::Redis { source, .. } => code_of_link(source),
            Self::Broker(BrokerError::Link(error)) => code_of_link(error),
            Self::Broker(BrokerError::Fixed { .. } | BrokerError::Layout { .. }) => 78,
            Self::Broker(_) | Self::Listen { .. } | Self::Signals(_) | Self::Supervisor(_) => 1,
        }
    }
}

fn code_of_link(error: &LinkError) -> u8 {
    match error.kind {
        LinkErrorKind::Unavailable => 69,
        LinkErrorKind::Denied | LinkErrorKind::Invalid | LinkErrorKind::NotSupported => 78,
        _ => 1,
    }
}
