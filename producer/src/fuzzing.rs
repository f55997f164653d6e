//! What turns the bytes of a stranger into a message, for the fuzz targets alone.

use axum::http::HeaderMap;
use lisa_shared::http::Problem;
use lisa_shared::message::NewMessage;
use lisa_shared::time::UnixMs;
use lisa_shared::topic::TopicSettings;

use crate::error::SendError;
use crate::outgoing::Outgoing;

/// Reads the headers of a send.
///
/// # Errors
/// One problem that lists all that is wrong.
pub fn headers(headers: &HeaderMap) -> Result<Outgoing, Problem> {
    crate::api::headers::outgoing(headers)
}

/// Reads one line of a batch.
///
/// # Errors
/// One problem that lists all that is wrong.
pub fn line(line: &[u8]) -> Result<Outgoing, Problem> {
    crate::line::parse(line, || None)
}

/// Checks a message against its topic, as a send at `now` does.
///
/// # Errors
/// What the topic does not allow.
pub fn check(
    outgoing: Outgoing,
    topic: &TopicSettings,
    now: UnixMs,
) -> Result<NewMessage, SendError> {
    outgoing.check(topic, now)
}
