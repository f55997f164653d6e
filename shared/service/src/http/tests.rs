//! Tests of the listener over real sockets, with clients that misbehave.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Query;
use axum::routing::{get, post};
use axum::{Extension, Router};
use futures_util::StreamExt;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, timeout};

/// Declares two tests for each function: over TCP and over TLS.
macro_rules! over_both {
    ($($test:ident),+ $(,)?) => {
        mod over_tcp {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Over::Tcp).await;
            })+
        }

        mod over_tls {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Over::Tls).await;
            })+
        }
    };
}

mod crowd;
mod halves;
mod killed;
mod secured;
mod wire;

use super::auth::{Scope, Token, TokenSet};
use super::body::BodyLimits;
use super::tls::Tls;
use super::*;
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;
use crate::supervise::{Policy, Supervisor};
use wire::{Client, Identities, Over, Wire};

const SHORT: Duration = Duration::from_millis(50);

/// A limit that a well-behaved client must meet even on a busy machine.
const FAIR: Duration = Duration::from_millis(250);
const PATIENCE: Duration = Duration::from_secs(5);

/// SHA-256 of "abc".
const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

over_both! {
    whatever_goes_wrong_is_a_problem,
    large_heads_are_refused,
    a_huge_body_gets_its_answer_while_the_client_still_sends,
    a_refused_body_is_not_asked_for,
    slow_clients_are_let_go,
    an_idle_connection_is_closed_in_the_end,
    a_client_that_takes_no_data_is_let_go,
    connections_over_the_limit_wait_for_their_turn,
    open_requests_finish_and_idle_connections_close_on_shutdown,
    the_end_of_the_grace_cuts_open_requests_off,
    while_work_is_held_operators_are_answered_and_others_refused,
    routes_ask_for_a_token_with_their_scope,
    requests_are_counted_by_route_and_never_by_path,
}

struct Server {
    socket: Socket,
    client: Client,
    shutdown: Shutdown,
    metrics: Metrics,
    arrived: Arc<Notify>,
    go_on: Arc<Notify>,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Server {
    async fn start(
        limits: HttpLimits,
        tls: Tls,
        client: impl FnOnce(SocketAddr) -> Client,
    ) -> Self {
        let socket = Socket::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let shutdown = Shutdown::manual(PATIENCE);
        let metrics = Metrics::new(Registry::default(), "0", "test");
        let (arrived, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let of_client = |name: &str, scope| {
            let token = Token::without_secret(name, vec![scope]).unwrap();
            token.with_client_name(Some(name.parse().unwrap()))
        };
        let tokens = TokenSet::new(vec![
            Token::new("app", ABC, vec![Scope::Send]).unwrap(),
            of_client("orders.internal", Scope::Send),
            of_client("reports.internal", Scope::Read),
        ]);
        let of_rule = match tls.is_on() {
            true => tokens.clone(),
            false => TokenSet::default(),
        };
        let rule = CrossSite::new(&of_rule, Vec::new(), Vec::new());
        let supervisor = Supervisor::new(&shutdown);
        let (here, there) = (arrived.clone(), go_on.clone());
        let (end, waits) = (go_on.clone(), arrived.clone());
        let router = Router::new()
            .route(
                "/echo",
                post(async |body: Body| {
                    body::read_limited(body, 1000, &BodyLimits::new(PATIENCE)).await
                }),
            )
            .route(
                "/hurry",
                post(async |body: Body| {
                    body::read_limited(body, 1000, &BodyLimits::new(SHORT)).await
                }),
            )
            .route("/number", get(async |_: Query<[(String, u8); 1]>| "fine"))
            .route("/panic", get(panics))
            .route(
                "/pull",
                post(async move |body: Body| pull(body, &waits).await),
            )
            .route("/endless", get(async || Body::from_stream(endless())))
            .route(
                "/stream",
                get(async move || Body::from_stream(halves(end.clone()))),
            )
            .route(
                "/slow",
                get(async move || {
                    here.notify_one();
                    there.notified().await;
                    "done"
                }),
            )
            .route(
                "/send",
                get(async || "in").layer(tokens.require(Scope::Send)),
            )
            .route(
                "/deposit",
                post(async || "in").layer(tokens.require(Scope::Send)),
            )
            .route(
                "/read",
                get(async || "in").layer(tokens.require(Scope::Read)),
            )
            .layer(Extension(()))
            .merge(ops::router(
                supervisor.health(),
                Arc::new(ops::Hindrances::default),
                metrics.clone(),
                shutdown.clone(),
                ops::Errors::Open,
            ));
        let listener = socket.listener().await.unwrap();
        let (counts, until) = (metrics.clone(), shutdown.clone());
        let routes = Routes::new(router, limits, rule, &metrics, shutdown.draining());
        let serving = async move { serve(listener, routes, &tls, &counts, &until).await };
        Self {
            client: client(socket.address()),
            socket,
            shutdown,
            metrics,
            arrived,
            go_on,
            serving: tokio::spawn(serving),
        }
    }

    async fn connect(&self) -> Wire {
        self.client.connect().await.unwrap()
    }

    /// Sends raw bytes on a new connection and returns all bytes received until it is closed.
    async fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.unwrap();
        rest(&mut stream).await
    }

    async fn get(&self, path: &str) -> String {
        self.request("GET", path, "").await
    }

    async fn request(&self, method: &str, path: &str, more: &str) -> String {
        let text =
            format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{more}\r\n");
        self.raw(text.as_bytes()).await
    }
}

async fn panics() -> &'static str {
    panic!("on purpose")
}

/// Waits until its client has left.
async fn pull(body: Body, waits: &Notify) -> String {
    let body = body::read_limited(body, 1000, &BodyLimits::new(PATIENCE)).await;
    ends_with_client();
    if body.unwrap().is_empty() {
        waits.notify_one();
        pending().await
    }
    // The watch over the client begins.
    yield_now().await;
    "done".into()
}

fn endless() -> impl futures_util::Stream<Item = Result<Vec<u8>, std::convert::Infallible>> {
    futures_util::stream::repeat_with(|| Ok(vec![b'x'; 64 * 1024]))
}

/// Returns a stream that yields one half immediately, and the other after a notification.
fn halves(
    end: Arc<Notify>,
) -> impl futures_util::Stream<Item = Result<&'static str, std::convert::Infallible>> {
    let second = futures_util::stream::once(async move {
        end.notified().await;
        Ok("done")
    });
    futures_util::stream::iter([Ok("begun")]).chain(second)
}

async fn rest(stream: &mut Wire) -> String {
    let mut all = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut all)).await;
    read.expect("the server closes the connection").unwrap();
    String::from_utf8(all).unwrap()
}

/// Reads until the text has arrived.
async fn read_until(stream: &mut Wire, text: &str) -> String {
    let mut all = String::new();
    while !all.contains(text) {
        let mut buffer = [0; 4096];
        let read = timeout(PATIENCE, stream.read(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        assert!(read > 0, "closed after {all:?}");
        all.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    all
}

fn assert_problem(response: &str, status: u16, code: &str) {
    assert!(
        response.starts_with(&format!("HTTP/1.1 {status} ")),
        "{response}"
    );
    assert!(
        response.contains("content-type: application/problem+json"),
        "{response}"
    );
    assert!(
        response.contains(&format!(r#""code":"{code}""#)),
        "{response}"
    );
}

async fn whatever_goes_wrong_is_a_problem(over: Over) {
    let server = over.start(HttpLimits::default()).await;
    assert_problem(&server.get("/nowhere").await, 404, "unknown_route");
    let wrong = server.request("DELETE", "/echo", "").await;
    assert_problem(&wrong, 405, "method_not_allowed");
    assert!(wrong.contains("allow: POST"), "{wrong}");
    assert_problem(&server.get("/number?a=b").await, 422, "invalid");
    assert_problem(&server.get("/panic").await, 500, "internal");
    assert!(
        server.get("/healthz").await.starts_with("HTTP/1.1 200 "),
        "it goes on"
    );
}

async fn large_heads_are_refused(over: Over) {
    let server = over.start(HttpLimits::default()).await;
    let padding = format!("x-padding: {}\r\n", "y".repeat(17 * 1024));
    let response = server.request("GET", "/healthz", &padding).await;
    assert_problem(&response, 431, "header_too_large");
    let many = "x: y\r\n".repeat(101);
    let response = server.request("GET", "/healthz", &many).await;
    assert!(response.starts_with("HTTP/1.1 431 "), "{response}");
}

async fn a_huge_body_gets_its_answer_while_the_client_still_sends(over: Over) {
    let server = over.start(HttpLimits::default()).await;
    for framing in ["content-length: 1073741824", "transfer-encoding: chunked"] {
        let (mut read, mut write) = tokio::io::split(server.connect().await);
        let head = format!("POST /echo HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n");
        let chunked = framing.contains("chunked");
        let sender = tokio::spawn(async move {
            write.write_all(head.as_bytes()).await?;
            let piece = vec![b'x'; 0x10000];
            for _ in 0..192 {
                if chunked {
                    write.write_all(b"10000\r\n").await?;
                }
                write.write_all(&piece).await?;
                if chunked {
                    write.write_all(b"\r\n").await?;
                }
            }
            write.shutdown().await
        });
        // A client that reads only after it has sent everything must still find the answer.
        sender.await.unwrap().expect("the server takes the rest");
        let mut answer = String::new();
        read.read_to_string(&mut answer).await.unwrap();
        assert_problem(&answer, 413, "too_large");
    }
}

async fn a_refused_body_is_not_asked_for(over: Over) {
    let server = over.start(HttpLimits::default()).await;
    let mut stream = server.connect().await;
    let head =
        b"POST /echo HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 5000\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let answer = read_until(&mut stream, "}").await;
    assert_problem(&answer, 413, "too_large");
}

async fn slow_clients_are_let_go(over: Over) {
    // Long enough for a handshake on a busy machine.
    let limit = FAIR * 4;
    let limits = HttpLimits {
        header_timeout: limit,
        ..HttpLimits::default()
    };
    let server = over.start(limits).await;
    assert_eq!(server.raw(b"").await, "", "says nothing");
    assert_eq!(
        server.raw(b"GET / HTTP/1.1\r\nx-slow:").await,
        "",
        "half a head"
    );
    let slow = server
        .raw(b"POST /hurry HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc")
        .await;
    assert_problem(&slow, 408, "timeout");

    // An idle connection may live longer than a head; a second head may not.
    let mut stream = server.connect().await;
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    read_until(&mut stream, "}").await;
    let idle = timeout(limit + FAIR, stream.read_u8()).await;
    assert!(idle.is_err(), "still open while idle");
    stream.write_all(b"GET /h").await.unwrap();
    assert_eq!(rest(&mut stream).await, "");
}

async fn an_idle_connection_is_closed_in_the_end(over: Over) {
    let limits = HttpLimits {
        idle_timeout: FAIR,
        ..HttpLimits::default()
    };
    let server = over.start(limits).await;
    let mut stream = server.connect().await;
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    read_until(&mut stream, "}").await;
    assert_eq!(rest(&mut stream).await, "");
}

async fn a_client_that_takes_no_data_is_let_go(over: Over) {
    let limits = HttpLimits {
        write_timeout: SHORT,
        max_connections: 1,
        ..HttpLimits::default()
    };
    let server = over.start(limits).await;
    let mut greedy = server.connect().await;
    greedy
        .write_all(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    // The only slot is free again once the greedy client is gone.
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200 "));
}

async fn connections_over_the_limit_wait_for_their_turn(over: Over) {
    let limits = HttpLimits {
        max_connections: 1,
        ..HttpLimits::default()
    };
    let server = over.start(limits).await;
    let mut first = server.connect().await;
    first
        .write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    server.arrived.notified().await;
    let mut second = server.connect().await;
    second
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    assert!(timeout(SHORT, second.read_u8()).await.is_err());
    server.go_on.notify_one();
    assert!(rest(&mut first).await.ends_with("done"));
    assert!(
        rest(&mut second).await.starts_with("HTTP/1.1 200 "),
        "served after the first"
    );
}

async fn open_requests_finish_and_idle_connections_close_on_shutdown(over: Over) {
    let server = over.start(HttpLimits::default()).await;
    let mut idle = server.connect().await;
    let mut open = server.connect().await;
    open.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    server.arrived.notified().await;
    server.shutdown.begin();
    assert_eq!(rest(&mut idle).await, "");
    assert!(TcpStream::connect(server.socket.address()).await.is_err());
    server.go_on.notify_one();
    assert!(rest(&mut open).await.ends_with("done"));
    server.serving.await.unwrap().unwrap();
}

async fn the_end_of_the_grace_cuts_open_requests_off(over: Over) {
    let server = over.start(HttpLimits::default()).await;
    let mut open = server.connect().await;
    open.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    server.arrived.notified().await;
    server.shutdown.end();
    assert_eq!(rest(&mut open).await, "");
    server.serving.await.unwrap().unwrap();
}

async fn while_work_is_held_operators_are_answered_and_others_refused(over: Over) {
    let server = over.start(HttpLimits::default()).await;
    let hold = server.shutdown.hold();
    assert!(server.get("/readyz").await.starts_with("HTTP/1.1 200 "));
    server.shutdown.begin();
    let ready = server.get("/readyz").await;
    assert!(
        ready.starts_with("HTTP/1.1 503 ") && ready.contains("draining"),
        "{ready}"
    );
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200 "));
    assert_problem(&server.get("/send").await, 503, "unavailable");
    drop(hold);
    server.serving.await.unwrap().unwrap();
}

async fn routes_ask_for_a_token_with_their_scope(over: Over) {
    let server = over.start(HttpLimits::default()).await;
    let with = |token: &str| format!("authorization: Bearer {token}\r\n");
    let refused = server.get("/send").await;
    assert_problem(&refused, 401, "unauthorized");
    assert!(refused.contains("www-authenticate: Bearer"), "{refused}");
    assert_problem(
        &server.request("GET", "/send", &with("abd")).await,
        401,
        "unauthorized",
    );
    assert_problem(
        &server.request("GET", "/read", &with("abc")).await,
        403,
        "forbidden",
    );
    assert!(
        server
            .request("GET", "/send", &with("abc"))
            .await
            .ends_with("in")
    );
}

#[tokio::test]
async fn a_page_of_another_site_changes_nothing_and_a_rebound_name_reads_nothing() {
    let server = Over::Tcp.start(HttpLimits::default()).await;
    let foreign = "sec-fetch-site: cross-site\r\ncontent-length: 1\r\n";
    let post = |more: &str| {
        format!("POST /echo HTTP/1.1\r\nconnection: close\r\nhost: localhost\r\n{more}\r\nx")
    };
    let refused = server.raw(post(foreign).as_bytes()).await;
    assert_problem(&refused, 403, "cross_site");
    let passed = server.raw(post("content-length: 1\r\n").as_bytes()).await;
    assert!(passed.starts_with("HTTP/1.1 200 "), "{passed}");
    let get = |path: &str| {
        let head = "host: evil.example\r\nsec-fetch-site: same-origin\r\nconnection: close";
        format!("GET {path} HTTP/1.1\r\n{head}\r\n\r\n")
    };
    for path in ["/number?a=1", "/metrics", "/nowhere"] {
        let refused = server.raw(get(path).as_bytes()).await;
        assert_problem(&refused, 403, "host_not_allowed");
        assert!(!refused.contains("access-control"), "{refused}");
    }
    for path in ["/healthz", "/readyz"] {
        let passed = server.raw(get(path).as_bytes()).await;
        assert!(passed.starts_with("HTTP/1.1 200 "), "{passed}");
    }
    for answer in [refused, passed, server.get("/metrics").await] {
        assert!(
            answer.contains("x-content-type-options: nosniff"),
            "{answer}"
        );
    }
}

async fn requests_are_counted_by_route_and_never_by_path(over: Over) {
    let server = over.start(HttpLimits::default()).await;
    server.get("/healthz").await;
    server.get("/wp-admin").await;
    server.request("BREW", "/pot", "").await;
    let scrape = server.get("/metrics").await;
    assert!(
        scrape.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{scrape}"
    );
    let text = server.metrics.encode();
    for (route, method, status) in [
        ("/healthz", "GET", 200),
        ("none", "GET", 404),
        ("none", "other", 404),
        ("/metrics", "GET", 200),
    ] {
        let labels = format!(r#"route="{route}",method="{method}",status="{status}""#);
        assert!(
            text.contains(&format!("lisa_http_requests_total{{{labels}}} 1")),
            "{text}"
        );
    }
    assert!(!text.contains("wp-admin") && !text.contains("BREW"));
}
