//! The settings of the `redis-stream` sink.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use lisa_core::redis::RedisUrl;
use lisa_core::secret::Secret;

use crate::settings::settings;
use crate::targets::TargetSettings;
use crate::template::Template;

/// The default of [`RedisStreamSinkSettings::timeout`].
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

settings! {
    /// The settings of the `redis-stream` sink.
    #[derive(Clone, PartialEq, Eq)]
    pub struct RedisStreamSinkSettings {
        /// The server, in the syntax of `redis.url`. It may be the server of the relay.
        required url: RedisUrl;
        /// The password. Takes precedence over one in the URL.
        secret password: Option<Secret>;
        /// A PEM file of the certificates to trust, in place of the system's.
        file ca_file: Option<PathBuf>;
        /// The key of the stream.
        default stream: Template = Template::constant("due:{topic}");
        /// The approximate number of entries to which the stream is trimmed. Without it, the stream is never trimmed.
        default max_length: Option<u64> = None, in 1..=1_000_000_000_000;
        /// The time limit for appending an entry, retries included.
        default timeout: Duration = DEFAULT_TIMEOUT, in super::DELIVERY_TIMEOUTS;
        /// The rule for a server that is unavailable.
        part target: TargetSettings, by crate::targets::deferred;
    }
}

/// Omits the URL, which may hold a password.
impl fmt::Debug for RedisStreamSinkSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStreamSinkSettings")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}
