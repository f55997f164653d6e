//! The accept loop and its connections, from the first byte to the drained end.
//!
//! Replaces `axum::serve`, which sets no timer and so keeps slow and idle connections for ever.

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
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::HttpLimits;
use super::cross_site::CrossSite;
use super::guard::Guard;
use super::stream::{Download, Exchange, Stream, Upload};
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;

/// Pause after an accept that failed for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// hyper's own bound on a head, as a multiple of ours: up to it, the answer is a problem.
const HEAD_SLACK: usize = 4;

/// Serves `router` on `listener` until the shutdown, then lets open requests finish within its grace.
///
/// Adds to the router: spans, request metrics, problems for unknown routes and methods, for panics, for what
/// `cross_site` refuses, and for every route but the operators' while draining. Its fallback, if it has one, is replaced.
/// The listener stays open while somebody has a [`crate::shutdown::Hold`].
///
/// # Errors
/// The listener itself broke. Troubles of single connections are not errors.
///
/// # Cancel safety
/// Dropping the future closes all connections.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: HttpLimits,
    cross_site: CrossSite,
    metrics: &Metrics,
    shutdown: &Shutdown,
) -> Result<(), io::Error> {
    let guard = Guard {
        metrics: metrics.clone(),
        draining: shutdown.draining().clone(),
        max_header_bytes: limits.max_header_bytes,
        cross_site,
    };
    let router = guard.wrap(router);
    let closing = CancellationToken::new();
    let permits = Arc::new(Semaphore::new(limits.max_connections));
    let mut connections = JoinSet::new();
    let mut short_of_resources = false;
    let mut quiet = pin!(shutdown.quiet());
    loop {
        // The permit comes first: beyond the limit, clients wait in the kernel's queue.
        let accepted = async {
            let permit = permits.clone().acquire_owned().await;
            let permit = permit.expect("the semaphore is never closed");
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = &mut quiet => break,
            accepted = accepted => accepted,
            Some(ended) = connections.join_next() => {
                report(ended, metrics);
                continue;
            }
        };
        match accepted {
            Ok((tcp, peer)) => {
                short_of_resources = false;
                let connection = connection(tcp, peer, router.clone(), limits, closing.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            Err(error) if of_one_connection(&error) => {}
            Err(error) if is_shortage(&error) => {
                if !short_of_resources {
                    tracing::warn!(%error, "cannot accept connections: waiting");
                    short_of_resources = true;
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
    drop(listener);
    closing.cancel();
    loop {
        tokio::select! {
            ended = connections.join_next() => match ended {
                Some(ended) => report(ended, metrics),
                None => return Ok(()),
            },
            () = shutdown.now().cancelled() => {
                tracing::warn!(connections = connections.len(), "grace ended: closing connections");
                return Ok(());
            }
        }
    }
}

async fn connection(
    tcp: TcpStream,
    peer: SocketAddr,
    router: Router,
    limits: HttpLimits,
    closing: CancellationToken,
) {
    if let Err(error) = tcp.set_nodelay(true) {
        tracing::debug!(%peer, %error, "connection lost before its first request");
        return;
    }
    let exchange = Arc::new(Exchange::default());
    let stream = Stream::new(tcp, exchange.clone(), limits);
    let service = service_fn(move |request: Request<Incoming>| {
        let busy = exchange.begin();
        let mut request = request.map(|body| Upload::wrap(body, &exchange));
        request.extensions_mut().insert(ConnectInfo(peer));
        let answer = router.clone().oneshot(request);
        async move {
            let answer = answer.await;
            answer.map(|response| response.map(|body| Download::new(body, busy)))
        }
    });
    let largest_head = limits.max_header_bytes.saturating_mul(HEAD_SLACK);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle_timeout)
        .max_buf_size(largest_head.max(8 * 1024))
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended");
    }
}

fn report(ended: Result<(), JoinError>, metrics: &Metrics) {
    if let Err(error) = ended {
        metrics.panicked("connection");
        tracing::error!(%error, "a connection's task failed");
    }
}

/// Errors of a client that gave up between its SYN and our accept.
fn of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(
        error.kind(),
        K::ConnectionAborted | K::ConnectionReset | K::ConnectionRefused | K::Interrupted
    )
}

/// Whether the process or the host ran out of descriptors or memory: ENFILE, EMFILE, ENOBUFS, ENOMEM.
fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24 | 105 | 12))
}
