//! Bounds the replies of a server.
//!
//! The client library collects a reply until it is complete, whatever size the server announces, and drops unsolicited
//! replies. [`Bounded`] follows the frames between socket and library, without collecting them. It ends the connection
//! at a reply that is too large or unsolicited.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::sync::Mutex;

/// The largest size of a line: only errors and statuses are lines.
const MAX_LINE: usize = 64 * 1024;
/// The number of bytes that a value takes in memory, besides its text.
const VALUE_COST: u64 = 64;

/// The error that a server sent before it was asked anything, such as a refusal of the connection.
#[derive(Clone, Default)]
pub(super) struct Greeting(Arc<Mutex<Option<Vec<u8>>>>);

impl Greeting {
    /// Returns the line, with its line break.
    pub(super) fn take(&self) -> Option<Vec<u8>> {
        self.0.lock().take()
    }
}

/// A stream to a server, with bounded replies.
pub(super) struct Bounded<S> {
    stream: S,
    requests: Frames,
    replies: Frames,
    /// True if the server may send pushes: RESP3.
    has_pushes: bool,
    greeting: Greeting,
}

impl<S> Bounded<S> {
    /// Creates the stream. A reply may take `max_reply` bytes.
    pub(super) fn new(stream: S, max_reply: usize, has_pushes: bool) -> Self {
        Self {
            stream,
            requests: Frames::new(u64::MAX),
            replies: Frames::new(max_reply as u64),
            has_pushes,
            greeting: Greeting::default(),
        }
    }

    pub(super) fn greeting(&self) -> Greeting {
        self.greeting.clone()
    }

    fn check(&mut self, received: &[u8]) -> io::Result<()> {
        self.replies.read(received)?;
        let is_unasked = self.replies.complete > self.requests.complete
            || (self.replies.pushes > 0 && !self.has_pushes);
        if !is_unasked {
            return Ok(());
        }
        self.replies.is_broken = true;
        let last = std::mem::take(&mut self.replies.line);
        let said = String::from_utf8_lossy(&last);
        let said = crate::time::shorten_to(said.trim_end(), 256);
        if self.requests.complete == 0 && last.starts_with(b"-") {
            *self.greeting.0.lock() = Some(last);
        }
        Err(invalid(format!("unsolicited reply of the server: {said}")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        Poll::Ready(self.check(&buf.filled()[before..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.stream).poll_write(cx, buf))?;
        self.requests.read(&buf[..count])?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Follows the frames of one direction of a connection.
struct Frames {
    /// The largest cost of a frame.
    most: u64,
    /// The cost of the current frame.
    cost: u64,
    /// The number of values that the current frame still needs; 0 between frames.
    open: u64,
    /// The number of bytes of the current string that have not arrived.
    skip: u64,
    /// The current line, or the last one.
    line: Vec<u8>,
    is_push: bool,
    is_broken: bool,
    /// The number of complete frames, without pushes.
    complete: u64,
    pushes: u64,
}

impl Frames {
    fn new(most: u64) -> Self {
        Self {
            most,
            cost: 0,
            open: 0,
            skip: 0,
            line: Vec::new(),
            is_push: false,
            is_broken: false,
            complete: 0,
            pushes: 0,
        }
    }

    /// Follows the next bytes. The library reports bytes that are not RESP; this reports only the bytes after them.
    fn read(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_broken && !bytes.is_empty() {
            return Err(invalid("not a Redis reply".to_owned()));
        }
        let followed = self.follow(bytes);
        self.is_broken |= followed.is_err();
        followed
    }

    fn follow(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() && !self.is_broken {
            if self.skip > 0 {
                let count = self.skip.min(bytes.len() as u64);
                self.skip -= count;
                bytes = &bytes[count as usize..];
                if self.skip == 0 {
                    self.end_value();
                }
                continue;
            }
            if self.line.ends_with(b"\r\n") {
                self.line.clear();
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (part, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
            bytes = rest;
            if self.line.len() + part.len() > MAX_LINE {
                return Err(invalid(format!("a line of more than {MAX_LINE} bytes")));
            }
            self.line.extend_from_slice(part);
            if self.line.ends_with(b"\r\n") {
                self.end_line()?;
            }
        }
        Ok(())
    }

    fn end_line(&mut self) -> io::Result<()> {
        if self.open == 0 {
            self.open = 1;
            self.cost = 0;
            self.is_push = self.line[0] == b'>';
        }
        self.spend(VALUE_COST + self.line.len() as u64)?;
        let Some(next) = next(&self.line) else {
            self.is_broken = true;
            return Ok(());
        };
        match next {
            Next::Value => self.end_value(),
            Next::Bytes(count) => {
                self.spend(count)?;
                // The line break is part of it.
                self.skip = count.saturating_add(2);
            }
            Next::Values(count) => {
                let all = self.open.saturating_add(count);
                // Each costs at least this when it comes.
                if self.cost.saturating_add(all.saturating_mul(VALUE_COST)) > self.most {
                    return Err(self.too_large());
                }
                self.open = all;
                self.end_value();
            }
        }
        Ok(())
    }

    fn end_value(&mut self) {
        self.open -= 1;
        if self.open == 0 {
            match self.is_push {
                true => self.pushes += 1,
                false => self.complete += 1,
            }
        }
    }

    fn spend(&mut self, cost: u64) -> io::Result<()> {
        self.cost = self.cost.saturating_add(cost);
        match self.cost > self.most {
            true => Err(self.too_large()),
            false => Ok(()),
        }
    }

    fn too_large(&self) -> io::Error {
        invalid(format!("a reply of more than {} bytes", self.most))
    }
}

/// The rest of a value, after its first line.
enum Next {
    Value,
    Bytes(u64),
    Values(u64),
}

/// Returns what follows a line; `None` if it is not RESP.
fn next(line: &[u8]) -> Option<Next> {
    let (kind, rest) = line.split_first()?;
    let number = || std::str::from_utf8(rest).ok()?.trim().parse::<i64>().ok();
    let count = || u64::try_from(number()?).ok();
    Some(match kind {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => Next::Value,
        b'$' => u64::try_from(number()?).map_or(Next::Value, Next::Bytes),
        b'!' | b'=' => Next::Bytes(count()?),
        b'*' | b'~' | b'>' => u64::try_from(number()?).map_or(Next::Value, Next::Values),
        b'%' => Next::Values(count()?.checked_mul(2)?),
        // The value that it describes follows.
        b'|' => Next::Values(count()?.checked_mul(2)?.checked_add(1)?),
        _ => return None,
    })
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Follows replies that arrive in parts of `size` bytes.
    fn read(most: u64, size: usize, text: &[u8]) -> io::Result<Frames> {
        let mut frames = Frames::new(most);
        for part in text.chunks(size) {
            frames.read(part)?;
        }
        Ok(frames)
    }

    #[test]
    fn each_reply_is_counted_wherever_it_is_cut() {
        let replies: [&[u8]; 12] = [
            b"+OK\r\n",
            b"-ERR a\nb\r\n",
            b":7\r\n",
            b"$-1\r\n",
            b"$0\r\n\r\n",
            b"$4\r\n\r\n+a\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*2\r\n*1\r\n:1\r\n$1\r\na\r\n",
            b"%1\r\n+a\r\n~2\r\n_\r\n#t\r\n",
            b"|1\r\n+a\r\n+b\r\n:1\r\n",
            b"=5\r\ntxt:a\r\n",
        ];
        let text = [replies.concat(), b">2\r\n+a\r\n:1\r\n".to_vec()].concat();
        for size in 1..=text.len() {
            let frames = read(1 << 20, size, &text).unwrap();
            let counts = (frames.complete, frames.pushes, frames.open);
            assert_eq!(counts, (12, 1, 0), "in parts of {size}");
        }
    }

    #[test]
    fn a_reply_is_refused_by_what_it_announces() {
        for text in [
            "$2000000000\r\n",
            "*2000000000\r\n",
            "*9223372036854775807\r\n",
            "%9000000000000000\r\n",
            "*2\r\n$900\r\n",
            "*2\r\n*14\r\n",
        ] {
            let error = read(1000, 7, text.as_bytes()).err();
            assert!(error.is_some(), "{text:?}");
        }
        let error = read(1 << 40, 4096, &vec![b'+'; MAX_LINE + 1]).err();
        assert!(error.is_some(), "an endless line");
        // Many small replies are not one large one.
        assert_eq!(
            read(200, 9, &b"+OK\r\n".repeat(1000)).unwrap().complete,
            1000
        );
    }

    #[test]
    fn what_is_not_a_reply_is_left_to_the_library_and_then_ends() {
        let mut frames = Frames::new(1000);
        frames.read(b"HTTP/1.1 400 Bad Request\r\n").unwrap();
        assert!(frames.read(b"\r\n").is_err());
    }
}
