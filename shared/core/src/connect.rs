//! Connects a program that embeds a producer or a consumer to Redis.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::broker::Broker;
use crate::redis::{Connection, ConnectionError, ConnectionSettings, InvalidRedisUrl};
use crate::topic::{InvalidName, Namespace};

/// The default timeout for connecting and for each later call.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The address of Redis, and the relay to use on it.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The address, credentials, certificates and timeouts of the connection.
    pub settings: ConnectionSettings,
    namespace: Namespace,
    timeout: Duration,
}

impl ConnectOptions {
    /// Creates options for an address: `redis://host:6379`, `rediss://…`, `redis+sentinel://…`, `redis+cluster://…` or
    /// `unix://…`. The namespace is `lisa`, and the timeout 5 s.
    ///
    /// # Errors
    /// [`ConnectError::Url`] if the address is invalid.
    pub fn new(url: &str) -> Result<Self, ConnectError> {
        Ok(Self {
            settings: ConnectionSettings::new(url.parse()?),
            namespace: Namespace::default(),
            timeout: TIMEOUT,
        })
    }

    /// Selects another relay on the same Redis by its namespace, the first part of all its keys: `[a-z0-9_-]{1,32}`.
    ///
    /// # Errors
    /// [`ConnectError::Namespace`] if the namespace is invalid.
    pub fn namespace(mut self, namespace: &str) -> Result<Self, ConnectError> {
        self.namespace = namespace.parse()?;
        Ok(self)
    }

    /// Sets the timeout for connecting and for each later call, including its retries.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Connects to Redis. The connection is maintained in the background until the last clone of the broker is dropped.
    ///
    /// # Errors
    /// [`ConnectError::Redis`] if Redis refuses the connection or does not answer in time.
    pub async fn connect(self) -> Result<Broker, ConnectError> {
        let address = self.settings.url.to_string();
        let failed = |source| ConnectError::Redis { address, source };
        let connection = Connection::new(self.settings, &CancellationToken::new());
        let connection = match connection {
            Ok(connection) => match connection.wait_reachable(self.timeout).await {
                Ok(()) => connection,
                Err(error) => return Err(failed(error)),
            },
            Err(error) => return Err(failed(error)),
        };
        Ok(Broker::new(connection, self.namespace, self.timeout, None))
    }
}

/// The reason why a program could not connect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The text is not a Redis address.
    #[error(transparent)]
    Url(#[from] InvalidRedisUrl),
    /// The text is not a namespace.
    #[error(transparent)]
    Namespace(#[from] InvalidName),
    /// Redis refused the connection or did not answer in time.
    #[error("cannot use Redis at {address}: {source}")]
    Redis {
        /// The address, without the password.
        address: String,
        /// The cause.
        source: ConnectionError,
    },
}

/// Returns a unique name that shows operators where the process runs: host name, process id and a random number.
#[must_use]
pub fn process_name() -> String {
    let host = host_name();
    format!("{host}-{}-{:08x}", std::process::id(), fastrand::u32(..))
}

/// Returns the name of this host, up to 64 characters; `host` if it has none.
pub fn host_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host
        .trim()
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c))
        .take(64)
        .collect();
    if host.is_empty() {
        "host".to_owned()
    } else {
        host
    }
}
