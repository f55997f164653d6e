//! The settings of the `http` sink, which sends webhooks.

use std::fmt;
use std::time::Duration;

use lisa_core::secret::Secret;

use crate::settings::settings;
use crate::targets::{RetryAfter, TargetSettings};

settings! {
    /// The settings of the `http` sink.
    #[derive(Clone, PartialEq, Eq)]
    pub struct HttpSinkSettings, check = crate::config::webhook::check_host {
        /// The URL to post deliveries to.
        part url: Secret, by crate::config::webhook::url;
        /// The keys that sign each request: `whsec_` and base64 of 24 to 64 bytes. Several while one is rotated.
        part secrets: Vec<Secret>, by crate::config::webhook::secrets;
        /// Headers to send with each request, up to 32. They never replace those of the sink or of the message.
        part headers: Vec<(String, Secret)>, by crate::config::webhook::headers;
        /// The time limit of one request.
        default timeout: Duration = Duration::from_secs(30), in Duration::from_millis(1)..=Duration::from_hours(1);
        /// True to allow loopback and private addresses. If false, a URL with such an address, or `localhost`, is refused at
        /// startup.
        default allow_private: bool = false;
        /// The effect of a response with `Retry-After`: it counts as an attempt (`retry`) or not (`defer`).
        default retry_after: RetryAfter = RetryAfter::Retry;
        /// The base URL at which the receiver reaches a gateway. The receiver may then respond with `Lisa-Complete-Later`, and
        /// settle the delivery at the gateway.
        optional complete_url: Option<String>, check crate::config::webhook::check_url;
        /// The number of messages in flight on a shard above which deliveries that are completed later count toward
        /// `concurrency`.
        default max_later: usize = 1000, in 1..=100_000;
        /// The rule for a server that cannot be reached: no address, no connection or no TLS session.
        part target: TargetSettings, by crate::config::sinks::retried;
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
