//! The TCP side of one connection: time limits for heads and writes, clients that leave, and a lingering close.
//!
//! hyper has one timer for both the idle time and the head of a request; this module separates the two. hyper also closes a
//! socket that still has unread bytes. Then the kernel sends a reset, which can overtake the response. This module discards
//! the unread bytes first. With [TLS](super::tls), all of this applies to the encrypted bytes.
//!
//! A client may close its side after a request and still wait for the response. In TCP, this looks the same as a client that
//! has left, so the route decides: [`ends_with_client`].

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep};

use super::HttpLimits;

/// The number of bytes discarded at a time while closing.
const LINGER_BUFFER: usize = 16 * 1024;
/// The number of bytes that are discarded before a pause, so that clients that send a lot leave CPU time for others.
const LINGER_PART: usize = 64 * 1024;
/// The pause after each part.
const LINGER_PAUSE: Duration = Duration::from_millis(5);
/// The interval at which a client that sent more than its request is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The bytes of the response that a client must read in each turn while others wait for its slot.
const HURRIED_PART: usize = 256 * 1024;

tokio::task_local! {
    /// The exchange of the request that is being answered.
    static EXCHANGE: Arc<Exchange>;
}

/// Ends the request being answered, and its connection, once the client closes its side, since it may have left.
///
/// Use it for a request that holds a resource until its client leaves, or that takes long. Any other request is answered.
pub fn ends_with_client() {
    let _ = EXCHANGE.try_with(|exchange| {
        exchange.ends_with_client.store(true, Ordering::Relaxed);
        exchange.watch.notify_one();
    });
}

/// The state of the requests on a stream.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    requests: AtomicU64,
    busy: AtomicBool,
    unread: AtomicBool,
    hurried: AtomicBool,
    ends_with_client: AtomicBool,
    /// Notified when the current request calls [`ends_with_client`].
    watch: Notify,
}

/// A guard that lives from the head of a request to the last byte of its response.
#[derive(Debug)]
pub(super) struct Busy(Arc<Exchange>);

impl Exchange {
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        self.unread.store(false, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.busy.store(true, Ordering::Relaxed);
        Busy(self.clone())
    }

    /// Runs the answer to the current request.
    pub(super) fn scope<F: Future>(self: Arc<Self>, answer: F) -> impl Future<Output = F::Output> {
        EXCHANGE.scope(self, answer)
    }

    /// Waits until the client has closed its side during a request that ends with it.
    pub(super) async fn abandoned(&self, tcp: &TcpStream) {
        loop {
            self.watch.notified().await;
            while self.ends_with_client.load(Ordering::Relaxed) {
                // Further bytes hide the end of the stream from `peek`, but not from the readiness of the socket.
                let is_end = !matches!(tcp.peek(&mut [0]).await, Ok(1));
                let ready = tcp.ready(Interest::READABLE).await;
                let is_closed = ready.is_ok_and(|ready| ready.is_read_closed());
                // The bytes may be the next request of a client that waited for its response.
                if !self.ends_with_client.load(Ordering::Relaxed) {
                    break;
                }
                if is_end || is_closed {
                    return;
                }
                sleep(LOOK_EVERY).await;
            }
        }
    }

    /// Limits the time of the current response, because other clients wait for the slot of this connection.
    pub(super) fn hurry(&self) {
        self.hurried.store(true, Ordering::Relaxed);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Relaxed);
        self.0.ends_with_client.store(false, Ordering::Relaxed);
    }
}

/// A TCP socket with time limits.
#[derive(Debug)]
pub(super) struct Stream {
    /// Shared with [`Exchange::abandoned`].
    tcp: Arc<TcpStream>,
    exchange: Arc<Exchange>,
    limits: HttpLimits,
    /// The timer that runs while a head is received.
    head: Option<Pin<Box<Sleep>>>,
    /// The number of requests begun when `head` was last checked.
    seen: u64,
    /// The timer that runs while the client reads no byte of the response; while hurried, until it has read a part of it.
    stalled: Option<Pin<Box<Sleep>>>,
    /// The bytes written while hurried since `stalled` started.
    taken: usize,
    /// True if other clients wait for its slot.
    hurried: bool,
    /// The timer that runs while the rest of a body is discarded.
    linger: Option<Pin<Box<Sleep>>>,
    /// The bytes of a body that were discarded since the last pause.
    discarded: usize,
    /// The pause between two parts of the discarded body.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Stream {
    pub(super) fn new(tcp: Arc<TcpStream>, exchange: Arc<Exchange>, limits: HttpLimits) -> Self {
        Self {
            tcp,
            exchange,
            limits,
            head: timer(limits.header_timeout),
            seen: 0,
            stalled: None,
            taken: 0,
            hurried: false,
            linger: None,
            discarded: 0,
            pause: None,
        }
    }

    /// Makes the shutdown discard what the client still sends.
    pub(super) fn expect_more(&self) {
        self.exchange.unread.store(true, Ordering::Relaxed);
    }

    fn poll_receive(
        tcp: &TcpStream,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(tcp.poll_read_ready(cx))?;
            match tcp.try_read_buf(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome.map(drop)),
            }
        }
    }

    fn poll_send(
        &self,
        cx: &mut Context<'_>,
        send: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.tcp.poll_write_ready(cx))?;
            match send(&self.tcp) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome),
            }
        }
    }

    /// Returns the outcome of a write of `bytes` bytes, or an error if the write has waited too long.
    fn watch_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: usize,
        outcome: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if !self.hurried && self.exchange.hurried.load(Ordering::Relaxed) {
            self.hurried = true;
            self.stalled = None;
        }
        if let Poll::Ready(written) = &outcome {
            let written = *written.as_ref().unwrap_or(&0);
            self.taken += written;
            if !self.hurried || written == bytes || self.taken >= HURRIED_PART {
                self.stalled = None;
                self.taken = 0;
            }
            return outcome;
        }
        let limit = if self.hurried {
            self.limits.turn
        } else {
            self.limits.write_timeout
        };
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(timed_out("the client reads no data")))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let requests = this.exchange.requests.load(Ordering::Relaxed);
        if requests != this.seen {
            this.seen = requests;
            this.head = None;
        }
        let before = buf.filled().len();
        let outcome = Self::poll_receive(&this.tcp, cx, buf);
        if outcome.is_ready() {
            let got_bytes = buf.filled().len() > before;
            let idle = !this.exchange.busy.load(Ordering::Relaxed);
            if got_bytes && idle && this.head.is_none() {
                this.head = timer(this.limits.header_timeout);
            }
            return outcome;
        }
        match &mut this.head {
            Some(head) => ready!(head.as_mut().poll(cx)),
            None => return Poll::Pending,
        }
        Poll::Ready(Err(timed_out("request head not received in time")))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = self.poll_send(cx, |tcp| tcp.try_write(data));
        self.watch_write(cx, data.len(), outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = self.poll_send(cx, |tcp| tcp.try_write_vectored(data));
        let bytes = data.iter().map(|part| part.len()).sum();
        self.watch_write(cx, bytes, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            shutdown(&*this.tcp, Shutdown::Write)?;
            if !this.exchange.unread.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let limit = this.limits.linger;
        let linger = this
            .linger
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        let mut rest = [0; LINGER_BUFFER];
        loop {
            // Checked in each iteration: a client that never stops sending must not exceed the limit.
            if linger.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            if let Some(pause) = &mut this.pause {
                ready!(pause.as_mut().poll(cx));
                this.pause = None;
            }
            let mut buf = ReadBuf::new(&mut rest);
            ready!(Self::poll_receive(&this.tcp, cx, &mut buf))?;
            if buf.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.discarded += buf.filled().len();
            if this.discarded >= LINGER_PART {
                this.discarded = 0;
                this.pause = timer(LINGER_PAUSE);
            }
        }
    }
}

fn timer(limit: Duration) -> Option<Pin<Box<Sleep>>> {
    Some(Box::pin(tokio::time::sleep(limit)))
}

fn timed_out(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

/// A request body that records whether it was read to its end.
#[derive(Debug)]
pub(super) struct Upload {
    inner: Incoming,
    ended: bool,
    exchange: Arc<Exchange>,
}

impl Upload {
    pub(super) fn wrap(inner: Incoming, exchange: &Arc<Exchange>) -> Body {
        if inner.is_end_stream() {
            return Body::empty();
        }
        Body::new(Self {
            inner,
            ended: false,
            exchange: exchange.clone(),
        })
    }
}

impl HttpBody for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        self.ended = frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.ended && !self.inner.is_end_stream() {
            self.exchange.unread.store(true, Ordering::Relaxed);
        }
    }
}

/// A response body that keeps the exchange busy until it is sent or dropped.
#[derive(Debug)]
pub(super) struct Download {
    inner: Body,
    _busy: Busy,
}

impl Download {
    pub(super) fn new(inner: Body, busy: Busy) -> Self {
        Self { inner, _busy: busy }
    }
}

impl HttpBody for Download {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
