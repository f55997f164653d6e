//! The settings of the `redis-stream` sink.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use lisa_core::redis::RedisUrl;
use lisa_core::secret::Secret;

use crate::targets::TargetSettings;
use crate::template::Template;

/// The default of [`RedisStreamSinkSettings::timeout`].
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings of the `redis-stream` sink.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisStreamSinkSettings {
    /// The server, which may be the server of the relay.
    pub url: RedisUrl,
    /// The password; takes precedence over the one in the URL.
    pub password: Option<Secret>,
    /// A PEM file of the certificates to trust, in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// The key of the stream.
    pub stream: Template,
    /// The approximate number of entries to which the stream is trimmed. `None` never trims it.
    pub max_length: Option<u64>,
    /// The time limit for appending an entry, retries included.
    pub timeout: Duration,
    /// The prefix of the relay's own keys, with which no stream may start.
    pub reserved: String,
    /// The rule for a server that is unavailable.
    pub target: TargetSettings,
}

/// Omits the URL, which may hold a password.
impl fmt::Debug for RedisStreamSinkSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStreamSinkSettings")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
