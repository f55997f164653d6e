//! Reads the keys of webhooks that are more than one value.

use axum::http::Uri;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use lisa_core::secret::Secret;
use url::Url;

use super::layers::SinkSecrets;
use super::secret_file;
use super::table::Table;
use super::values::{Address, OneOrMany};
use crate::targets::special_host;
use crate::webhook::{HttpSinkSettings, MAX_OWN_HEADERS, check_header};

pub(crate) fn url(table: &mut Table<'_>, meaning: &'static str) -> Option<Secret> {
    let Address(url) = table.required("url", meaning)?;
    if let Err(problem) = check_url(&url) {
        table.reject("url", problem);
        return None;
    }
    Some(url.into())
}

/// Returns the host of a URL; IP addresses in their canonical form.
pub(crate) fn check_url(text: &str) -> Result<String, &'static str> {
    const EXPECTED: &str = "expected an absolute URL, like https://example.com/hook";
    let uri: Uri = text.parse().map_err(|_| EXPECTED)?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("expected a URL that starts with http:// or https://");
    }
    match uri.authority() {
        Some(authority) if authority.as_str().contains('@') => {
            return Err("the URL must not contain a user or a password");
        }
        Some(authority) if authority.host().is_empty() => return Err("the host is missing"),
        _ => {}
    }
    let url = Url::parse(text).map_err(|_| EXPECTED)?;
    url.host_str().map(str::to_owned).ok_or(EXPECTED)
}

/// Checks that the address is one that this sink may call.
pub(crate) fn check_host(settings: &HttpSinkSettings, table: &mut Table<'_>) {
    let is_checked = !settings.allow_private && table.secrets() != SinkSecrets::Unused;
    let host = check_url(settings.url.expose());
    if is_checked && let Some(problem) = host.ok().as_deref().and_then(special_host) {
        table.reject("url", problem);
    }
}

pub(crate) fn secrets(table: &mut Table<'_>, _: &'static str) -> Option<Vec<Secret>> {
    let inline = table.optional::<OneOrMany<Secret>>("secret", "The keys that sign each request.");
    const FILE: &str = "A file with one key per line, in place of `secret`.";
    let from_file = secret_file::read_as_used(table, "secret", "secret_file", FILE);
    let inline = inline.map(|OneOrMany(secrets)| secrets);
    let secrets = from_file.or(inline).unwrap_or_default();
    if table.secrets() == SinkSecrets::Unused {
        return Some(secrets);
    }
    let key = if table.has("secret_file") {
        "secret_file"
    } else {
        "secret"
    };
    for (index, secret) in secrets.iter().enumerate() {
        if !is_webhook_secret(secret) {
            let message = "expected \"whsec_\" followed by base64 of 24 to 64 bytes";
            table.reject(key, format!("secret {}: {message}", index + 1));
        }
    }
    Some(secrets)
}

fn is_webhook_secret(secret: &Secret) -> bool {
    let key = secret
        .expose()
        .strip_prefix("whsec_")
        .and_then(|text| BASE64_STANDARD.decode(text).ok());
    key.is_some_and(|key| (24..=64).contains(&key.len()))
}

const AUTHORIZATION: &str = "authorization";
const AUTHORIZATION_FILE: &str = "authorization_file";

/// Reads `headers`, `authorization` and `authorization_file` into one list. The names are in lower case.
pub(crate) fn headers(
    table: &mut Table<'_>,
    meaning: &'static str,
) -> Option<Vec<(String, Secret)>> {
    let mut headers: Vec<(String, Secret)> = Vec::new();
    for (name, value) in table.texts::<Secret>("headers", meaning) {
        let lower = name.to_ascii_lowercase();
        let is_twice = headers.iter().any(|(other, _)| *other == lower);
        match check_header(&name, value.expose()) {
            Err(why) => table.reject_secret("headers", &name, why),
            Ok(()) if is_twice => {
                table.reject_secret("headers", &name, "this header is set twice".to_owned());
            }
            Ok(()) => headers.push((lower, value)),
        }
    }
    if headers.len() > MAX_OWN_HEADERS {
        table.reject(
            "headers",
            format!("must have at most {MAX_OWN_HEADERS} headers"),
        );
    }
    if let Some(value) = secret_file::one(
        table,
        AUTHORIZATION,
        "The value of the header `authorization` of each request, such as `Bearer …`.",
        AUTHORIZATION_FILE,
        "A file whose only line is the value of the header `authorization`.",
    ) {
        let key = if table.has(AUTHORIZATION_FILE) {
            AUTHORIZATION_FILE
        } else {
            AUTHORIZATION
        };
        if let Err(why) = check_header(AUTHORIZATION, value.expose()) {
            table.reject(key, why);
        }
        if headers.iter().any(|(name, _)| name == AUTHORIZATION) {
            table.reject(
                key,
                "authorization and headers.authorization cannot both be set",
            );
        } else {
            headers.push((AUTHORIZATION.to_owned(), value));
        }
    }
    Some(headers)
}
