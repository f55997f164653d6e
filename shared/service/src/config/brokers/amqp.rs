//! Reads the keys of RabbitMQ that are more than one value.

use lisa_core::secret::Secret;
use url::Url;

use crate::brokers::amqp::{AmqpConnection, MAX_SHORT_STRING};
use crate::config::secret_file;
use crate::config::table::Table;
use crate::config::values::ServerUrl;

pub(crate) fn connection(table: &mut Table<'_>, _: &str) -> Option<AmqpConnection> {
    AmqpConnection::read(table)
}

/// Reads the URL with the password.
pub(crate) fn url(table: &mut Table<'_>, meaning: &'static str) -> Option<Secret> {
    let url = table.required("url", meaning);
    let password = secret_file::password(table);
    let ServerUrl(url) = url?;
    let mut url = check(&url).map_err(|why| table.reject("url", why)).ok()?;
    if let Some(password) = password {
        if url.username().is_empty() {
            table.reject("url", "a password requires a user, as in amqp://user@host");
        }
        // Fails only without a host.
        let _ = url.set_password(Some(password.expose()));
    }
    Some(url.as_str().into())
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

pub(crate) fn check_exchange(name: &str) -> Result<(), &'static str> {
    match name.len() {
        0..=MAX_SHORT_STRING => Ok(()),
        _ => Err("must be at most 255 bytes long"),
    }
}

pub(crate) fn check_queue(name: &str) -> Result<(), &'static str> {
    match name.len() {
        1..=MAX_SHORT_STRING => Ok(()),
        _ => Err("must be 1 to 255 bytes"),
    }
}
