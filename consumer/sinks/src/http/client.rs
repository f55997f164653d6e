//! The HTTP client of webhooks: a pool of connections, a time limit, and two rules of its own.
//!
//! A server may close an idle connection just when the next request is sent. Such a request is repeated once, immediately,
//! on a new connection. And a server may send only a few informational responses (1xx).

use lisa_core::causes::with_causes;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::http::Extensions;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::{HeaderMap, Method, Request, Response, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::legacy::{Client as Pool, Error as PoolError};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::timeout;
use tower::Service;

use super::address::{AddressError, Resolver};

/// The time limit for a connection, within half of the timeout of the request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after which the system probes a silent connection.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// The number of informational responses to one request that are skipped.
const MAX_INFORMATIONAL: usize = 16;

/// The reason why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// No address, no connection or no TLS session.
    Unreachable(String),
    /// No answer within the time limit.
    Late(String),
    /// The connection ended, or the server sent something other than an HTTP response.
    Broken(String),
}

/// A client for one URL. Clones share their connections.
#[derive(Clone)]
pub(super) struct Client {
    uri: Uri,
    timeout: Duration,
    pooled: Pool<Connector, Full<Bytes>>,
    /// Keeps no connection.
    fresh: Pool<Connector, Full<Bytes>>,
}

impl Client {
    /// Creates a client. Does not connect yet.
    ///
    /// # Errors
    /// Returns the reason if the system has no root certificates for an `https` URL.
    pub(super) fn new(uri: Uri, resolver: Resolver, timeout: Duration) -> Result<Self, String> {
        // A small container without root certificates can still use http.
        let tls = match uri.scheme_str() {
            Some("https") => lisa_core::tls::client_config(None, None)?,
            _ => lisa_core::tls::without_authorities()?,
        };
        let mut tcp = HttpConnector::new_with_resolver(resolver);
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(KEEPALIVE));
        let connector = Connector {
            inner: HttpsConnectorBuilder::new()
                .with_tls_config(Arc::unwrap_or_clone(tls))
                .https_or_http()
                .enable_http1()
                .wrap_connector(tcp),
            // A host that drops packets is unavailable, not slow.
            limit: CONNECT_TIMEOUT.min(timeout / 2),
        };
        let mut builder = Pool::builder(TokioExecutor::new());
        let builder = builder.pool_timer(TokioTimer::new());
        Ok(Self {
            uri,
            timeout,
            pooled: builder.build(connector.clone()),
            fresh: builder.pool_max_idle_per_host(0).build(connector),
        })
    }

    /// Posts, and returns the head of the answer.
    ///
    /// # Cancel safety
    /// Dropping the future closes its connection. The server may still have handled the request.
    pub(super) async fn post(
        &self,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, Failure> {
        let tried = async {
            match self.once(&self.pooled, headers.clone(), body.clone()).await {
                Err((_, true)) => self.once(&self.fresh, headers, body).await,
                tried => tried,
            }
        };
        match timeout(self.timeout, tried).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err((failure, _))) => Err(failure),
            Err(_) => {
                let limit = self.timeout;
                Err(Failure::Late(format!("no answer within {limit:?}")))
            }
        }
    }

    /// Sends the request once. On failure, also returns true if a connection ended that had served another request.
    async fn once(
        &self,
        pool: &Pool<Connector, Full<Bytes>>,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, (Failure, bool)> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = headers;
        let enough = Arc::new(Notify::new());
        let (count, over) = (AtomicUsize::new(0), enough.clone());
        hyper::ext::on_informational(&mut request, move |_| {
            if count.fetch_add(1, Ordering::Relaxed) == MAX_INFORMATIONAL {
                over.notify_one();
            }
        });
        let answered = tokio::select! {
            answered = pool.request(request) => answered,
            () = enough.notified() => {
                let text = format!("the server sent more than {MAX_INFORMATIONAL} informational answers");
                return Err((Failure::Broken(text), false));
            }
        };
        match answered {
            Ok(response) => {
                if let Some(served) = response.extensions().get::<Served>() {
                    served.0.store(true, Ordering::Relaxed);
                }
                Ok(response)
            }
            Err(error) => Err((explain(&error), has_ended(&error) && had_served(&error))),
        }
    }
}

fn explain(error: &PoolError) -> Failure {
    let address = causes(error).find_map(|cause| cause.downcast_ref::<AddressError>());
    let text = address.map_or_else(|| with_causes(error), ToString::to_string);
    match error.is_connect() {
        true => Failure::Unreachable(text),
        false => Failure::Broken(text),
    }
}

/// Returns true if the connection ended before the answer.
fn has_ended(error: &PoolError) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    let is_end = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<hyper::Error>()
            .is_some_and(hyper::Error::is_incomplete_message)
            || cause.downcast_ref::<io::Error>().is_some_and(|error| {
                matches!(
                    error.kind(),
                    BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof
                )
            })
    };
    !error.is_connect() && causes(error).any(is_end)
}

fn had_served(error: &PoolError) -> bool {
    let mut extensions = Extensions::new();
    if let Some(connected) = error.connect_info() {
        connected.get_extras(&mut extensions);
    }
    let served = extensions.get::<Served>();
    served.is_some_and(|served| served.0.load(Ordering::Relaxed))
}

fn causes<'e>(
    error: &'e (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'e (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// True once a connection has carried an answer.
#[derive(Clone, Debug, Default)]
struct Served(Arc<AtomicBool>);

/// Opens connections within a time limit.
#[derive(Clone)]
struct Connector {
    inner: HttpsConnector<HttpConnector<Resolver>>,
    limit: Duration,
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Stream, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, limit) = (self.inner.call(uri), self.limit);
        Box::pin(async move {
            let connected = timeout(limit, connecting).await;
            let inner = connected.map_err(|_| format!("no connection within {limit:?}"))??;
            Ok(Stream {
                inner,
                served: Served::default(),
            })
        })
    }
}

/// A connection that knows whether it has carried an answer.
struct Stream {
    inner: MaybeHttpsStream<TokioIo<TcpStream>>,
    served: Served,
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.inner.connected().extra(self.served.clone())
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }
}
