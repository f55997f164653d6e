//! Bodies that are too large, too slow, or have no end.

use super::tokens::routes;
use super::victim::MESSAGES;
use super::{SOON, Victim};
use futures_util::future::join_all;
use lisa_tests::{Binary, Stopwatch, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// The limit on a listener's growth during an attack, in KiB.
const GROWTH: u64 = 48 * 1024;
/// Each victim's `http.body_timeout`, and the time that its work may take on top of it.
const BODY: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_secs(4);

/// Reads until the text has come, or the connection ends; returns everything read.
async fn until(stream: &mut TcpStream, text: &str) -> String {
    let mut all = Vec::new();
    let read = async {
        while !String::from_utf8_lossy(&all).contains(text) {
            if !matches!(stream.read_buf(&mut all).await, Ok(1..)) {
                break;
            }
        }
    };
    let came = timeout(SOON, read).await;
    let all = String::from_utf8_lossy(&all).into_owned();
    came.unwrap_or_else(|_| panic!("no {text:?} in {all:?}"));
    all
}

/// Three hundred clients that stop within a body, or never send it after the listener asked for it.
#[tokio::test]
async fn slow_bodies_end_in_their_time_and_hold_nobody_up() {
    let victim = Victim::producer().await;
    let before = victim.memory("VmRSS");
    let head = format!("POST {MESSAGES} HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n");
    let slow = victim.crowd(200, format!("{head}\r\nabc").as_bytes()).await;
    let asking = victim
        .crowd(
            100,
            format!("{head}expect: 100-continue\r\n\r\n").as_bytes(),
        )
        .await;
    let opened = Stopwatch::start();
    let served = async {
        for _ in 0..3 {
            victim.serves().await;
        }
        victim.memory("VmRSS") - before
    };
    let all = slow.into_iter().chain(asking);
    let ended = join_all(all.map(|mut stream| async move { until(&mut stream, "timeout").await }));
    let (grown, ended) = tokio::join!(served, ended);
    opened.assert_within(BODY, SLACK);
    for text in ended {
        assert!(text.contains("HTTP/1.1 408 "), "{text}");
    }
    assert!(grown < GROWTH, "grew by {grown} KiB");
    assert_eq!(victim.accepted().await, 3);
}

#[tokio::test]
async fn a_body_without_end_is_answered_at_its_bound_and_nobody_else_waits() {
    let victim = Victim::producer().await;
    let before = victim.memory("VmHWM");
    let batch = format!("{MESSAGES}:batch");
    let line = [b'x'; 16 * 1024];
    let chunk = [format!("{:x}\r\n", line.len()).as_bytes(), &line, b"\r\n"].concat();
    let dots = b"1\r\n.\r\n".repeat(4096);
    let extension = [&b"1;"[..], &line].concat();
    for (what, path, head, piece, status) in [
        ("chunks", MESSAGES, "", &chunk, "413"),
        // Reading them may take longer than the time limit.
        ("chunks of a byte", MESSAGES, "", &dots, "4"),
        ("an extension of a chunk", MESSAGES, "1;x=", &extension, "4"),
        (
            "trailers",
            MESSAGES,
            "0\r\n",
            &b"x-trailer: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n".repeat(1000),
            "4",
        ),
        // A batch has its status before its lines; this one is ended by the clock.
        ("a line of a batch", &batch, "", &chunk, "200"),
    ] {
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{head}");
        let (mut read, mut write) = victim.connect().await.into_split();
        let started = Stopwatch::start();
        let mut answer = Vec::new();
        let heard = async {
            while !answer.windows(4).any(|four| four == b"\r\n\r\n") {
                if !matches!(read.read_buf(&mut answer).await, Ok(1..)) {
                    break;
                }
            }
        };
        let sent = async {
            let _ = write.write_all(head.as_bytes()).await;
            while write.write_all(piece).await.is_ok() {}
        };
        let over = async {
            tokio::select! {
                () = heard => (),
                () = sent => (),
            }
        };
        timeout(SOON, over).await.expect(what);
        let took = started.elapsed();
        victim.serves().await;
        let answer = String::from_utf8_lossy(&answer);
        let expected = format!("HTTP/1.1 {status}");
        // A client that is cut off while writing may miss the answer.
        assert!(
            answer.is_empty() || answer.starts_with(&expected),
            "{what}: {answer}"
        );
        started.assert_took(took, BODY, SLACK);
    }
    let grown = victim.memory("VmHWM") - before;
    assert!(grown < GROWTH, "the peak grew by {grown} KiB");
}

/// Stalled large bodies use no more memory than is reserved for them, and small messages pass.
#[tokio::test]
async fn large_bodies_that_stall_share_a_bounded_memory_and_small_ones_pass() {
    const MIB: usize = 1024 * 1024;
    // Half of the memory for all clients.
    const ROOM: u64 = 128 * 1024;
    let table = "[topics.large]\ngroups = [\"g\"]\nmax_payload = \"8MiB\"\n";
    let launch = Binary::Producer.with(["run"]);
    let victim = Victim::launch(launch.env("LISA_HTTP__BODY_TIMEOUT", "1m"), table).await;
    let before = victim.memory("VmHWM");
    let part = Arc::new(vec![b'x'; 7 * MIB]);
    let head = format!(
        "POST /v1/topics/large/messages HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        8 * MIB
    );
    // 420 MiB in all.
    let open = join_all((0..60).map(|_| async {
        let mut stream = victim.connect().await;
        let sent = async {
            let head = stream.write_all(head.as_bytes()).await;
            head.is_ok() && stream.write_all(&part).await.is_ok()
        };
        let _ = timeout(SOON, sent).await;
        stream
    }));
    let mut open = open.await;
    victim.serves().await;
    let grown = victim.memory("VmHWM") - before;
    assert!(grown > ROOM / 2, "grew by {grown} KiB: they were not kept");
    assert!(grown < ROOM + GROWTH, "the peak grew by {grown} KiB");
    let mut refused = 0;
    for stream in &mut open {
        let mut answer = Vec::new();
        let read = timeout(Duration::from_millis(50), stream.read_buf(&mut answer));
        if let Ok(Ok(1..)) = read.await {
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
            refused += 1;
        }
    }
    println!("{refused} of 60 refused, {grown} KiB");
    assert!((40..=50).contains(&refused), "{refused} of 60 refused");
    drop(open);
    eventually(SOON, async || {
        let sent = victim.api.send("large", vec![b'x'; 8 * MIB], &[]).await;
        match sent.status {
            202 => Ok(()),
            _ => Err(format!("{sent:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn a_declared_length_beyond_the_limit_is_refused_before_a_byte_of_it() {
    let victim = Victim::producer().await;
    for length in ["65537", "1073741824", "18446744073709551615"] {
        let head =
            format!("POST {MESSAGES} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        let mut stream = victim.connect().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = until(&mut stream, "}").await;
        // The largest number is one that hyper keeps for bodies without a length, and refuses.
        let refused =
            ["413", "431"].map(|status| answer.starts_with(&format!("HTTP/1.1 {status} ")));
        assert!(
            refused[0] || (refused[1] && length.len() == 20),
            "{length}: {answer}"
        );
    }
    assert_eq!(victim.accepted().await, 0);
}

#[tokio::test]
async fn a_body_with_a_content_coding_is_refused_at_every_route() {
    let victim = Victim::combined().await;
    let description = victim.api.get_json("/openapi.json").await;
    let refused = [("gzip", true), ("identity, br", true), ("identity", false)];
    for (method, path) in routes(&description) {
        for (coding, is_refused) in refused {
            let request = victim.api.request(method.clone(), &path);
            let request = request.header("Content-Encoding", coding);
            let reply = request.body("{}").send().await.expect("an answer");
            let accepted = reply.headers().get("accept-encoding").cloned();
            let status = reply.status().as_u16();
            let text = reply.text().await.expect("an answer");
            assert_eq!(
                status == 415,
                is_refused,
                "{method} {path} {coding}: {text}"
            );
            if is_refused {
                assert!(text.contains("unsupported_media_type"), "{text}");
                assert_eq!(accepted.expect("the header"), "identity");
            }
        }
    }
}

/// Includes the array of an object's members in their order, which a parser may take for the object.
#[tokio::test]
async fn a_body_that_is_no_object_changes_nothing_on_any_route() {
    let victim = Victim::combined().await;
    let api = &victim.api;
    let headers = [("Lisa-Id", "a"), ("Lisa-Key", "k"), ("Lisa-Delay", "1h")];
    let sent = api.send("t", "x", &headers).await.expect(202).json();
    let description = api.get_json("/openapi.json").await;
    let paths = description["paths"].as_object().expect("paths");
    let mut routes = 0;
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().expect("operations") {
            let body = &operation["requestBody"]["content"]["application/json"];
            // A batch is an array.
            if body.is_null() || operation["operationId"] == "send_batch" {
                continue;
            }
            routes += 1;
            let names = [
                ("{topic}", "t"),
                ("{group}", "g"),
                ("{id}", "a"),
                ("{schedule}", "s"),
                ("{token}", "k"),
            ];
            let path = names.iter().fold(path.clone(), |path, (name, value)| {
                path.replace(name, value)
            });
            let method: Method = method.to_uppercase().parse().expect("a method");
            for body in [
                "",
                "null",
                "1",
                "[]",
                r#"["5s",null]"#,
                "[[],true,true]",
                r#""{}""#,
            ] {
                let request = api.request(method.clone(), &path).header("Lisa-Key", "k");
                let answer = request.body(body).send().await.expect("an answer");
                let (status, text) = (answer.status(), answer.text().await.expect("a problem"));
                // An empty body is an object without fields, which each route refuses: settings because of the topic, which the
                // configuration declares.
                let is_settings = body.is_empty() && operation["operationId"] == "put_topic";
                // A rotation without fields begins; there is no such token.
                let is_rotation = body.is_empty() && operation["operationId"] == "rotate_token";
                let refused = match (is_settings, is_rotation) {
                    (true, _) => 409,
                    (_, true) => 404,
                    (false, false) => 422,
                };
                assert_eq!(status, refused, "{method} {path} {body}: {text}");
                let is_object = !text.contains("body is not valid: expected a JSON object");
                assert_eq!(is_object, body.is_empty(), "{method} {path} {body}: {text}");
            }
        }
    }
    assert_eq!(
        routes, 10,
        "reschedule, also by key, requeue, purge, garbage jobs, settings, schedules, backfills, tokens and rotations"
    );
    let lines = [json!([1]), json!([1, null, null]), Value::Null, json!("{}")];
    for result in api.batch("t", &lines).await {
        let detail = result["error"]["detail"].as_str();
        assert_eq!(detail, Some("not a message: expected a JSON object"));
    }
    let kept = api.get_json(&format!("{MESSAGES}/a")).await;
    assert_eq!(kept["due_at"], sent["due_at"]);
    assert_eq!(victim.accepted().await, 1);
}
