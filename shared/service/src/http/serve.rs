//! The accept loop and its connections, from the first byte until they are drained.
//!
//! Replaces `axum::serve`, which sets no timeouts and so keeps slow and idle connections forever.

use std::collections::VecDeque;
use std::fmt;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lisa_core::sync::RwLock;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::HttpLimits;
use super::accept::Acceptor;
use super::cross_site::CrossSite;
use super::guard::Guard;
use super::stream::{Download, Exchange, Stream, Upload};
use super::tls::Tls;
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;

/// hyper's limit of a head as a multiple of ours. A head between the two limits is answered with a problem.
const HEAD_SLACK: usize = 4;

/// The routes of a listener and its limits, which can be replaced while it serves. Cheap to clone.
#[derive(Clone)]
pub struct Routes(Arc<RwLock<(Router, HttpLimits)>>);

impl Routes {
    /// Adds spans and request metrics to the router. Adds problems for unknown routes and methods, for panics, for requests that
    /// `cross_site` refuses, and, while `draining`, for all routes except the operational ones. Replaces the router's fallback, if
    /// any.
    pub fn new(
        router: Router,
        limits: HttpLimits,
        cross_site: CrossSite,
        metrics: &Metrics,
        draining: &CancellationToken,
    ) -> Self {
        let guard = Guard {
            metrics: metrics.clone(),
            draining: draining.clone(),
            max_header_bytes: limits.max_header_bytes,
            cross_site,
        };
        Self(Arc::new(RwLock::new((guard.wrap(router), limits))))
    }

    /// Adds nothing to the router.
    #[cfg(feature = "http2")]
    pub fn unguarded(router: Router) -> Self {
        Self(Arc::new(RwLock::new((router, HttpLimits::default()))))
    }

    /// Replaces the routes and the limits. Open connections stay, and get their next responses from the new routes.
    pub fn replace(&self, other: &Self) {
        let other = other.0.read().clone();
        *self.0.write() = other;
    }

    /// Returns the same routes, to be replaced separately.
    pub fn separate(&self) -> Self {
        Self(Arc::new(RwLock::new(self.0.read().clone())))
    }

    pub(super) fn router(&self) -> Router {
        self.0.read().0.clone()
    }

    fn limits(&self) -> HttpLimits {
        self.0.read().1
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes").finish_non_exhaustive()
    }
}

/// Serves the routes on `listener` until the shutdown, then lets open requests finish within the grace period. The listener stays
/// open while a [`crate::shutdown::Hold`] exists.
///
/// Each connection begins with the current [`Tls`]. A handshake holds a slot, for at most [`HttpLimits::header_timeout`].
///
/// While a client waits for a connection slot, connections older than [`HttpLimits::turn`] are closed after their current response.
///
/// # Errors
/// The listener itself failed. Failures of single connections are not errors.
///
/// # Cancel safety
/// Dropping the future closes all connections.
pub async fn serve(
    listener: TcpListener,
    routes: Routes,
    tls: &Tls,
    metrics: &Metrics,
    shutdown: &Shutdown,
) -> Result<(), io::Error> {
    let mut connections = JoinSet::new();
    let mut slots = Slots::default();
    // The only connection accepted without a slot: it shows that a client waits. Others wait in the kernel's queue.
    let mut waiting = None;
    let mut acceptor = Acceptor::new(listener);
    let mut next_round = Instant::now();
    let mut quiet = pin!(shutdown.quiet());
    loop {
        let limits = routes.limits();
        if connections.len() < limits.max_connections
            && let Some((tcp, peer)) = waiting.take()
        {
            let leave = slots.take(limits.max_connections);
            let (routes, tls) = (routes.clone(), tls.clone());
            connections.spawn(connection(tcp, peer, routes, limits, tls, leave));
        }
        let turn_ends = slots.oldest().filter(|_| waiting.is_some());
        let turn_ends = turn_ends.map(|since| (since + limits.turn).max(next_round));
        let accepted = tokio::select! {
            biased;
            () = &mut quiet => break,
            // Comes first: a slot that is already free costs no other connection.
            Some(ended) = connections.join_next() => {
                report(ended, metrics);
                continue;
            }
            accepted = acceptor.accept(), if waiting.is_none() => accepted?,
            now = reached(turn_ends) => {
                slots.leave_older(now, limits.turn, limits.max_connections.div_ceil(LEAVING));
                next_round = now + ROUND;
                continue;
            }
        };
        waiting = Some(accepted);
    }
    drop(acceptor);
    drop(waiting);
    drop(slots);
    loop {
        tokio::select! {
            ended = connections.join_next() => match ended {
                Some(ended) => report(ended, metrics),
                None => return Ok(()),
            },
            () = shutdown.now().cancelled() => {
                tracing::warn!(connections = connections.len(), "grace period ended; closing connections");
                return Ok(());
            }
        }
    }
}

/// While a client waits, each round frees at most this fraction of the slots: a hundredth. So one client that waits briefly
/// does not cost all others their connections.
const LEAVING: usize = 100;
/// The length of a round.
const ROUND: Duration = Duration::from_millis(100);

/// Waits until the instant and returns the current time; without an instant, waits forever.
async fn reached(at: Option<Instant>) -> Instant {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
    Instant::now()
}

/// The open connections that were not asked to close, oldest first. Some may have ended already.
#[derive(Default)]
struct Slots(VecDeque<Slot>);

/// The slot of a connection. Dropping it closes the connection after its current response. A message to `make_room` does the
/// same, and also limits the time of that response.
struct Slot {
    since: Instant,
    make_room: oneshot::Sender<()>,
}

impl Slots {
    /// Adds a connection that is opened now.
    fn take(&mut self, max_connections: usize) -> oneshot::Receiver<()> {
        if self.0.len() >= max_connections.saturating_mul(2) {
            self.0.retain(|slot| !slot.make_room.is_closed());
        }
        let (make_room, leave) = oneshot::channel();
        let since = Instant::now();
        self.0.push_back(Slot { since, make_room });
        leave
    }

    fn oldest(&self) -> Option<Instant> {
        self.0.front().map(|slot| slot.since)
    }

    /// Asks the connections of at least this age to close, oldest first, and at most `most` of them.
    fn leave_older(&mut self, now: Instant, age: Duration, most: usize) {
        let mut asked = 0;
        while asked < most
            && let Some(slot) = self.0.pop_front_if(|slot| slot.since + age <= now)
        {
            // A connection that has ended already does not count.
            asked += usize::from(slot.make_room.send(()).is_ok());
        }
    }
}

async fn connection(
    tcp: TcpStream,
    peer: SocketAddr,
    routes: Routes,
    limits: HttpLimits,
    tls: Tls,
    mut leave: oneshot::Receiver<()>,
) {
    if let Err(error) = tcp.set_nodelay(true) {
        tracing::debug!(%peer, %error, "connection lost before its first request");
        return;
    }
    let exchange = Arc::new(Exchange::default());
    let tcp = Arc::new(tcp);
    let stream = Stream::new(tcp.clone(), exchange.clone(), limits);
    let secured = tokio::select! {
        biased;
        secured = tls.secure(&tcp, stream, limits.header_timeout) => secured,
        _ = &mut leave => return,
    };
    let (stream, security) = match secured {
        Ok(secured) => secured,
        Err(error) => {
            tracing::debug!(%peer, %error, "TLS handshake failed");
            return;
        }
    };
    let state = exchange.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let busy = exchange.begin();
        let mut request = request.map(|body| Upload::wrap(body, &exchange));
        request.extensions_mut().insert(ConnectInfo(peer));
        if let Some(security) = &security {
            request.extensions_mut().insert(security.clone());
        }
        let answer = exchange.clone().scope(routes.router().oneshot(request));
        async move {
            let answer = answer.await;
            answer.map(|response| response.map(|body| Download::new(body, busy)))
        }
    });
    let largest_head = limits.max_header_bytes.saturating_mul(HEAD_SLACK);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .half_close(true)
        .header_read_timeout(limits.idle_timeout)
        .max_buf_size(largest_head.max(8 * 1024))
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let served = async {
        tokio::select! {
            ended = connection.as_mut() => ended,
            others_wait = leave => {
                if others_wait.is_ok() {
                    state.hurry();
                }
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    let ended = tokio::select! {
        biased;
        () = state.abandoned(&tcp) => {
            tracing::debug!(%peer, "the client closed its side of the connection");
            return;
        }
        ended = served => ended,
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended");
    }
}

pub(super) fn report(ended: Result<(), JoinError>, metrics: &Metrics) {
    if let Err(error) = ended
        && !error.is_cancelled()
    {
        metrics.panicked("connection");
        tracing::error!(%error, "connection task failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_old_connections_so_many_leave_as_are_open() {
        let (mut slots, turn) = (Slots::default(), Duration::from_secs(10));
        let mut connections: Vec<_> = (0..5).map(|_| slots.take(5)).collect();
        let has_left = |leave: &mut oneshot::Receiver<()>| leave.try_recv().is_ok();
        slots.leave_older(Instant::now(), turn, 5);
        assert!(!connections.iter_mut().any(has_left), "none is old");
        // The oldest one has ended already.
        drop(connections.remove(0));
        slots.leave_older(Instant::now() + turn, turn, 2);
        let left: Vec<bool> = connections.iter_mut().map(has_left).collect();
        assert_eq!(left, [true, true, false, false], "the oldest two");
    }
}
