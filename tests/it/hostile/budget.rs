//! The cost of a request: memory and time in proportion to its size, whatever its shape, and little without a token.

use super::tokens::routes;
use super::{SOON, Victim};
use futures_util::future::join_all;
use lisa_consumer::gateway::sqs_actions;
use lisa_tests::sqs::{JSON as AMZ_JSON, hex, signed, signed_form, signed_text};
use lisa_tests::{Api, Binary, Stopwatch, eventually, free_port};
use reqwest::{Method, RequestBuilder};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::io::Write;
use std::time::Duration;
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

const KIB: u64 = 1024;
const MIB: usize = 1024 * 1024;
/// The limit on the growth for all clients without a token, in KiB.
const OF_STRANGERS: u64 = 64 * KIB;
/// The growth that any request may cause, in KiB: buffers of connections, and pages that the allocator keeps.
const SLACK: u64 = 12 * KIB;
const TOKEN: &str = "a-token";
const SECRET: &str = "c2VjcmV0LWtleS1vZi1hLWNsaWVudA";

/// A token with all scopes, as configuration.
fn auth() -> String {
    let hash = hex(&Sha256::digest(TOKEN));
    let scopes = r#"["send", "read", "operate", "receive", "payload"]"#;
    format!("[[auth.tokens]]\nname = \"app\"\nsha256 = \"{hash}\"\nscopes = {scopes}\n")
}

/// Returns bodies of about this size with as many values as possible, each with its media type. The lists are for any route,
/// for forms, and for clients of SQS.
fn shapes(bytes: usize) -> [Vec<(&'static str, String)>; 3] {
    let fill = |begin: &str, unit: &str, end: &str| {
        let count = (bytes - begin.len() - end.len()) / unit.len();
        [begin, &unit.repeat(count), end].concat()
    };
    let names: String = (0..bytes / 16).map(|n| format!("\"{n:09}\":0,")).collect();
    let sqs = |begin: &str, unit: &str, end: &str| {
        fill(&format!("{{\"QueueUrl\":\"x/t\",{begin}"), unit, end)
    };
    let any = [
        fill("[", "0,", "0]"),
        fill("{\"ids\":[", "{},", "{}]}"),
        format!("{{{names}\"a\":0}}"),
        fill("", "[", ""),
    ];
    let mut any: Vec<_> = any.map(|body| ("application/json", body)).into();
    any.push(("application/x-ndjson", fill("", "{}\n", "")));
    let of_sqs = [
        sqs("\"Entries\":[", "{},", "{}]}"),
        sqs("\"MessageAttributeNames\":[", "\"\",", "\"\"]}"),
        sqs("\"Unknown\":[", "0,", "0]}"),
        format!("{{\"QueueUrl\":\"x/t\",\"MessageAttributes\":{{{names}\"a\":0}}}}"),
    ];
    let form = ("application/x-www-form-urlencoded", fill("", "x=1&", ""));
    [any, vec![form], of_sqs.map(|body| (AMZ_JSON, body)).into()]
}

/// Returns such bodies for clients of SQS that speak the older protocol.
fn forms_of_sqs(bytes: usize) -> [String; 4] {
    let begin = "Action=SendMessage&QueueUrl=t&MessageBody=";
    ["x=1&", "\"", "%01", "a.1.b=&"].map(|unit| {
        let count = (bytes - begin.len()) / unit.len();
        format!("{begin}{}", unit.repeat(count))
    })
}

/// A gateway that serves clients of SQS, with a token.
struct Gateway {
    victim: Victim,
    api: Api,
    _secret: NamedTempFile,
}

impl Gateway {
    async fn start(max_connections: usize) -> Self {
        let port = free_port();
        let mut secret = NamedTempFile::new().expect("a file");
        secret.write_all(SECRET.as_bytes()).expect("written");
        let tables = format!(
            "[consumer.gateway]\nlisten = \"127.0.0.1:{port}\"\nsqs = true\n{}aws_secret_file = \"{}\"",
            auth(),
            secret.path().display()
        );
        let launch = Binary::Consumer.with(["run"]);
        let launch = launch.env("LISA_HTTP__MAX_CONNECTIONS", &max_connections.to_string());
        Self {
            victim: Victim::launch(launch, &tables).await,
            api: Api::new(port),
            _secret: secret,
        }
    }

    async fn connect(&self) -> TcpStream {
        let address = self.api.address();
        TcpStream::connect(address).await.expect("connected")
    }

    /// Makes a request to SQS of which only the name of the token is right.
    fn forged(&self, action: &str) -> RequestBuilder {
        signed(&self.api, "app", "wrong", action, &json!({}))
    }
}

/// Makes requests, and returns by how much the memory of the victim grew meanwhile, in KiB. Checks that it answers others.
async fn cost(victim: &Victim, requests: Vec<RequestBuilder>) -> u64 {
    let before = victim.memory("VmRSS");
    victim.forget_peak();
    let watch = Stopwatch::start();
    let all = join_all(requests.into_iter().map(async |request| {
        // What it answers does not matter; it may also close the connection.
        let _ = timeout(SOON, request.send()).await.expect("an end in time");
    }));
    let mut all = std::pin::pin!(all);
    let mut longest = Duration::ZERO;
    loop {
        let begun = std::time::Instant::now();
        // Not one that was closed meanwhile.
        let api = Api::new(victim.port);
        tokio::select! {
            _ = &mut all => break,
            reply = api.get("/healthz") => {
                reply.expect(200);
                longest = longest.max(begun.elapsed());
            }
        }
        sleep(Duration::from_millis(5)).await;
    }
    watch.assert_took(longest, Duration::ZERO, Duration::from_secs(1));
    victim.memory("VmHWM").saturating_sub(before)
}

fn request(api: &Api, route: &(Method, String), kind: &str, body: &str) -> RequestBuilder {
    let (method, path) = route;
    let request = api.request(method.clone(), path);
    request.header("content-type", kind).body(body.to_owned())
}

/// Returns the routes that may read a body.
async fn routes_with_body(api: &Api) -> Vec<(Method, String)> {
    let description = api.get_json("/openapi.json").await;
    let all = routes(&description).into_iter();
    all.filter(|(method, _)| method != Method::GET).collect()
}

/// The pages of the dashboard are not in the description.
fn forms() -> impl Iterator<Item = (Method, String)> {
    let paths = [
        "/login",
        "/choices",
        "/logout",
        "/topics/t/send",
        "/topics/t/pause",
        "/topics/t/groups/g/garbage/purge",
    ];
    paths
        .map(|path| (Method::POST, path.to_owned()))
        .into_iter()
}

/// Sends bodies of this size with a token to one route after the other.
async fn with_a_token(bytes: usize) {
    let combined = Victim::start(Binary::Manager, &["run", "--with-producer"], &auth()).await;
    let gateway = Gateway::start(1000).await;
    let limit = 4 * bytes as u64 / KIB + SLACK;
    let check = async |victim: &Victim, what: &str, body: &str, request: RequestBuilder| {
        let grown = cost(victim, vec![request]).await;
        assert!(grown <= limit, "{what}: {grown} KiB for {}…", &body[..60]);
    };
    let [any, of_forms, of_sqs] = shapes(bytes);
    for (victim, api) in [(&combined, &combined.api), (&gateway.victim, &gateway.api)] {
        let api = api.clone().token(TOKEN);
        let all = routes_with_body(&api).await;
        assert!(all.len() >= 8, "{all:?}");
        for (kind, body) in &any {
            for route in &all {
                let request = request(&api, route, kind, body);
                check(victim, &format!("{route:?}"), body, request).await;
            }
        }
    }
    for (kind, body) in &of_forms {
        for route in forms() {
            let request = request(&combined.api, &route, kind, body);
            check(&combined, &route.1, body, request).await;
        }
    }
    for (_, body) in &of_sqs {
        for action in sqs_actions() {
            let request = signed_text(&gateway.api, "app", SECRET, action, body.clone());
            check(&gateway.victim, action, body, request).await;
        }
    }
    for body in forms_of_sqs(bytes) {
        let request = signed_form(&gateway.api, "app", SECRET, "", &body);
        check(&gateway.victim, "a form", &body, request).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_any_shape_costs_a_few_times_its_size() {
    with_a_token(4 * MIB).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes in a debug build"]
async fn a_body_of_the_largest_size_costs_a_few_times_its_size() {
    with_a_token(16 * MIB - 1).await;
}

/// Sends bodies of this size without a token, or with only the name of one, to all routes at the same time.
async fn without_a_token(bytes: usize) {
    let combined = Victim::start(Binary::Manager, &["run", "--with-producer"], &auth()).await;
    let gateway = Gateway::start(1000).await;
    let [any, of_forms, of_sqs] = shapes(bytes);
    let check = async |victim: &Victim, body: &str, requests: Vec<RequestBuilder>| {
        let grown = cost(victim, requests).await;
        assert!(grown <= OF_STRANGERS, "{grown} KiB for {}…", &body[..60]);
    };
    for (victim, api) in [(&combined, &combined.api), (&gateway.victim, &gateway.api)] {
        let all = routes_with_body(api).await;
        for (kind, body) in any.iter().chain(&of_forms) {
            let routes = all.iter().cloned().chain(forms());
            let requests = routes.map(|route| request(api, &route, kind, body));
            check(victim, body, requests.collect()).await;
        }
    }
    for (_, body) in &of_sqs {
        let requests = sqs_actions().map(|action| gateway.forged(action).body(body.clone()));
        check(&gateway.victim, body, requests.collect()).await;
    }
    for body in forms_of_sqs(bytes) {
        let request = || signed_form(&gateway.api, "app", "wrong", "", &body);
        check(&gateway.victim, &body, (0..8).map(|_| request()).collect()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_without_a_token_take_little_memory_together() {
    without_a_token(4 * MIB).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes in a debug build"]
async fn clients_without_a_token_take_little_memory_with_the_largest_bodies() {
    without_a_token(16 * MIB - 1).await;
}

/// Connections to the settlements of a gateway, none of which has the token of a delivery.
async fn strangers(gateway: &Gateway, count: usize, head: &str, begun: &[u8]) -> Vec<TcpStream> {
    let mut all = Vec::new();
    for _ in 0..count {
        let mut stream = gateway.connect().await;
        let head = format!("POST /v1/deliveries:settle HTTP/1.1\r\nhost: x\r\n{head}\r\n");
        stream.write_all(head.as_bytes()).await.expect("a head");
        stream.write_all(begun).await.expect("a beginning");
        all.push(stream);
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_without_a_token_hold_no_connection_for_long() {
    let gateway = Gateway::start(40).await;
    let head = "content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n";
    let line = b"3\r\n{}\n\r\n";
    let slow = strangers(&gateway, 41, head, line).await;
    let mut dripping = tokio::task::JoinSet::new();
    for mut stream in slow {
        dripping.spawn(async move {
            while stream.write_all(line).await.is_ok() {
                sleep(Duration::from_millis(300)).await;
            }
        });
    }
    let pull = "/v1/topics/t/groups/g/pull";
    let api = gateway.api.clone().token(TOKEN);
    eventually(SOON, async || {
        let request = api
            .request(Method::POST, pull)
            .timeout(Duration::from_secs(2));
        match request.send().await {
            Ok(reply) if reply.status() == 404 => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    })
    .await;
    // A client that sends at full speed gets a few errors.
    let many = [&line.repeat(10_000)[..], b"0\r\n\r\n"].concat();
    let mut fast = strangers(&gateway, 1, head, b"").await.remove(0);
    let (mut read, mut write) = fast.split();
    let mut answer = Vec::new();
    let sent = async {
        let _ = write.write_all(&many).await;
    };
    let heard = async {
        let _ = timeout(SOON, read.read_to_end(&mut answer))
            .await
            .expect("an end");
    };
    tokio::join!(sent, heard);
    let answer = String::from_utf8_lossy(&answer);
    let errors = answer.matches("\"error\"").count();
    assert!((1..=300).contains(&errors), "{errors} errors");
    assert!(answer.contains("further lines are not read"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn arrays_without_a_token_end_early_and_get_short_answers() {
    let gateway = Gateway::start(1000).await;
    let zeros = format!("[{}0]", "0,".repeat(999));
    let spaces = format!("[{}", " ".repeat(64 * 1024));
    let item = format!(
        "{{\"token\":\"x\",\"retry\":{{{}\"z\":0}}}}",
        "\"a\":0,".repeat(1000)
    );
    for (body, status, longest) in [
        (zeros, 401, 1000),
        (spaces, 401, 1000),
        (format!("[{item}]"), 200, 1000),
    ] {
        let request = gateway.api.request(Method::POST, "/v1/deliveries:settle");
        let request = request
            .header("content-type", "application/json")
            .body(body);
        let reply = request.send().await.expect("an answer");
        assert_eq!(reply.status(), status);
        let text = reply.text().await.expect("a text");
        assert!(
            text.contains("invalid_delivery_token") && text.len() < longest,
            "{text}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lengths_that_strangers_declare_take_nothing_from_clients() {
    let gateway = Gateway::start(1000).await;
    let declared = "content-type: application/json\r\ncontent-length: 4194304\r\n";
    let mut all = strangers(&gateway, 70, declared, b"[").await;
    for stream in &mut all {
        stream.write_all(b"1").await.expect("a second piece");
    }
    let large = json!({"QueueUrl": "x/t", "MessageBody": "x".repeat(200_000)});
    let signed = signed(&gateway.api, "app", SECRET, "SendMessage", &large);
    let reply = signed.send().await.expect("an answer");
    assert_ne!(reply.status(), 503, "{}", reply.text().await.unwrap());
    drop(all);
}
