//! Reads the keys of NATS that are more than one value.

use lisa_core::secret::Secret;
use url::Url;

use crate::brokers::nats::{NatsConnection, check_subject};
use crate::config::secret_file;
use crate::config::table::Table;
use crate::config::values::{OneOrMany, ServerUrl};
use crate::template::Template;

pub(crate) fn connection(table: &mut Table<'_>, _: &str) -> Option<NatsConnection> {
    NatsConnection::read(table)
}

/// Reads the URLs with the password.
pub(crate) fn urls(table: &mut Table<'_>, meaning: &'static str) -> Option<Vec<Secret>> {
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

pub(crate) fn check_fixed(subject: &Template) -> Result<(), String> {
    subject.fixed().map_or(Ok(()), check_subject)
}

/// Checks the name of a stream or a consumer.
pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    let is_bad = |char: char| char.is_whitespace() || char.is_control() || ".*>/\\".contains(char);
    match name.is_empty() || name.contains(is_bad) {
        true => Err("must be a name without spaces and without . * > / \\"),
        false => Ok(()),
    }
}
