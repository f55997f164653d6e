//! Preconditions of requests that change something with a version.

use axum::http::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use lisa_service::http::Problem;

use super::invalid;

/// The header with the version of what a response shows.
pub(super) type Tag = [(HeaderName, String); 1];

/// Returns the header with a version.
pub(super) fn tag(version: u64) -> Tag {
    [(ETAG, format!("\"{version}\""))]
}

/// Reads the version that is to be replaced, 0 if there must be none; `None` for any.
///
/// # Errors
/// A header is not valid, or both are given.
pub(super) fn of_put(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let none = headers.get(IF_NONE_MATCH).map(HeaderValue::as_bytes);
    match (if_match(headers)?, none) {
        (version, None) => Ok(version),
        (None, Some(b"*")) => Ok(Some(0)),
        (None, Some(_)) => Err(invalid("If-None-Match", &"expected *")),
        (Some(_), Some(_)) => Err(invalid(
            "If-Match",
            &"cannot be combined with If-None-Match",
        )),
    }
}

/// Reads the version in `If-Match`.
///
/// # Errors
/// It is not valid.
pub(super) fn if_match(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(tag) = headers.get(IF_MATCH) else {
        return Ok(None);
    };
    let number = tag.to_str().ok();
    let number = number.and_then(|tag| tag.strip_prefix('"')?.strip_suffix('"'));
    number
        .filter(|number| number.starts_with(|digit| matches!(digit, '1'..='9')))
        .and_then(|number| number.parse().ok())
        .map(Some)
        .ok_or_else(|| invalid("If-Match", &"expected an ETag, such as \"3\""))
}
