//! The keys of a connection to RabbitMQ.

use std::time::Duration;

use lisa_core::fields::{Field, Reader as _, within};
use url::Url;

use crate::brokers::amqp::{AmqpConnection, DEFAULT_CONNECT_TIMEOUT};
use crate::config::secret_file;
use crate::config::table::Table;
use crate::config::values::ServerUrl;

/// Reads a connection. Returns `None` if it is unusable; the problem is then recorded.
pub(in crate::config) fn read(table: &mut Table<'_>) -> Option<AmqpConnection> {
    let url: Option<ServerUrl> = table.required(
        "url",
        "With type `amqp`: the server, as `amqp://user@host:5672/vhost`, or `amqps://` for TLS.",
    );
    let url = url.and_then(|ServerUrl(url)| match check(&url) {
        Ok(url) => Some(url),
        Err(message) => {
            table.reject("url", message);
            None
        }
    });
    let password = secret_file::password(table);
    let ca_file = secret_file::path(
        table,
        "ca_file",
        "With type `amqp`: a PEM file of certificates to trust, in addition to the system's.",
    );
    let connect_timeout = table.read(
        Field::new(
            "connect_timeout",
            DEFAULT_CONNECT_TIMEOUT,
            "With types `amqp` and `nats`: the time limit for connecting and logging in.",
        ),
        within(Duration::from_millis(100)..=Duration::from_mins(1)),
    );
    let mut url = url?;
    if let Some(password) = password {
        if url.username().is_empty() {
            table.reject("url", "a password requires a user, as in amqp://user@host");
        }
        // Fails only without a host.
        let _ = url.set_password(Some(password.expose()));
    }
    Some(AmqpConnection {
        url: url.as_str().into(),
        ca_file,
        connect_timeout,
    })
}

fn check(text: &str) -> Result<Url, &'static str> {
    let url = Url::parse(text).map_err(|_| "expected a URL, like amqp://user@host:5672/vhost")?;
    if !matches!(url.scheme(), "amqp" | "amqps") {
        return Err("expected a URL that starts with amqp:// or amqps://");
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("the host is missing");
    }
    match url.path() {
        "/" => Err("the virtual host is empty; omit the slash for the default one, or write %2f"),
        path if path.matches('/').count() > 1 => {
            Err("the virtual host contains a slash; write it as %2f")
        }
        _ => Ok(url),
    }
}
