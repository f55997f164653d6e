//! The keys of a connection to NATS.

use std::time::Duration;

use lisa_core::fields::{Field, Reader as _, within};
use url::Url;

use crate::brokers::amqp::DEFAULT_CONNECT_TIMEOUT;
use crate::brokers::nats::NatsConnection;
use crate::config::secret_file;
use crate::config::table::Table;
use crate::config::values::{OneOrMany, ServerUrl};

/// Reads a connection. Returns `None` if it is unusable; the problem is then recorded.
pub(in crate::config) fn read(table: &mut Table<'_>) -> Option<NatsConnection> {
    let urls: Option<OneOrMany<ServerUrl>> = table.required(
        "url",
        "With type `nats`: one or more servers of one cluster, as `nats://user@host:4222`, or `tls://` for TLS.",
    );
    let mut parsed = Vec::new();
    for ServerUrl(url) in urls.map(|OneOrMany(urls)| urls).unwrap_or_default() {
        match check(&url) {
            Ok(url) => parsed.push(url),
            Err(message) => table.reject("url", message),
        }
    }
    let password = secret_file::password(table);
    const TOKEN: &str = "With type `nats`: a token to log in with.";
    const TOKEN_FILE: &str = "With type `nats`: a file whose only line is the token.";
    let token = secret_file::one(table, "token", TOKEN, "token_file", TOKEN_FILE);
    let creds_file = secret_file::path(
        table,
        "creds_file",
        "With type `nats`: a credentials file with a JWT and an NKEY seed, as written by the NATS tools.",
    );
    let ca_file = secret_file::path(
        table,
        "ca_file",
        "With types `redis-stream` and `nats`: a PEM file of the certificates to trust, in place of the system's.",
    );
    let connect_timeout = table.read(
        Field::new(
            "connect_timeout",
            DEFAULT_CONNECT_TIMEOUT,
            "With types `amqp` and `nats`: the time limit for connecting and logging in.",
        ),
        within(Duration::from_millis(100)..=Duration::from_mins(1)),
    );
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
    if parsed.is_empty() {
        return None;
    }
    Some(NatsConnection {
        urls: parsed.iter().map(|url| url.as_str().into()).collect(),
        token,
        creds_file,
        ca_file,
        connect_timeout,
    })
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
