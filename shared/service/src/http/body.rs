//! Reads request bodies in bounded memory and time: whole, or line by line.
//!
//! Enforces only sizes and times; the routes interpret the bytes. Clients that were not admitted share less memory, and all
//! lines of one together have the time of one line until a line takes effect.

use axum::body::{Body, Bytes, HttpBody};
use axum::response::{IntoResponse, Response};
use bytes::{Buf, BytesMut};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::json::BYTE_ORDER_MARK;
use super::problem::{Problem, ProblemCode};
use super::share::Shortage;

mod memory;

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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use futures_util::{FutureExt, StreamExt, stream};

    use super::super::client::{self, Client};
    use super::memory::{OF_CLIENTS, OF_STRANGERS};
    use super::*;

    fn soon() -> BodyLimits {
        BodyLimits::new(Duration::from_secs(5))
    }

    fn at_once() -> BodyLimits {
        BodyLimits::new(Duration::from_millis(10))
    }

    /// Returns a body of unknown length that arrives in these pieces.
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
        let text = "body of at least 6 bytes: must be at most 5";
        assert_eq!(declared.unwrap_err().to_string(), text);
        let found = read_limited(pieces(&["ab", "cd", "ef"]), 5, &soon()).await;
        assert_eq!(found.unwrap_err().to_string(), text);
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

    #[tokio::test(start_paused = true)]
    async fn lines_of_a_stranger_have_the_time_of_one_until_one_takes_effect() {
        let limits = BodyLimits::new(Duration::from_secs(30));
        let every_20_s = || {
            Body::from_stream(stream::repeat(()).then(async |()| {
                tokio::time::sleep(Duration::from_secs(20)).await;
                Ok::<_, Infallible>("x\n")
            }))
        };
        let mut lines = Lines::new(every_20_s(), 5, &limits);
        assert_eq!(lines.next().await.unwrap().unwrap(), "x");
        let late = lines.next().await;
        assert!(matches!(late, Some(Err(BodyError::Timeout))), "{late:?}");
        let mut lines = Lines::new(every_20_s(), 5, &limits);
        for _ in 0..5 {
            assert_eq!(lines.next().await.unwrap().unwrap(), "x");
            lines.took_effect();
        }
    }

    /// Reads as a client with a token does.
    fn admitted<F: Future>(read: F) -> impl Future<Output = F::Output> {
        client::Admitted::new(false, None).scope(read)
    }

    #[tokio::test]
    async fn a_stranger_has_less_memory_until_its_body_admits_it() {
        let limits = soon();
        let pieces = |mib: usize| {
            let piece = Bytes::from_static(&[b'x'; 1024 * 1024]);
            Body::from_stream(stream::iter(vec![piece; mib]).map(Ok::<_, Infallible>))
        };
        let most = 64 * 1024 * 1024;
        let stranger = read_limited(pieces(20), most, &limits).await;
        let crowded = stranger.unwrap_err().to_string();
        assert!(crowded.contains("from this client"), "{crowded}");
        let admits = |begun: &[u8]| begun.len() >= 2 * 1024 * 1024;
        let (bytes, reserved) = read_admitting(pieces(20), most, most, &limits, admits)
            .await
            .unwrap();
        assert_eq!(bytes.len(), 20 * 1024 * 1024);
        assert_eq!(limits.strangers.free(), OF_STRANGERS.all);
        assert!(limits.clients.free() <= OF_CLIENTS.all - 19 * 1024 * 1024);
        drop(reserved);
        assert_eq!(limits.clients.free(), OF_CLIENTS.all);
        let mib = 1024 * 1024;
        let refused = read_admitting(pieces(20), most, mib, &limits, |_| false).await;
        assert!(matches!(refused, Err(BodyError::Stranger { limit }) if limit == mib));
    }

    #[tokio::test]
    async fn strangers_do_not_take_the_memory_of_an_address_that_was_admitted_lately() {
        let limits = soon();
        let of = |last: u8| Client::Address([10, 0, 0, last].into());
        let begin = async |last| of(last).scope(async { limits.begin() }).await;
        let mut admitted = begin(1).await;
        admitted.admit(Client::Token("t".into())).unwrap();
        drop(admitted);
        let mut strangers = [begin(2).await, begin(3).await];
        for stranger in &mut strangers {
            stranger.grow(OF_STRANGERS.all / 2).unwrap();
        }
        let mib = 1024 * 1024;
        assert!(begin(4).await.grow(mib).is_err());
        let mut again = begin(1).await;
        assert!(again.is_of_stranger());
        again.grow(mib).unwrap();
    }

    /// Returns a body of `kib` KiB without a line break, which then stalls.
    fn endless(kib: usize) -> Body {
        let pieces = (0..kib).map(|_| Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 1024])));
        Body::from_stream(stream::iter(pieces).chain(stream::pending()))
    }

    #[tokio::test]
    async fn a_reservation_lasts_until_it_is_dropped() {
        const LARGE: usize = 200 * 1024;
        let half = "x".repeat(LARGE / 2);
        let body = || {
            let pieces = [half.clone(), half.clone()].map(Ok::<_, Infallible>);
            Body::from_stream(stream::iter(pieces))
        };
        let limits = BodyLimits::with_room(Duration::from_secs(5), LARGE, LARGE);
        let read = || admitted(read_reserved(body(), LARGE, &limits));
        let (bytes, reserved) = read().await.unwrap();
        assert_eq!(bytes.len(), LARGE);
        let crowded = read().await;
        assert!(matches!(crowded, Err(BodyError::Crowded(_))), "{crowded:?}");
        drop(reserved);
        assert_eq!(read().await.unwrap().0, bytes);
    }

    #[tokio::test]
    async fn large_bodies_share_their_memory_and_small_ones_take_none() {
        const KIB: usize = 1024;
        const LARGE: usize = 1000 * KIB;
        let limits = BodyLimits::with_room(Duration::from_secs(5), 836 * KIB, 836 * KIB);
        let mut under_way = Vec::new();
        for number in 0..8 {
            let (limits, body) = (limits.clone(), endless(264));
            under_way.push(Box::pin(admitted(async move {
                match number % 2 {
                    0 => read_limited(body, LARGE, &limits).await.map(drop),
                    _ => match Lines::new(body, LARGE, &limits).next().await {
                        Some(line) => line.map(drop),
                        None => Ok(()),
                    },
                }
            })));
        }
        let mut crowded = 0;
        under_way.retain_mut(|read| match read.as_mut().now_or_never() {
            None => true,
            Some(ended) => {
                assert!(matches!(ended, Err(BodyError::Crowded(_))));
                crowded += 1;
                false
            }
        });
        assert_eq!(
            (under_way.len(), crowded),
            (3, 5),
            "318 and 200 KiB in turn, of 836"
        );
        let small = pieces(&["ab", "cd"]);
        assert_eq!(read_limited(small, 4, &limits).await.unwrap(), "abcd");
        let problem = Problem::from(BodyError::Crowded(Shortage::OfAll));
        assert_eq!(problem.code(), ProblemCode::Unavailable);
        drop(under_way);
        assert_eq!(limits.clients.free(), 836 * KIB);
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
        let long = |line| Err(format!("line {line} is longer than 5 bytes"));
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
    async fn a_byte_order_mark_is_left_out_only_at_the_head() {
        let read = async |text: &[&'static str]| {
            let text: &'static [&'static str] = text.to_vec().leak();
            all(Lines::new(pieces(text), 9, &soon())).await
        };
        let lines = |lines: &[&str]| -> Vec<_> {
            let lines = lines.iter().map(|line| Ok((*line).to_owned()));
            lines.collect()
        };
        assert_eq!(read(&["\u{feff}{}\n{}"]).await, lines(&["{}", "{}"]));
        assert_eq!(
            read(&["\u{feff}\r\n\u{feff}{}"]).await,
            lines(&["\u{feff}{}"])
        );
        assert_eq!(read(&["\u{feff}"]).await, lines(&[]));
        assert_eq!(without_bom("\u{feff}\u{feff}".into()), "\u{feff}");
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
