//! The accept loop of a listener for HTTP/2, which gRPC requires.
//!
//! Serves a few clients that call often, not browsers: without limits on the speed of a client, but with few connections. At the
//! limit, a new connection closes one that has no admitted call, so that strangers close only each other's. If each has had one, it
//! closes the oldest of the address that has the most.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use futures_util::FutureExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lisa_core::task;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::accept::Acceptor;
use super::client::{Client, network};
use super::serve::{Routes, report};
use super::tls::Tls;
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;

/// The number of connections. A client uses one for all its calls.
const CONNECTIONS: usize = 32;
/// The number of concurrent calls of a connection, including streams. A client queues further ones.
const CALLS: u32 = 512;
/// The maximum size of the headers of a call, in bytes.
const MAX_HEADER_BYTES: u32 = 4 * 1024;
/// The most bytes of requests that are received before they are read, of one call and of a connection.
const WINDOWS: (u32, u32) = (64 * 1024, 256 * 1024);
/// The time without any traffic after which a client must answer a ping.
const PING_AFTER: Duration = Duration::from_secs(20);
/// The time that it has to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// An open connection.
struct Open {
    address: IpAddr,
    is_admitted: Admission,
    task: AbortHandle,
}

/// True once a call of the connection was admitted.
type Admission = Arc<AtomicBool>;

tokio::task_local! {
    /// That of the connection whose call the current task answers.
    static ADMISSION: Admission;
}

/// Records that the call that the current task answers may be made. Its connection is not closed for that of a stranger.
pub fn admit_connection() {
    // A test may call a handler without a connection.
    let _ = ADMISSION.try_with(|admission| admission.store(true, Ordering::Relaxed));
}

/// Serves the routes on `listener` until the shutdown, then lets calls finish within the grace period.
///
/// # Errors
/// The listener itself failed. Failures of single connections are not errors.
///
/// # Cancel safety
/// Dropping the future closes all connections.
pub async fn serve_http2(
    listener: TcpListener,
    routes: Routes,
    tls: &Tls,
    metrics: &Metrics,
    shutdown: &Shutdown,
) -> Result<(), io::Error> {
    let mut connections = JoinSet::new();
    let mut open: VecDeque<Open> = VecDeque::new();
    let mut acceptor = Acceptor::new(listener);
    loop {
        let (tcp, peer) = tokio::select! {
            biased;
            () = shutdown.draining().cancelled() => break,
            Some(ended) = connections.join_next() => {
                report(ended, metrics);
                continue;
            }
            accepted = acceptor.accept() => accepted?,
        };
        open.retain(|connection| !connection.task.is_finished());
        if open.len() >= CONNECTIONS {
            replace(&mut open);
        }
        let draining = shutdown.draining().clone();
        let (routes, tls, is_admitted) = (routes.clone(), tls.clone(), Arc::default());
        let admitted = Arc::clone(&is_admitted);
        let connection = connection(tcp, peer, admitted, routes, tls, metrics.clone(), draining);
        open.push_back(Open {
            address: network(peer.ip()),
            is_admitted,
            task: connections.spawn(connection),
        });
    }
    drop(acceptor);
    let ended = async {
        while let Some(ended) = connections.join_next().await {
            report(ended, metrics);
        }
    };
    shutdown.now().run_until_cancelled(ended).await;
    Ok(())
}

/// Closes the oldest connection of the address that has the most: of those without an admitted call, if there are any.
fn replace(open: &mut VecDeque<Open>) {
    let has_strangers = open.iter().any(Open::is_stranger);
    let may_close = |connection: &Open| connection.is_stranger() || !has_strangers;
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for connection in open.iter().filter(|connection| may_close(connection)) {
        *counts.entry(connection.address).or_default() += 1;
    }
    // Of several such addresses, that of the oldest connection.
    let most = counts.values().max().copied();
    let oldest = open.iter().position(|connection| {
        may_close(connection) && counts.get(&connection.address).copied() == most
    });
    if let Some(connection) = oldest.and_then(|index| open.remove(index)) {
        connection.task.abort();
    }
}

impl Open {
    fn is_stranger(&self) -> bool {
        !self.is_admitted.load(Ordering::Relaxed)
    }
}

async fn connection(
    tcp: TcpStream,
    peer: SocketAddr,
    is_admitted: Admission,
    routes: Routes,
    tls: Tls,
    metrics: Metrics,
    draining: CancellationToken,
) {
    if let Err(error) = tcp.set_nodelay(true) {
        tracing::debug!(%peer, %error, "connection lost before its first request");
        return;
    }
    let stream = match tls.secure_http2(tcp, ANSWER_WITHIN).await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%peer, %error, "TLS handshake failed");
            return;
        }
    };
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        let request = request.map(Body::new);
        let answer = Client::of(&request).scope(routes.router().oneshot(request));
        ADMISSION.scope(is_admitted.clone(), answer)
    });
    let closed = CancellationToken::new();
    let _closes = closed.clone().drop_guard();
    let connection = http2::Builder::new(Calls { metrics, closed })
        .timer(TokioTimer::new())
        .max_concurrent_streams(CALLS)
        .max_header_list_size(MAX_HEADER_BYTES)
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(ANSWER_WITHIN)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = draining.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended");
    }
}

/// Runs the calls of a connection, which end with it.
#[derive(Clone)]
struct Calls {
    metrics: Metrics,
    closed: CancellationToken,
}

impl<F: Future + Send + 'static> Executor<F> for Calls {
    fn execute(&self, call: F) {
        let Self { metrics, closed } = self.clone();
        task::detached(async move {
            let call = closed.run_until_cancelled(AssertUnwindSafe(call).catch_unwind());
            if let Some(Err(_)) = call.await {
                metrics.panicked("request");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use prometheus_client::registry::Registry;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpSocket;

    use super::*;

    /// Reads what a connection receives, to its end.
    async fn is_closed(mut connection: TcpStream) -> bool {
        let mut received = Vec::new();
        let end = connection.read_to_end(&mut received);
        tokio::time::timeout(Duration::from_secs(20), end)
            .await
            .is_ok()
    }

    #[tokio::test]
    async fn a_new_connection_replaces_the_oldest() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = Shutdown::manual(Duration::from_secs(5));
        let metrics = Metrics::new(Registry::default(), "0", "test");
        let router = Router::new().route("/", get(async || "here"));
        let router = Routes::unguarded(router);
        let server = shutdown.clone();
        let server = task::owned(async move {
            serve_http2(listener, router, &Tls::default(), &metrics, &server).await
        });
        let mut connections = Vec::new();
        for _ in 0..=CONNECTIONS {
            connections.push(TcpStream::connect(address).await.unwrap());
        }
        let newest = connections.pop().unwrap();
        let second = connections.remove(1);
        assert!(is_closed(connections.remove(0)).await, "the oldest");
        for (name, open) in [("the second", &second), ("the newest", &newest)] {
            let mut byte = [0; 1024];
            let read = open.try_read(&mut byte);
            assert!(!matches!(read, Ok(0)), "{name} is closed: {read:?}");
        }
        shutdown.end();
        server.await.unwrap().unwrap();
        assert!(is_closed(newest).await);
    }

    #[tokio::test]
    async fn a_client_with_many_connections_replaces_its_own_only() {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shutdown = Shutdown::manual(Duration::from_secs(5));
        let metrics = Metrics::new(Registry::default(), "0", "test");
        let server = shutdown.clone();
        let routes = Routes::unguarded(Router::new());
        let _server = task::owned(async move {
            serve_http2(listener, routes, &Tls::default(), &metrics, &server).await
        });
        let connect = async |from: &str| {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
            let to = SocketAddr::from(([127, 0, 0, 1], port));
            socket.connect(to).await.unwrap()
        };
        let regular = connect("127.0.0.2").await;
        let mut many = Vec::new();
        for _ in 0..2 * CONNECTIONS {
            many.push(connect("127.0.0.1").await);
        }
        assert!(is_closed(many.remove(0)).await, "their oldest");
        let read = regular.try_read(&mut [0; 1024]);
        assert!(!matches!(read, Ok(0)), "{read:?}");
    }
}
