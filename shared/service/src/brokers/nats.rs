//! Connections to NATS.

use std::path::PathBuf;
use std::time::Duration;

use lisa_core::secret::Secret;

use crate::targets::TargetSettings;
use crate::template::Template;

/// The default of [`NatsSinkSettings::ack_timeout`].
pub const DEFAULT_ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsConnection {
    /// The URLs of servers of one cluster, `nats://` or `tls://`, with a user and a password if the cluster needs them.
    pub urls: Vec<Secret>,
    /// A token to log in with.
    pub token: Option<Secret>,
    /// A credentials file with a JWT and an NKEY seed.
    pub creds_file: Option<PathBuf>,
    /// A PEM file of the certificates to trust, in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// The time limit for connecting and logging in.
    pub connect_timeout: Duration,
}

/// The settings of the `nats` sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsSinkSettings {
    /// The servers.
    pub connection: NatsConnection,
    /// The subject to publish to. A JetStream stream must include it.
    pub subject: Template,
    /// The time limit for the stream's acknowledgment.
    pub ack_timeout: Duration,
    /// The rule for a cluster that is unavailable.
    pub target: TargetSettings,
}

#[cfg(feature = "nats")]
pub use client::connect;

#[cfg(feature = "nats")]
mod client {
    use async_nats::{Client, ConnectOptions};
    use tokio::time::timeout;

    use super::NatsConnection;

    /// Connects. The client reconnects by itself when the connection is lost. The server's tools show `name`.
    ///
    /// # Errors
    /// Returns the reason, without passwords.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt.
    pub async fn connect(settings: &NatsConnection, name: &str) -> Result<Client, String> {
        let mut options = ConnectOptions::new()
            .name(name)
            .connection_timeout(settings.connect_timeout)
            .retain_servers_order();
        if let Some(token) = &settings.token {
            options = options.token(token.expose().to_owned());
        }
        if let Some(path) = &settings.creds_file {
            let loaded = options.credentials_file(path).await;
            options = loaded.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        }
        if let Some(path) = &settings.ca_file {
            options = options.add_root_certificates(path.clone());
        }
        let urls: Vec<&str> = settings.urls.iter().map(|url| url.expose()).collect();
        // The time limit applies to each server.
        let limit = settings.connect_timeout * u32::try_from(urls.len()).unwrap_or(1);
        match timeout(limit, options.connect(urls)).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(error)) => Err(format!("cannot connect: {error}")),
            Err(_) => Err(format!("cannot connect within {limit:?}")),
        }
    }
}
