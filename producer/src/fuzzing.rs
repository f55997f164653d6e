//! The parsers of untrusted input, exported for the fuzz targets only.

use axum::http::HeaderMap;
use lisa_core::message::PreparedMessage;
use lisa_core::time::UnixMs;
use lisa_core::topic::TopicSettings;
use lisa_service::http::Problem;

use crate::error::SendError;
use crate::message::NewMessage;

/// Parses the headers of a send.
///
/// # Errors
/// One problem that lists everything that is wrong.
pub fn headers(headers: &HeaderMap) -> Result<NewMessage, Problem> {
    crate::http::headers::message(headers)
}

/// Parses one line of a batch.
///
/// # Errors
/// One problem that lists everything that is wrong.
pub fn line(line: &[u8]) -> Result<NewMessage, Problem> {
    crate::batch_line::parse(line, || None)
}

/// Splits a batch that is a JSON array into its messages, without parsing them.
///
/// # Errors
/// Not an array, or one with too many elements.
pub fn array(text: &[u8]) -> Result<Vec<&str>, Problem> {
    crate::batch_line::elements(text)
}

/// Checks a message against the settings of its topic, like a send at `now`.
///
/// # Errors
/// [`SendError`] for a value that the topic does not allow.
pub fn check(
    message: NewMessage,
    topic: &TopicSettings,
    now: UnixMs,
) -> Result<PreparedMessage, SendError> {
    message.check(topic, now)
}
