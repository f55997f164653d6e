//! Tests of the whole sink against real sockets.

mod addresses;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;
use crate::tests::{context, delivery};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD/Xh8WbQkMCA=";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

struct Request {
    connection: usize,
    line: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// The behavior of a server after its fixed answer.
#[derive(Clone, Copy)]
enum Then {
    Next,
    Stall,
    /// Repeats these bytes as long as the client reads them.
    Endless(&'static [u8]),
}

/// A server that returns the same answer to each request.
struct Server {
    address: SocketAddr,
    requests: mpsc::UnboundedReceiver<Request>,
    /// The number of bytes sent after the fixed answers.
    written: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(answer: &'static [u8], then: Then) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = mpsc::unbounded_channel();
        let written = Arc::new(AtomicUsize::new(0));
        let count = written.clone();
        let task = tokio::spawn(async move {
            for connection in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                let (sender, count) = (sender.clone(), count.clone());
                tokio::spawn(serve(stream, connection, answer, then, sender, count));
            }
        });
        Self {
            address,
            requests,
            written,
            task,
        }
    }

    fn url(&self) -> String {
        format!("http://{}/hook?token=t0p", self.address)
    }

    fn request(&mut self) -> Request {
        self.requests.try_recv().expect("a request")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut stream: TcpStream,
    connection: usize,
    answer: &'static [u8],
    then: Then,
    requests: mpsc::UnboundedSender<Request>,
    written: Arc<AtomicUsize>,
) {
    while let Some(request) = read_request(&mut stream, connection).await {
        let _ = requests.send(request);
        let mut alive = stream.write_all(answer).await.is_ok();
        match then {
            Then::Next => {}
            Then::Stall => std::future::pending().await,
            Then::Endless(piece) => {
                let piece = piece.repeat(64 * 1024 / piece.len());
                while alive {
                    alive = stream.write_all(&piece).await.is_ok();
                    written.fetch_add(piece.len(), Ordering::Relaxed);
                }
            }
        }
    }
}

async fn read_request(stream: &mut TcpStream, connection: usize) -> Option<Request> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap().to_owned();
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let mut body = bytes.split_off(head_end);
    let length: usize = headers["content-length"].parse().unwrap();
    while body.len() < length {
        stream.read_buf(&mut body).await.ok()?;
    }
    Some(Request {
        connection,
        line,
        headers,
        body,
    })
}

fn settings(url: impl Into<String>) -> HttpSinkSettings {
    HttpSinkSettings {
        url: url.into().into(),
        secrets: vec![],
        headers: vec![],
        timeout: Duration::from_secs(20),
        allow_private: true,
        retry_after: RetryAfter::Retry,
        target: lisa_service::targets::TargetSettings::new(lisa_service::targets::Away::Retry),
        complete_url: None,
        max_later: 1000,
    }
}

async fn send(settings: HttpSinkSettings, payload: impl Into<Bytes>) -> Outcome {
    let sink = HttpSink::new(settings).unwrap();
    sink.handle(delivery(payload), context()).await
}

/// Sends a delivery and returns the error of a retry that follows the topic's policy.
async fn error_of_retry(settings: HttpSinkSettings) -> String {
    match send(settings, "x").await {
        Outcome::Retry { after: None, error } => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_delivery_arrives_with_its_metadata_and_is_acked() {
    let mut server = Server::start(OK, Then::Next).await;
    let sink = HttpSink::new(settings(server.url())).unwrap();
    let mut delivery = delivery(&b"\xff\0body"[..]);
    for (name, value) in [
        ("Content-Type", "application/json"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
        ("tracestate", "a=b"),
        ("Authorization", "Bearer x"),
        ("Host", "elsewhere"),
        ("webhook-id", "forged"),
        ("lisa-callback-id", "order-6"),
    ] {
        let headers = Arc::make_mut(&mut delivery.headers);
        headers.insert_any(name, value).unwrap();
    }
    assert_eq!(sink.handle(delivery, context()).await, Outcome::Ack);
    let request = server.request();
    assert_eq!(request.line, "POST /hook?token=t0p HTTP/1.1");
    assert_eq!(request.body, b"\xff\0body");
    let expected = [
        ("webhook-id", "order-7"),
        ("webhook-timestamp", "1700000000"),
        ("lisa-topic", "orders"),
        ("lisa-group", "billing"),
        ("lisa-attempt", "2"),
        ("lisa-max-attempts", "16"),
        ("lisa-due-at", "2023-11-14T22:13:20.000Z"),
        ("lisa-fence", "1782579200001048576"),
        ("content-type", "application/json"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
        ("tracestate", "a=b"),
        ("lisa-header-authorization", "Bearer x"),
        ("lisa-header-host", "elsewhere"),
        ("lisa-header-webhook-id", "forged"),
        ("lisa-callback-id", "order-6"),
    ];
    for (name, value) in expected {
        assert_eq!(
            request.headers.get(name).map(String::as_str),
            Some(value),
            "{name}"
        );
    }
    assert_eq!(request.headers["host"], server.address.to_string());
    assert!(!request.headers.contains_key("authorization"));
    assert!(!request.headers.contains_key("webhook-signature"));
}

#[tokio::test]
async fn own_headers_are_sent_and_never_replace_those_of_the_sink_or_the_message() {
    let mut server = Server::start(OK, Then::Next).await;
    let with_headers = HttpSinkSettings {
        headers: vec![
            ("X-Tenant".to_owned(), "hunter2".into()),
            ("authorization".to_owned(), "Bearer hunter2".into()),
            ("content-type".to_owned(), "text/plain".into()),
            ("traceparent".to_owned(), "own".into()),
        ],
        ..settings(server.url())
    };
    assert!(!format!("{with_headers:?}").contains("hunter2"));
    let sink = HttpSink::new(with_headers).unwrap();
    assert!(!format!("{sink:?} {:?}", sink.own_headers).contains("hunter2"));
    let mut sent = delivery("x");
    assert_eq!(sink.handle(sent.clone(), context()).await, Outcome::Ack);
    let headers = server.request().headers;
    assert_eq!(headers["x-tenant"], "hunter2");
    assert_eq!(headers["authorization"], "Bearer hunter2");
    assert_eq!(headers["content-type"], "text/plain");
    assert_eq!(headers["traceparent"], "own");

    let of_message = Arc::make_mut(&mut sent.headers);
    of_message.insert("content-type", "text/html").unwrap();
    of_message.insert("traceparent", "theirs").unwrap();
    of_message.insert("x-tenant", "theirs").unwrap();
    assert_eq!(sink.handle(sent, context()).await, Outcome::Ack);
    let headers = server.request().headers;
    assert_eq!(headers["content-type"], "text/html");
    assert_eq!(headers["traceparent"], "theirs");
    assert_eq!(headers["x-tenant"], "hunter2");
    assert_eq!(headers["lisa-header-x-tenant"], "theirs");
}

#[test]
fn headers_that_cannot_be_set_are_refused_without_their_values() {
    let refused = |headers: Vec<(&str, &str)>| {
        let headers = headers.into_iter();
        let settings = HttpSinkSettings {
            headers: headers
                .map(|(name, value)| (name.to_owned(), value.into()))
                .collect(),
            ..settings("http://h/")
        };
        let error = HttpSink::new(settings).expect_err("refused").to_string();
        assert!(!error.contains("hunter2"), "{error}");
        error
    };
    assert_eq!(
        refused(vec![("Webhook-Id", "hunter2")]),
        "http sink header \"Webhook-Id\": set by the sink itself"
    );
    assert!(refused(vec![("x", "hunter2"), ("X", "hunter2")]).ends_with("set twice"));
    refused(vec![("x", "hunter2\r\nhost: elsewhere")]);
    let names: Vec<String> = (0..=MAX_OWN_HEADERS).map(|n| format!("x-{n}")).collect();
    let many = names.iter().map(|name| (name.as_str(), "hunter2"));
    assert!(refused(many.collect()).ends_with("more than 32 headers"));
}

#[tokio::test]
async fn an_empty_payload_is_a_post_of_length_zero() {
    let mut server = Server::start(OK, Then::Next).await;
    assert_eq!(send(settings(server.url()), "").await, Outcome::Ack);
    let request = server.request();
    assert_eq!(request.headers["content-length"], "0");
    assert_eq!(request.headers["content-type"], "application/octet-stream");
}

#[tokio::test]
async fn receivers_verify_with_either_of_two_secrets() {
    let mut server = Server::start(OK, Then::Next).await;
    let secrets = [SECRET, OTHER].map(|secret| secret.parse().unwrap());
    let sink = HttpSink::new(HttpSinkSettings {
        secrets: secrets.into(),
        ..settings(server.url())
    });
    let mut delivery = delivery("{\"total\":12}");
    // The reference library refuses old timestamps, so this one is sent now.
    delivery.delivered_at = std::time::SystemTime::now().into();
    let outcome = sink.unwrap().handle(delivery, context()).await;
    assert_eq!(outcome, Outcome::Ack);
    let request = server.request();
    let signatures = &request.headers["webhook-signature"];
    assert_eq!(signatures.split(' ').count(), 2);
    let headers: HeaderMap = request
        .headers
        .iter()
        .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()))
        .collect();
    for secret in [SECRET, OTHER] {
        let receiver = standardwebhooks::Webhook::new(secret).unwrap();
        receiver.verify(&request.body, &headers).expect("verified");
    }
}

#[tokio::test]
async fn connections_are_kept_open_also_after_errors() {
    let mut server = Server::start(
        b"HTTP/1.1 500 Oh\r\ncontent-length: 4\r\n\r\nboom",
        Then::Next,
    )
    .await;
    let sink = HttpSink::new(settings(server.url())).unwrap();
    for _ in 0..3 {
        let outcome = sink.handle(delivery("x"), context()).await;
        let expected = Outcome::retry("the server answered 500 Internal Server Error: boom");
        assert_eq!(outcome, expected);
        assert_eq!(server.request().connection, 0);
    }
}

#[tokio::test]
async fn a_busy_server_gets_the_time_it_asks_for() {
    let server = Server::start(
        b"HTTP/1.1 503 Busy\r\nretry-after: 17\r\ncontent-length: 0\r\n\r\n",
        Then::Next,
    )
    .await;
    assert_eq!(
        send(settings(server.url()), "x").await,
        Outcome::retry_after(
            Duration::from_secs(17),
            "the server answered 503 Service Unavailable"
        )
    );
}

#[tokio::test]
async fn what_a_busy_server_asks_for_can_be_a_defer() {
    let answer = b"HTTP/1.1 429 Slow\r\nretry-after: 17\r\ncontent-length: 0\r\n\r\n";
    let server = Server::start(answer, Then::Next).await;
    let defers = HttpSinkSettings {
        retry_after: RetryAfter::Defer,
        ..settings(server.url())
    };
    let wait = Duration::from_secs(17);
    assert_eq!(send(defers, "x").await, Outcome::defer(wait));
}

#[tokio::test]
async fn only_a_late_delivery_is_called_late() {
    let mut server = Server::start(OK, Then::Next).await;
    let sink = HttpSink::new(settings(server.url())).unwrap();
    for (late, header) in [(true, Some("true")), (false, None)] {
        let delivery = Delivery {
            late,
            ..delivery("x")
        };
        assert_eq!(sink.handle(delivery, context()).await, Outcome::Ack);
        let headers = server.request().headers;
        assert_eq!(headers.get("lisa-late").map(String::as_str), header);
    }
}

#[tokio::test]
async fn a_server_that_is_gone_for_good_pauses_the_group() {
    let answer = b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n";
    let server = Server::start(answer, Then::Next).await;
    let outcome = send(settings(server.url()), "x").await;
    assert_eq!(outcome, Outcome::pause("the server answered 410 Gone"));
}

#[tokio::test]
async fn a_server_rejects_a_message_with_a_header() {
    let answer = b"HTTP/1.1 422 No\r\nlisa-outcome: reject\r\ncontent-length: 0\r\n\r\n";
    let server = Server::start(answer, Then::Next).await;
    let outcome = send(settings(server.url()), "x").await;
    assert_eq!(
        outcome,
        Outcome::reject("the server answered 422 Unprocessable Entity")
    );
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let mut target = Server::start(OK, Then::Next).await;
    let location = format!(
        "HTTP/1.1 307 Go\r\nlocation: http://{}/\r\ncontent-length: 0\r\n\r\n",
        target.address
    );
    let server = Server::start(location.leak().as_bytes(), Then::Next).await;
    let error = error_of_retry(settings(server.url())).await;
    assert_eq!(
        error,
        "the server answered 307 Temporary Redirect and redirects are not followed"
    );
    assert!(target.requests.try_recv().is_err());
}

#[tokio::test]
async fn an_endless_body_is_cut() {
    let answer = b"HTTP/1.1 500 Oh\r\n\r\n";
    let server = Server::start(answer, Then::Endless(b"x")).await;
    let error = error_of_retry(settings(server.url())).await;
    assert!(error.ends_with("xxx") && error.len() < 400, "{error}");
    let answer = b"HTTP/1.1 200 OK\r\n\r\n";
    let server = Server::start(answer, Then::Endless(b"x")).await;
    assert_eq!(send(settings(server.url()), "x").await, Outcome::Ack);
}

#[tokio::test]
async fn a_body_that_never_comes_does_not_change_the_answer() {
    let stalled = |head| Server::start(head, Then::Stall);
    let quick = |server: &Server| HttpSinkSettings {
        timeout: Duration::from_millis(300),
        ..settings(server.url())
    };
    let server = stalled(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n").await;
    assert_eq!(send(quick(&server), "x").await, Outcome::Ack);
    let server = stalled(b"HTTP/1.1 400 No\r\ncontent-length: 9\r\n\r\nbeca").await;
    let error = error_of_retry(quick(&server)).await;
    assert_eq!(error, "the server answered 400 Bad Request: beca");
}

#[tokio::test]
async fn no_answer_in_time_is_a_retry() {
    let server = Server::start(b"HTTP/1.1 200", Then::Stall).await;
    let error = error_of_retry(HttpSinkSettings {
        timeout: Duration::from_millis(200),
        ..settings(server.url())
    });
    assert_eq!(error.await, "no answer within 200ms");
}

#[tokio::test]
async fn an_unavailable_server_is_a_retry_that_hides_the_url() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = error_of_retry(settings(format!("http://{address}/?token=t0p"))).await;
    assert!(error.contains("Connection refused"), "{error}");
    assert!(!error.contains("t0p"), "{error}");
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_is_a_retry() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let sink = match HttpSink::new(settings(url)) {
        Ok(sink) => sink,
        // Without root certificates, this machine cannot run the rest of the test.
        Err(SinkError::Client(_)) => return,
        Err(other) => panic!("{other}"),
    };
    let plain = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_u8().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 No\r\n\r\n").await.unwrap();
        stream
    };
    let (outcome, _stream) = tokio::join!(sink.handle(delivery("x"), context()), plain);
    let Outcome::Retry { after: None, error } = outcome else {
        panic!("{outcome:?}");
    };
    assert!(error.contains("InvalidContentType"), "{error}");
}

#[tokio::test]
async fn a_head_without_end_is_cut_off() {
    for (what, answer, piece) in [
        ("a name", &b"HTTP/1.1 200 OK\r\n"[..], &b"x"[..]),
        ("a value", b"HTTP/1.1 200 OK\r\nx: ", b"x"),
        ("lines", b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
        ("a reason", b"HTTP/1.1 200 ", b"x"),
    ] {
        let server = Server::start(answer, Then::Endless(piece)).await;
        let error = error_of_retry(settings(server.url())).await;
        assert!(!error.contains("no answer within"), "{what}: {error}");
        // The bytes in the socket buffers count as sent, too.
        let written = server.written.load(Ordering::Relaxed);
        assert!(written < 16 * 1024 * 1024, "{what}: {written} bytes");
    }
}

#[test]
fn urls_that_cannot_be_used_are_refused_immediately_and_not_repeated() {
    for bad in [
        "",
        "hook",
        "/hook",
        "http://",
        "ftp://h/",
        "file:///etc/passwd",
        "unix:///s",
        "https://user:t0p@h/",
        "https://t0p@h/",
        "https://:t0p@h/",
        "http://h:99999/",
    ] {
        let error = HttpSink::new(settings(bad)).expect_err(bad);
        assert!(matches!(error, SinkError::Url(_)), "{bad}: {error}");
        assert!(!error.to_string().contains("t0p"), "{error}");
    }
}

#[tokio::test]
async fn endless_informational_answers_end_the_request() {
    for line in [
        &b"HTTP/1.1 100 Continue\r\n\r\n"[..],
        b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n",
    ] {
        let server = Server::start(b"", Then::Endless(line)).await;
        let error = error_of_retry(settings(server.url())).await;
        assert!(error.contains("more than 16 informational"), "{error}");
        // The server writes only as long as the connection is open.
        let mut last = usize::MAX;
        while last != server.written.load(Ordering::Relaxed) {
            last = server.written.load(Ordering::Relaxed);
            assert!(last < 64 << 20, "{last} bytes were read");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_few_informational_answers_are_skipped() {
    const ANSWER: &[u8] =
        b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n\
        HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let server = Server::start(ANSWER, Then::Next).await;
    assert_eq!(send(settings(server.url()), "x").await, Outcome::Ack);
}

/// Starts a server that answers the first `answered` requests of each connection, and closes at the next one.
async fn closing(answered: usize) -> (String, mpsc::UnboundedReceiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (sender, requests) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        for connection in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let sender = sender.clone();
            tokio::spawn(async move {
                for number in 0..=answered {
                    let Some(request) = read_request(&mut stream, connection).await else {
                        return;
                    };
                    let _ = sender.send(request);
                    if number < answered {
                        let _ = stream.write_all(OK).await;
                    }
                }
            });
        }
    });
    (url, requests)
}

#[tokio::test]
async fn a_request_on_a_kept_connection_that_ends_is_repeated_once_on_a_new_one() {
    let (url, mut requests) = closing(1).await;
    let sink = HttpSink::new(settings(url)).unwrap();
    for _ in 0..2 {
        assert_eq!(sink.handle(delivery("x"), context()).await, Outcome::Ack);
    }
    let seen: Vec<_> = std::iter::from_fn(|| requests.try_recv().ok())
        .map(|request| (request.connection, request.headers["webhook-id"].clone()))
        .collect();
    let id = || "order-7".to_owned();
    assert_eq!(seen, [(0, id()), (0, id()), (1, id())]);
}

#[tokio::test]
async fn a_request_on_a_new_connection_that_ends_is_not_repeated() {
    let (url, mut requests) = closing(0).await;
    let error = error_of_retry(settings(url)).await;
    assert!(error.contains("connection closed"), "{error}");
    let seen = std::iter::from_fn(|| requests.try_recv().ok()).count();
    assert_eq!(seen, 1);
}
