//! The settings of the `http` sink, which sends webhooks.

use std::fmt;
use std::time::Duration;

use lisa_core::secret::Secret;

use crate::settings::settings;
use crate::targets::{RetryAfter, TargetSettings};

settings! {
    /// The settings of the `http` sink.
    #[derive(Clone, PartialEq, Eq)]
    pub struct HttpSinkSettings, check = keys::check_host {
        /// The URL to post deliveries to.
        part url: Secret, by keys::url;
        /// The keys that sign each request: `whsec_` and base64 of 24 to 64 bytes. Several while one is rotated.
        part secrets: Vec<Secret>, by keys::secrets;
        /// Headers to send with each request, up to 32. They never replace those of the sink or of the message.
        part headers: Vec<(String, Secret)>, by keys::headers;
        /// The time limit of one request.
        default timeout: Duration = Duration::from_secs(30), in Duration::from_millis(1)..=Duration::from_hours(1);
        /// True to allow loopback and private addresses. If false, a URL with such an address, or `localhost`, is refused at
        /// startup.
        default allow_private: bool = false;
        /// The effect of a response with `Retry-After`: it counts as an attempt (`retry`) or not (`defer`).
        default retry_after: RetryAfter = RetryAfter::Retry;
        /// The base URL at which the receiver reaches a gateway. The receiver may then respond with `Lisa-Complete-Later`, and
        /// settle the delivery at the gateway.
        optional complete_url: Option<String>, check keys::check_url;
        /// The number of messages in flight on a shard above which deliveries that are completed later count toward
        /// `concurrency`.
        default max_later: usize = 1000, in 1..=100_000;
        /// The rule for a server that cannot be reached: no address, no connection or no TLS session.
        part target: TargetSettings, by crate::targets::retried;
    }
}

/// Omits the URL and the headers, which may hold tokens.
impl fmt::Debug for HttpSinkSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSinkSettings")
            .field("secrets", &self.secrets)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "process")]
mod keys {
    //! Reads the keys that are more than one value.

    use axum::http::Uri;
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use lisa_core::secret::Secret;
    use url::Url;

    use super::{HttpSinkSettings, MAX_OWN_HEADERS, check_header};
    use crate::config::layers::SinkSecrets;
    use crate::config::secret_file;
    use crate::config::table::Table;
    use crate::config::values::{Address, OneOrMany};
    use crate::targets::special_host;

    pub(super) fn url(table: &mut Table<'_>, meaning: &'static str) -> Option<Secret> {
        let Address(url) = table.required("url", meaning)?;
        if let Err(problem) = check_url(&url) {
            table.reject("url", problem);
            return None;
        }
        Some(url.into())
    }

    /// Returns the host of a URL; IP addresses in their canonical form.
    pub(super) fn check_url(text: &str) -> Result<String, &'static str> {
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
    pub(super) fn check_host(settings: &HttpSinkSettings, table: &mut Table<'_>) {
        let is_checked = !settings.allow_private && table.secrets() != SinkSecrets::Unused;
        let host = check_url(settings.url.expose());
        if is_checked && let Some(problem) = host.ok().as_deref().and_then(special_host) {
            table.reject("url", problem);
        }
    }

    pub(super) fn secrets(table: &mut Table<'_>, _: &'static str) -> Option<Vec<Secret>> {
        let inline =
            table.optional::<OneOrMany<Secret>>("secret", "The keys that sign each request.");
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
    pub(super) fn headers(
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
}

/// The maximum number of headers in the configuration of a webhook.
pub const MAX_OWN_HEADERS: usize = 32;
/// The maximum length of the value of such a header, in bytes.
const MAX_OWN_HEADER: usize = 8192;
/// The headers that the sink or its connection sets.
const RESERVED_HEADERS: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// Checks a header in the configuration of a webhook. The case of the name is ignored.
///
/// # Errors
/// Returns the reason why the header cannot be sent, without its value.
pub fn check_header(name: &str, value: &str) -> Result<(), String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || name.len() > 256 || !name.bytes().all(is_token) {
        return Err("not the name of a header".to_owned());
    }
    let lower = name.to_ascii_lowercase();
    let is_own = ["webhook-", "lisa-"]
        .iter()
        .any(|own| lower.starts_with(own));
    if is_own || RESERVED_HEADERS.contains(&lower.as_str()) {
        return Err("set by the sink itself".to_owned());
    }
    let is_visible = |byte: u8| byte.is_ascii_graphic() || byte == b' ' || byte == b'\t';
    if value.is_empty() || value.len() > MAX_OWN_HEADER {
        return Err(format!("expected a value of 1 to {MAX_OWN_HEADER} bytes"));
    }
    if value.trim() != value || !value.bytes().all(is_visible) {
        return Err(
            "expected visible ASCII characters, with spaces or tabs only inside".to_owned(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_of_the_sink_or_of_the_connection_is_refused_in_any_case() {
        for name in [
            "Webhook-Id",
            "lisa-topic",
            "LISA-X",
            "Content-Length",
            "host",
            "Connection",
            "Transfer-Encoding",
            "TE",
            "upgrade",
        ] {
            let refused = check_header(name, "x");
            assert_eq!(refused, Err("set by the sink itself".to_owned()), "{name}");
        }
        for name in ["X-Tenant", "authorization", "Content-Type", "x.y"] {
            assert_eq!(check_header(name, "a b"), Ok(()), "{name}");
        }
        for name in ["", "a b", "a:", "ä", "a\r\nb"] {
            assert!(check_header(name, "x").is_err(), "{name}");
        }
        for value in ["", " x", "x\n", "a\r\nhost: b", "ä", &"x".repeat(8193)] {
            let error = check_header("x", value).unwrap_err();
            assert!(error.starts_with("expected "), "{value:?}: {error}");
        }
        assert_eq!(check_header("x", &"x".repeat(8192)), Ok(()));
    }
}
