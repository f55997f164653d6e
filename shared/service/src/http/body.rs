//! Reads request bodies in bounded memory and time: whole, or line by line.
//!
//! Enforces only sizes and times; the routes interpret the bytes. Clients that were not admitted share less memory, and all
//! lines of one together have the time of one line until a line takes effect.

use axum::body::{Body, Bytes, HttpBody};
use axum::response::{IntoResponse, Response};
use bytes::{Buf, BytesMut};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::client::Client;
use super::json::BYTE_ORDER_MARK;
use super::problem::{Problem, ProblemCode};
use super::share::Shortage;

mod memory;
#[cfg(test)]
mod tests;

pub use memory::{BodyLimits, Reservation};

/// The reason why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body is longer than allowed.
    #[error("body of at least {size} bytes: must be at most {limit}")]
    TooLarge {
        /// The declared length, or that of the part that was read, in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// One line is longer than allowed; the next line can be read.
    #[error("line {line} is longer than {limit} bytes")]
    LineTooLong {
        /// The number of the line, counted from 1.
        line: u64,
        /// The limit in bytes.
        limit: usize,
    },
    /// Too many large bodies arrive at the same time; a later attempt may succeed.
    #[error("too many large bodies at the same time{}; retry later", match .0 { Shortage::OfClient => " from this client", Shortage::OfAll => "" })]
    Crowded(Shortage),
    /// The beginning of a long body has no valid credential.
    #[error("the first {limit} bytes have no valid token of a delivery; the body is not read")]
    Stranger {
        /// The length of the beginning in bytes.
        limit: usize,
    },
    /// The body did not arrive in time.
    #[error("body not received in time")]
    Timeout,
    /// The connection broke, or the framing of the body is invalid.
    #[error("body is incomplete or its framing is invalid")]
    Broken(#[source] axum::Error),
}

impl From<Shortage> for BodyError {
    fn from(shortage: Shortage) -> Self {
        Self::Crowded(shortage)
    }
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        let code = match error {
            BodyError::TooLarge { .. } | BodyError::LineTooLong { .. } => ProblemCode::TooLarge,
            BodyError::Crowded(_) => ProblemCode::Unavailable,
            BodyError::Stranger { .. } => ProblemCode::InvalidDeliveryToken,
            BodyError::Timeout => ProblemCode::Timeout,
            BodyError::Broken(_) => ProblemCode::Invalid,
        };
        Problem::new(code, error.to_string())
    }
}

impl IntoResponse for BodyError {
    fn into_response(self) -> Response {
        Problem::from(self).into_response()
    }
}

/// Reads a whole body of at most `max_bytes`.
///
/// Refuses a body with a declared length over the limit before reading it, and one of undeclared length as soon as it
/// exceeds the limit. The listener handles the unread rest.
///
/// # Errors
/// The body is too large, too slow, or broken, or there is no memory for it now.
pub async fn read_limited(
    body: Body,
    max_bytes: usize,
    limits: &BodyLimits,
) -> Result<Bytes, BodyError> {
    let (bytes, _) = read_reserved(body, max_bytes, limits).await?;
    Ok(bytes)
}

/// Reads a body like [`read_limited`], and also returns its reservation. For a body that stays in memory while the client
/// reads the response.
///
/// # Errors
/// As [`read_limited`].
pub async fn read_reserved(
    body: Body,
    max_bytes: usize,
    limits: &BodyLimits,
) -> Result<(Bytes, Reservation), BodyError> {
    read_admitting(body, max_bytes, max_bytes, limits, |_| false).await
}

/// Reads a body like [`read_reserved`] that itself has the credential of its client. `admits` gets the beginning that has
/// arrived, each time at least twice as much as before. Once it returns true, the client is admitted. If it has not in the
/// first `max_strange` bytes, the body is refused.
///
/// # Errors
/// As [`read_limited`].
pub async fn read_admitting(
    mut body: Body,
    max_bytes: usize,
    max_strange: usize,
    limits: &BodyLimits,
    admits: impl Fn(&[u8]) -> bool,
) -> Result<(Bytes, Reservation), BodyError> {
    let too_large = |size| BodyError::TooLarge {
        size,
        limit: max_bytes,
    };
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if declared > max_bytes {
        return Err(too_large(declared));
    }
    let longest = body.size_hint().exact().map_or(max_bytes, |_| declared);
    let deadline = Instant::now() + limits.within;
    let mut reserved = limits.begin();
    let mut first = Bytes::new();
    let mut whole = Vec::new();
    let mut next_check = 1;
    while let Some(chunk) = next_chunk(&mut body, deadline).await? {
        let size = chunk.len() + first.len().max(whole.len());
        if size > max_bytes {
            return Err(too_large(size));
        }
        // Most bodies arrive in one piece, which needs no copy.
        if first.is_empty() && whole.is_empty() {
            reserved.grow(size)?;
            first = chunk;
        } else {
            if size > whole.capacity() {
                // That of a stranger grows with what has arrived: to declare a length costs its client nothing. It counts
                // twice, since what was copied stays in the allocator.
                let (capacity, cost) = match reserved.is_of_stranger() {
                    true => (2 * size, 2),
                    false => (declared.max(2 * size), 1),
                };
                let capacity = capacity.min(longest);
                reserved.grow(capacity * cost)?;
                whole.reserve_exact(capacity - whole.len());
            }
            whole.extend_from_slice(&std::mem::take(&mut first));
            whole.extend_from_slice(&chunk);
        }
        if reserved.is_of_stranger() && size >= next_check {
            next_check = 2 * size;
            if admits(if whole.is_empty() { &first } else { &whole }) {
                reserved.admit(reserved.client())?;
            }
        }
        if reserved.is_of_stranger() && size > max_strange {
            return Err(BodyError::Stranger { limit: max_strange });
        }
    }
    let bytes = if whole.is_empty() {
        first
    } else {
        whole.into()
    };
    Ok((bytes, reserved))
}

/// Removes a byte order mark.
#[must_use]
pub fn without_bom(mut text: Bytes) -> Bytes {
    if text.starts_with(BYTE_ORDER_MARK) {
        text.advance(BYTE_ORDER_MARK.len());
    }
    text
}

/// The non-empty lines of a body without its byte order mark, read in memory bounded by the longest allowed line plus one chunk.
#[derive(Debug)]
pub struct Lines {
    body: Body,
    max_line: usize,
    limits: BodyLimits,
    chunk: Bytes,
    line: BytesMut,
    reserved: Reservation,
    /// For a client without a token: the end of the time for all lines until one takes effect.
    until: Option<Instant>,
    number: u64,
    too_long: bool,
    ended: bool,
}

impl Lines {
    /// Returns the client that sends them.
    #[must_use]
    pub fn client(&self) -> Client {
        self.reserved.client()
    }

    /// Creates a reader of lines of at most `max_line` bytes without the terminator. Each must arrive in the time of
    /// `limits`.
    #[must_use]
    pub fn new(body: Body, max_line: usize, limits: &BodyLimits) -> Self {
        let reserved = limits.begin();
        let until = Instant::now() + limits.within;
        Self {
            body,
            max_line,
            limits: limits.clone(),
            until: reserved.is_of_stranger().then_some(until),
            reserved,
            chunk: Bytes::new(),
            line: BytesMut::new(),
            number: 0,
            too_long: false,
            ended: false,
        }
    }

    /// Returns the number of the last returned line, counted from 1 and including empty lines.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns true if the client was not admitted yet.
    #[must_use]
    pub fn are_of_stranger(&self) -> bool {
        self.reserved.is_of_stranger()
    }

    /// Admits the client, because a line had a valid credential.
    ///
    /// # Errors
    /// There is no memory for the line that arrives now.
    pub fn admit(&mut self) -> Result<(), BodyError> {
        self.reserved.admit(self.reserved.client())
    }

    /// Records that a line has taken effect. Until this is called, all lines of a client without a token together have the time
    /// of one; then the next ones have it again.
    pub fn took_effect(&mut self) {
        self.until = self.until.map(|_| Instant::now() + self.limits.within);
    }

    /// Returns the next line without its `\n` or `\r\n`; `None` at the end. The last line needs no terminator.
    ///
    /// # Errors
    /// After [`BodyError::LineTooLong`], the next call continues with the next line. After any other error, there are no
    /// more lines.
    ///
    /// # Cancel safety
    /// Safe: no byte is lost, but the timeout of the line starts again.
    pub async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        let deadline = Instant::now() + self.limits.within;
        let deadline = self.until.map_or(deadline, |until| until.min(deadline));
        loop {
            if let Some(end) = self.chunk.iter().position(|byte| *byte == b'\n') {
                let piece = self.chunk.split_to(end + 1).slice(..end);
                if let Err(error) = self.take(piece) {
                    return self.fail(error);
                }
                match self.finish() {
                    None => continue,
                    line => return line,
                }
            }
            let rest = std::mem::take(&mut self.chunk);
            if let Err(error) = self.take(rest) {
                return self.fail(error);
            }
            if self.ended {
                return self.finish();
            }
            match next_chunk(&mut self.body, deadline).await {
                Ok(Some(chunk)) => self.chunk = chunk,
                Ok(None) => self.ended = true,
                Err(error) => return self.fail(error),
            }
        }
    }

    /// Adds a piece to the current line, or discards both if the line becomes too long. Allows one extra byte, because a
    /// carriage return at the end does not count.
    fn take(&mut self, piece: Bytes) -> Result<(), BodyError> {
        if self.too_long || piece.len() > self.max_line + 1 - self.line.len() {
            self.too_long = true;
            self.line.clear();
        } else {
            self.reserved.grow(self.line.len() + piece.len())?;
            self.line.extend_from_slice(&piece);
        }
        Ok(())
    }

    /// Ends the body with an error.
    fn fail(&mut self, error: BodyError) -> Option<Result<Bytes, BodyError>> {
        self.ended = true;
        self.chunk = Bytes::new();
        self.line.clear();
        self.too_long = false;
        Some(Err(error))
    }

    /// Ends and returns the current line; `None` if it is empty.
    fn finish(&mut self) -> Option<Result<Bytes, BodyError>> {
        let mut line = self.line.split().freeze();
        self.reserved.clear();
        let at_end = self.ended && line.is_empty() && !self.too_long;
        self.number += u64::from(!at_end);
        if line.ends_with(b"\r") {
            line.truncate(line.len() - 1);
        }
        if self.number == 1 {
            line = without_bom(line);
        }
        if std::mem::take(&mut self.too_long) || line.len() > self.max_line {
            return Some(Err(BodyError::LineTooLong {
                line: self.number,
                limit: self.max_line,
            }));
        }
        (!line.is_empty()).then_some(Ok(line))
    }
}

/// Returns the next piece of data, without trailers; `None` at the end.
async fn next_chunk(body: &mut Body, deadline: Instant) -> Result<Option<Bytes>, BodyError> {
    loop {
        let frame = timeout_at(deadline, body.frame()).await;
        match frame.map_err(|_| BodyError::Timeout)? {
            None => return Ok(None),
            Some(Err(error)) => return Err(BodyError::Broken(error)),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data()
                    && !data.is_empty()
                {
                    return Ok(Some(data));
                }
            }
        }
    }
}
