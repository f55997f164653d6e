//! Request bodies in bounded memory and time: whole, as JSON, or line by line.
//!
//! Decides only sizes and times; what the bytes mean is the routes' business.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Error};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::problem::{Problem, ProblemCode};

/// Memory of all bodies of a listener that have not come whole yet, bytes.
const ROOM: usize = 256 * 1024 * 1024;
/// So much of a body takes no room: a connection costs about as much anyway, and small bodies are never turned away.
const FREE: usize = 64 * 1024;

/// What the bodies of a listener may take; clones share the memory.
#[derive(Clone, Debug)]
pub struct BodyLimits {
    within: Duration,
    room: Arc<Semaphore>,
}

impl BodyLimits {
    /// A body, or a line of one, must come `within` this; all that have not come whole yet take 256 MiB at most, not counting
    /// the first 64 KiB of each.
    #[must_use]
    pub fn new(within: Duration) -> Self {
        Self::with_room(within, ROOM)
    }

    fn with_room(within: Duration, bytes: usize) -> Self {
        Self {
            within,
            room: Arc::new(Semaphore::new(bytes)),
        }
    }

    fn share(&self) -> Share {
        Share {
            room: self.room.clone(),
            held: None,
        }
    }
}

/// The memory that one body takes.
#[derive(Debug)]
struct Share {
    room: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

impl Share {
    /// Takes what is missing to so many bytes; does not wait, since those who have some wait for more.
    fn grow(&mut self, bytes: usize) -> Result<(), BodyError> {
        let held = self.held.as_ref().map_or(0, |held| held.num_permits());
        let missing = bytes.saturating_sub(FREE).saturating_sub(held);
        if missing == 0 {
            return Ok(());
        }
        let missing = u32::try_from(missing).map_err(|_| BodyError::Crowded)?;
        let more = self.room.clone().try_acquire_many_owned(missing);
        let more = more.map_err(|_| BodyError::Crowded)?;
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
        Ok(())
    }
}

/// Why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body is longer than allowed.
    #[error("body longer than {limit} bytes")]
    TooLarge {
        /// Bytes allowed.
        limit: usize,
    },
    /// One line is longer than allowed; the next line can be read.
    #[error("line {line} longer than {limit} bytes")]
    LineTooLong {
        /// Its number, counted from 1.
        line: u64,
        /// Bytes allowed.
        limit: usize,
    },
    /// Too many large bodies come at once; a later try may find room.
    #[error("too many large bodies at once")]
    Crowded,
    /// The body did not come in time.
    #[error("body not received in time")]
    Timeout,
    /// The connection broke, or the framing of the body is wrong.
    #[error("body ended early")]
    Broken(#[source] axum::Error),
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        let code = match error {
            BodyError::TooLarge { .. } | BodyError::LineTooLong { .. } => ProblemCode::TooLarge,
            BodyError::Crowded => ProblemCode::Unavailable,
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
/// A declared length over the limit is refused before anything is read; an undeclared one as soon
/// as it passes the limit. The unread rest is the listener's business.
///
/// # Errors
/// The body is too large, too slow, or broken, or there is no room for it now.
pub async fn read_limited(
    body: Body,
    max_bytes: usize,
    limits: &BodyLimits,
) -> Result<Bytes, BodyError> {
    let too_large = || BodyError::TooLarge { limit: max_bytes };
    let declared = usize::try_from(body.size_hint().lower()).map_err(|_| too_large())?;
    if declared > max_bytes {
        return Err(too_large());
    }
    let deadline = Instant::now() + limits.within;
    let mut share = limits.share();
    let mut body = body;
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    while let Some(chunk) = next_chunk(&mut body, deadline).await? {
        if chunk.len() > max_bytes - first.len().max(whole.len()) {
            return Err(too_large());
        }
        // Most bodies come in one piece, which needs no copy.
        if first.is_empty() && whole.is_empty() {
            first = chunk;
            continue;
        }
        if whole.is_empty() {
            let size = declared.max(first.len() + chunk.len());
            share.grow(size)?;
            whole.reserve(size);
            whole.extend_from_slice(&first);
        }
        share.grow(whole.len() + chunk.len())?;
        whole.extend_from_slice(&chunk);
    }
    Ok(if whole.is_empty() {
        first
    } else {
        whole.freeze()
    })
}

/// Reads a body like [`read_limited`] and parses it as a JSON [`object`].
///
/// # Errors
/// A ready response: 413, 408, 503, or 422 with the place of the fault.
pub async fn read_json<T: DeserializeOwned>(
    body: Body,
    max_bytes: usize,
    limits: &BodyLimits,
) -> Result<T, Problem> {
    let bytes = read_limited(body, max_bytes, limits).await?;
    object(&bytes)
        .map_err(|error| Problem::new(ProblemCode::Invalid, format!("body is not valid: {error}")))
}

/// Parses a JSON object. Alone, serde would also take the array of a struct's fields in their order.
///
/// # Errors
/// Another JSON value, or none, or not an object of this type.
pub fn object<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, serde_json::Error> {
    let first = json.iter().find(|byte| !b" \t\r\n".contains(byte));
    if first != Some(&b'{') {
        return Err(serde_json::Error::custom("expected a JSON object"));
    }
    serde_json::from_slice(json)
}

/// The non-empty lines of a body, in memory bounded by the longest line allowed plus one chunk.
#[derive(Debug)]
pub struct Lines {
    body: Body,
    max_line: usize,
    limits: BodyLimits,
    chunk: Bytes,
    line: BytesMut,
    share: Share,
    number: u64,
    too_long: bool,
    ended: bool,
}

impl Lines {
    /// Lines of at most `max_line` bytes (terminator not counted), each to arrive in the time of `limits`.
    #[must_use]
    pub fn new(body: Body, max_line: usize, limits: &BodyLimits) -> Self {
        Self {
            body,
            max_line,
            limits: limits.clone(),
            share: limits.share(),
            chunk: Bytes::new(),
            line: BytesMut::new(),
            number: 0,
            too_long: false,
            ended: false,
        }
    }

    /// The number, counted from 1 and including empty lines, of the line returned last.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The next line without its `\n` or `\r\n`; `None` at the end. The last line needs no terminator.
    ///
    /// # Errors
    /// After [`BodyError::LineTooLong`] the next call goes on with the line after it; after any
    /// other error there are no more lines.
    ///
    /// # Cancel safety
    /// Safe: no byte is lost, but the time of the line starts anew.
    pub async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        let deadline = Instant::now() + self.limits.within;
        loop {
            if let Some(end) = self.chunk.iter().position(|byte| *byte == b'\n') {
                let piece = self.chunk.split_to(end + 1).slice(..end);
                if let Err(error) = self.take(piece) {
                    return self.give_up(error);
                }
                match self.finish() {
                    None => continue,
                    line => return line,
                }
            }
            let rest = std::mem::take(&mut self.chunk);
            if let Err(error) = self.take(rest) {
                return self.give_up(error);
            }
            if self.ended {
                return self.finish();
            }
            match next_chunk(&mut self.body, deadline).await {
                Ok(Some(chunk)) => self.chunk = chunk,
                Ok(None) => self.ended = true,
                Err(error) => return self.give_up(error),
            }
        }
    }

    /// Adds a piece to the current line, or throws both away when the line grows too long. One byte
    /// of grace, because a carriage return at the end does not count.
    fn take(&mut self, piece: Bytes) -> Result<(), BodyError> {
        if self.too_long || piece.len() > self.max_line + 1 - self.line.len() {
            self.too_long = true;
            self.line.clear();
        } else {
            self.share.grow(self.line.len() + piece.len())?;
            self.line.extend_from_slice(&piece);
        }
        Ok(())
    }

    /// Ends the body with an error.
    fn give_up(&mut self, error: BodyError) -> Option<Result<Bytes, BodyError>> {
        self.ended = true;
        self.chunk = Bytes::new();
        self.line.clear();
        self.too_long = false;
        Some(Err(error))
    }

    /// Ends the current line; `None` for an empty one.
    fn finish(&mut self) -> Option<Result<Bytes, BodyError>> {
        let mut line = self.line.split().freeze();
        self.share.held = None;
        let at_end = self.ended && line.is_empty() && !self.too_long;
        self.number += u64::from(!at_end);
        if line.ends_with(b"\r") {
            line.truncate(line.len() - 1);
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

/// The next piece of data; trailers are skipped. `None` at the end.
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{FutureExt, StreamExt, stream};

    use super::*;

    fn soon() -> BodyLimits {
        BodyLimits::new(Duration::from_secs(5))
    }

    fn at_once() -> BodyLimits {
        BodyLimits::new(Duration::from_millis(10))
    }

    /// A body of unknown length that comes in these pieces.
    fn pieces(pieces: &'static [&'static str]) -> Body {
        Body::from_stream(stream::iter(pieces).map(|piece| Ok::<_, Infallible>(*piece)))
    }

    fn stalled() -> Body {
        let first = stream::iter([Ok::<_, Infallible>("{\"a\":")]);
        Body::from_stream(first.chain(stream::pending()))
    }

    async fn all(mut lines: Lines) -> Vec<Result<String, String>> {
        let mut found = Vec::new();
        while let Some(line) = lines.next().await {
            found.push(match line {
                Ok(line) => Ok(String::from_utf8(line.to_vec()).unwrap()),
                Err(error) => Err(error.to_string()),
            });
        }
        found
    }

    #[tokio::test]
    async fn a_body_up_to_the_limit_is_read_whole() {
        for limit in [6, 7] {
            let read = read_limited(pieces(&["ab", "", "cd", "ef"]), limit, &soon()).await;
            assert_eq!(read.unwrap(), "abcdef");
        }
        assert_eq!(read_limited(Body::empty(), 0, &soon()).await.unwrap(), "");
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_declared_or_not() {
        let declared = read_limited(Body::from("abcdef"), 5, &soon()).await;
        assert!(matches!(declared, Err(BodyError::TooLarge { limit: 5 })));
        let found = read_limited(pieces(&["ab", "cd", "ef"]), 5, &soon()).await;
        assert!(matches!(found, Err(BodyError::TooLarge { limit: 5 })));
    }

    #[tokio::test]
    async fn a_slow_body_is_a_timeout() {
        let read = read_limited(stalled(), 100, &at_once()).await;
        let problem = Problem::from(read.unwrap_err());
        assert_eq!(problem.code(), ProblemCode::Timeout);
        let mut lines = Lines::new(stalled(), 100, &at_once());
        assert!(matches!(lines.next().await, Some(Err(BodyError::Timeout))));
        assert!(lines.next().await.is_none());
    }

    /// A body of so many KiB, without an end of a line, which then stalls.
    fn endless(kib: usize) -> Body {
        let pieces = (0..kib).map(|_| Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 1024])));
        Body::from_stream(stream::iter(pieces).chain(stream::pending()))
    }

    #[tokio::test]
    async fn large_bodies_share_their_memory_and_small_ones_take_none() {
        const KIB: usize = 1024;
        const LARGE: usize = 1000 * KIB;
        let limits = BodyLimits::with_room(Duration::from_secs(5), 600 * KIB);
        let mut under_way = Vec::new();
        for number in 0..8 {
            let (limits, body) = (limits.clone(), endless(264));
            under_way.push(Box::pin(async move {
                match number % 2 {
                    0 => read_limited(body, LARGE, &limits).await.map(drop),
                    _ => match Lines::new(body, LARGE, &limits).next().await {
                        Some(line) => line.map(drop),
                        None => Ok(()),
                    },
                }
            }));
        }
        let mut crowded = 0;
        under_way.retain_mut(|read| match read.as_mut().now_or_never() {
            None => true,
            Some(ended) => {
                assert!(matches!(ended, Err(BodyError::Crowded)));
                crowded += 1;
                false
            }
        });
        assert_eq!((under_way.len(), crowded), (3, 5), "200 KiB each of 600");
        let small = pieces(&["ab", "cd"]);
        assert_eq!(read_limited(small, 4, &limits).await.unwrap(), "abcd");
        let problem = Problem::from(BodyError::Crowded);
        assert_eq!(problem.code(), ProblemCode::Unavailable);
        drop(under_way);
        assert_eq!(limits.room.available_permits(), 600 * KIB);
    }

    #[derive(Debug, Deserialize)]
    struct Pair {
        one: u8,
        two: Option<u8>,
    }

    #[tokio::test]
    async fn json_that_is_no_object_of_its_kind_is_invalid() {
        for (text, why) in [
            ("", "expected a JSON object"),
            ("null", "expected a JSON object"),
            ("[1, 2]", "expected a JSON object"),
            (" [1]", "expected a JSON object"),
            ("\"{}\"", "expected a JSON object"),
            ("{\"one\": 1", "EOF while parsing"),
            ("{\"two\": 2}", "missing field `one`"),
            ("{\"one\": 1} {}", "trailing characters"),
        ] {
            let problem = read_json::<Pair>(Body::from(text), 100, &soon()).await;
            let problem = problem.unwrap_err();
            assert_eq!(problem.code(), ProblemCode::Invalid);
            let detail = problem.detail();
            assert!(
                detail.starts_with(&format!("body is not valid: {why}")),
                "{text}: {detail}"
            );
        }
        let read = read_json::<Pair>(Body::from("\r\n\t {\"one\": 1}"), 100, &soon()).await;
        let pair = read.unwrap();
        assert_eq!((pair.one, pair.two), (1, None));
    }

    #[tokio::test]
    async fn lines_do_not_care_how_the_body_is_cut() {
        let body = pieces(&["o", "ne\ntw", "o\r\n", "\n\r\n", "three\nfour", "\r"]);
        let expected: Vec<_> = ["one", "two", "three", "four"]
            .map(|l| Ok(l.to_owned()))
            .into();
        assert_eq!(all(Lines::new(body, 5, &soon())).await, expected);
        assert!(
            all(Lines::new(pieces(&["\n\n"]), 5, &soon()))
                .await
                .is_empty()
        );
    }

    #[tokio::test]
    async fn a_long_line_is_reported_and_the_next_one_read() {
        let body = pieces(&[
            "12345\n12345\r\n123456\n",
            "123",
            "456789",
            "0\nok\n1234567",
        ]);
        let long = |line| Err(format!("line {line} longer than 5 bytes"));
        let fits = || Ok("12345".to_owned());
        let expected = [
            fits(),
            fits(),
            long(3),
            long(4),
            Ok("ok".to_owned()),
            long(6),
        ];
        assert_eq!(all(Lines::new(body, 5, &soon())).await, expected);
    }

    #[tokio::test]
    async fn line_numbers_count_empty_lines() {
        let mut lines = Lines::new(pieces(&["a\n\nb"]), 5, &soon());
        lines.next().await.unwrap().unwrap();
        assert_eq!(lines.number(), 1);
        lines.next().await.unwrap().unwrap();
        assert_eq!(lines.number(), 3);
        assert!(lines.next().await.is_none());
    }
}
