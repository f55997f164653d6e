//! Connections to RabbitMQ or another AMQP 0-9-1 server.

use std::path::PathBuf;
use std::time::Duration;

use lisa_core::secret::Secret;

use crate::targets::TargetSettings;
use crate::template::Template;

/// The default of [`AmqpConnection::connect_timeout`].
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The default of [`AmqpSinkSettings::confirm_timeout`].
pub const DEFAULT_CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest number of bytes in the name of an exchange, and in a routing key.
pub const MAX_SHORT_STRING: usize = 255;

/// The settings of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmqpConnection {
    /// The URL: `amqp://` or `amqps://`, user, password, host and virtual host.
    pub url: Secret,
    /// A PEM file of certificates to trust, in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// The time limit for connecting and logging in.
    pub connect_timeout: Duration,
}

/// The settings of the `amqp` sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmqpSinkSettings {
    /// The server.
    pub connection: AmqpConnection,
    /// The exchange to publish to; empty for the default exchange.
    pub exchange: String,
    /// The routing key.
    pub routing_key: Template,
    /// True to treat a message that reaches no queue as not delivered. If false, the server drops it.
    pub mandatory: bool,
    /// The time limit for the server's confirm.
    pub confirm_timeout: Duration,
    /// The rule for a server that is unavailable.
    pub target: TargetSettings,
}

/// The settings of a source of type `amqp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmqpSourceSettings {
    /// The server.
    pub connection: AmqpConnection,
    /// The queue to take messages off.
    pub queue: String,
    /// The most messages that are taken and not acknowledged.
    pub prefetch: u16,
}

#[cfg(feature = "amqp")]
pub use client::connect;

#[cfg(feature = "amqp")]
mod client {
    use lapin::tcp::OwnedTLSConfig;
    use lapin::uri::AMQPUri;
    use lapin::{Connection, ConnectionProperties, ErrorKind};
    use lisa_core::small_file::{self, MAX_PEM_BYTES};

    use super::AmqpConnection;

    /// The heartbeat interval that the client proposes, in seconds. A connection without a heartbeat for two intervals is
    /// dead.
    const HEARTBEAT: u16 = 10;

    /// Connects. The server's tools show `name`.
    ///
    /// # Errors
    /// Returns the reason, without the URL.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt.
    pub async fn connect(settings: &AmqpConnection, name: &str) -> Result<Connection, String> {
        let mut uri: AMQPUri = settings.url.expose().parse()?;
        uri.query.heartbeat.get_or_insert(HEARTBEAT);
        let cert_chain = match &settings.ca_file {
            Some(path) => {
                let bytes = small_file::read(path, MAX_PEM_BYTES);
                let pem = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
                Some(pem.map_err(|error| format!("cannot read {}: {error}", path.display()))?)
            }
            None => None,
        };
        let (host, port) = (uri.authority.host.clone(), uri.authority.port);
        let tls = OwnedTLSConfig {
            identity: None,
            cert_chain,
        };
        let runtime = lapin::runtime::default_runtime().map_err(|error| error.to_string())?;
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let connecting = Connection::connect_uri_with_config(uri, properties, tls, runtime);
        match tokio::time::timeout(settings.connect_timeout, connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(match error.kind() {
                ErrorKind::IOError(error) => format!("cannot connect to {host}:{port}: {error}"),
                _ => format!("{host}:{port}: {error}"),
            }),
            Err(_) => Err(format!(
                "cannot connect to {host}:{port} within {:?}",
                settings.connect_timeout
            )),
        }
    }
}
