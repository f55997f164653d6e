//! Connections to NATS.

use std::path::PathBuf;
use std::time::Duration;

use lisa_core::secret::Secret;

use crate::settings::settings;
use crate::targets::TargetSettings;
use crate::template::Template;

/// The default of [`NatsSinkSettings::ack_timeout`].
pub const DEFAULT_ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum length of a subject, in bytes. A server ends the connection of a client whose command exceeds 4 KiB.
const MAX_SUBJECT: usize = 1024;

/// Checks that messages can be published to a subject.
///
/// # Errors
/// Returns the problem.
pub fn check_subject(subject: &str) -> Result<(), String> {
    let is_wrong = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>');
    let reason = if subject.len() > MAX_SUBJECT {
        return Err(format!(
            "cannot publish to a subject of more than {MAX_SUBJECT} bytes"
        ));
    } else if subject.split('.').any(str::is_empty) {
        "it is empty, or has an empty part"
    } else if subject.contains(is_wrong) {
        "it contains a wildcard or a space"
    } else if subject.starts_with('$') {
        "subjects that start with $ are NATS's own"
    } else {
        return Ok(());
    };
    Err(format!(
        "cannot publish to the subject {subject:?}: {reason}"
    ))
}

settings! {
    /// The settings of a connection.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct NatsConnection {
        /// One or more servers of one cluster, as `nats://user@host:4222`, or `tls://` for TLS.
        part urls: Vec<Secret>, by keys::urls;
        /// A token to log in with.
        secret token: Option<Secret>;
        /// A credentials file with a JWT and an NKEY seed, as written by the NATS tools.
        file creds_file: Option<PathBuf>;
        /// A PEM file of the certificates to trust, in place of the system's.
        file ca_file: Option<PathBuf>;
        /// The time limit for connecting and logging in.
        default connect_timeout: Duration = super::amqp::DEFAULT_CONNECT_TIMEOUT, in super::CONNECT_TIMEOUTS;
    }
}

settings! {
    /// The settings of the `nats` sink.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct NatsSinkSettings {
        /// The servers.
        nested connection: NatsConnection;
        /// The subject to publish to, which a JetStream stream must include.
        default subject: Template = Template::constant("due.{topic}"), check keys::check_fixed;
        /// The time limit for the stream's acknowledgment.
        default ack_timeout: Duration = DEFAULT_ACK_TIMEOUT, in super::DELIVERY_TIMEOUTS;
        /// The rule for a cluster that is unavailable.
        part target: TargetSettings, by crate::targets::deferred;
    }
}

settings! {
    /// The settings of a source of type `nats`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct NatsSourceSettings {
        /// The servers.
        nested connection: NatsConnection;
        /// The stream of JetStream to take messages off. It must exist.
        required stream: String, check keys::check_name;
        /// The durable pull consumer, which is created if the stream has none of this name. The default is `lisa-` and the name
        /// of the source.
        optional consumer: Option<String>, check keys::check_name;
        /// The maximum number of unacknowledged messages at a time.
        default prefetch: u16 = super::DEFAULT_PREFETCH, in super::PREFETCHES;
    }
}

impl NatsSourceSettings {
    /// Returns the durable pull consumer of a source.
    pub fn consumer(&self, source: &str) -> String {
        super::name_at_broker(self.consumer.as_deref(), source)
    }
}

#[cfg(feature = "process")]
mod keys {
    //! Reads the keys that are more than one value.

    use lisa_core::secret::Secret;
    use url::Url;

    use super::check_subject;
    use crate::config::secret_file;
    use crate::config::table::Table;
    use crate::config::values::{OneOrMany, ServerUrl};
    use crate::template::Template;

    /// Reads the URLs with the password.
    pub(super) fn urls(table: &mut Table<'_>, meaning: &'static str) -> Option<Vec<Secret>> {
        let urls: Option<OneOrMany<ServerUrl>> = table.required("url", meaning);
        let password = secret_file::password(table);
        let mut parsed = Vec::new();
        for ServerUrl(url) in urls.map(|OneOrMany(urls)| urls).unwrap_or_default() {
            match check(&url) {
                Ok(url) => parsed.push(url),
                Err(message) => table.reject("url", message),
            }
        }
        let has_password = table.has("password") || table.has("password_file");
        if !has_password && parsed.iter().any(is_user_alone) {
            // Some clients take it for a token, which would be shown.
            table.reject(
                "url",
                "a user requires a password; to log in with a token, use `token` or `token_file`",
            );
        }
        if let Some(password) = password {
            if parsed.iter().any(|url| url.username().is_empty()) {
                table.reject("url", "a password requires a user, as in nats://user@host");
            }
            for url in &mut parsed {
                // Fails only without a host.
                let _ = url.set_password(Some(password.expose()));
            }
        }
        let urls = parsed.iter().map(|url| url.as_str().into());
        (!parsed.is_empty()).then(|| urls.collect())
    }

    fn is_user_alone(url: &Url) -> bool {
        !url.username().is_empty() && url.password().is_none()
    }

    fn check(text: &str) -> Result<Url, &'static str> {
        let url = Url::parse(text).map_err(|_| "expected a URL, like nats://host:4222")?;
        if !matches!(url.scheme(), "nats" | "tls") {
            return Err("expected a URL that starts with nats:// or tls://");
        }
        if url.host_str().is_none_or(str::is_empty) {
            return Err("the host is missing");
        }
        Ok(url)
    }

    pub(super) fn check_fixed(subject: &Template) -> Result<(), String> {
        subject.fixed().map_or(Ok(()), check_subject)
    }

    /// Checks the name of a stream or a consumer.
    pub(super) fn check_name(name: &str) -> Result<(), &'static str> {
        let is_bad =
            |char: char| char.is_whitespace() || char.is_control() || ".*>/\\".contains(char);
        match name.is_empty() || name.contains(is_bad) {
            true => Err("must be a name without spaces and without . * > / \\"),
            false => Ok(()),
        }
    }
}

#[cfg(feature = "nats")]
mod bridge;

#[cfg(feature = "nats")]
pub use client::{ClientLimits, connect};

#[cfg(feature = "nats")]
mod client {
    use async_nats::{Client, ConnectOptions};
    use tokio::time::timeout;

    use super::NatsConnection;
    use super::bridge::Bridge;

    /// The limits of what a server may send.
    #[derive(Clone, Copy, Debug)]
    pub struct ClientLimits {
        /// The largest size of a message with its headers, in bytes. A larger one ends the connection.
        pub max_message: u64,
        /// The number of messages that may wait for their reader. Further ones are lost.
        pub waiting: usize,
    }

    /// Connects. The client reconnects by itself when the connection is lost. The server's tools show `name`.
    ///
    /// # Errors
    /// Returns the reason, without passwords.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt.
    pub async fn connect(
        settings: &NatsConnection,
        name: &str,
        limits: ClientLimits,
    ) -> Result<Client, String> {
        let bridge = Bridge::start(settings, name, limits.max_message).await?;
        // The time limit applies to each server.
        let limit = settings.connect_timeout * u32::try_from(settings.urls.len()).unwrap_or(1);
        let mut options = ConnectOptions::new()
            .name(bridge.secret())
            .connection_timeout(limit)
            .subscription_capacity(limits.waiting)
            .ignore_discovered_servers();
        if let Some(token) = &settings.token {
            options = options.token(token.expose().to_owned());
        }
        if let Some(path) = &settings.creds_file {
            let loaded = options.credentials_file(path).await;
            options = loaded.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        }
        let (url, failure) = (bridge.url(), bridge.failure());
        // The client keeps the bridge as long as it lives.
        options = options.event_callback(move |_| {
            let _ = &bridge;
            async {}
        });
        let failed = match timeout(limit, options.connect(url)).await {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {limit:?}"),
        };
        let reason = failure.take().unwrap_or(failed);
        Err(format!("cannot connect: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_one_that_a_client_may_publish_to() {
        for subject in ["due", "due.orders.7", "ä"] {
            assert_eq!(check_subject(subject), Ok(()), "{subject}");
        }
        let long = "x".repeat(MAX_SUBJECT + 1);
        for subject in [
            "",
            "due.",
            ".due",
            "a..b",
            "a b",
            "a\tb",
            "due.*",
            "due.>",
            "$JS.API.STREAM.PURGE.due",
            &long,
        ] {
            assert!(check_subject(subject).is_err(), "{subject}");
        }
    }
}
