//! Requests whose ends are not where they seem to be, and requests that are none.

use super::victim::MESSAGES;
use super::{Answer, Victim};

/// A request that stores a message if any parser takes it for one.
const SMUGGLED: &str =
    "POST /v1/topics/t/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx";

/// Each connection sends one text; no part of it may be taken for a good request.
#[tokio::test]
async fn a_request_of_uncertain_length_is_refused_and_the_connection_closed() {
    let victim = Victim::combined().await;
    let chunked = format!("0\r\n\r\n{SMUGGLED}");
    let cl = |value: &str| format!("content-length: {value}\r\n");
    let te = |value: &str| format!("transfer-encoding: {value}\r\n");
    for (what, framing, body) in [
        ("two lengths", cl("1") + &cl("2"), "xx"),
        ("a list of lengths", cl("1, 2"), "xx"),
        ("a signed length", cl("+1"), "x"),
        ("a negative length", cl("-1"), "x"),
        ("a length in hexadecimal", cl("0x1"), "x"),
        ("a length of nothing", cl(""), ""),
        (
            "a length beyond all numbers",
            cl("99999999999999999999999"),
            "x",
        ),
        ("an unknown coding", te("gzip"), &chunked),
        ("chunks that are not last", te("chunked, gzip"), &chunked),
        ("chunks in chunks", te("chunked, chunked"), &chunked),
        ("chunks twice", te("chunked") + &te("chunked"), &chunked),
        ("compressed chunks", te("gzip, chunked"), &chunked),
        ("a coding that is none", te("xchunked"), &*chunked),
        ("a quoted coding", te("\"chunked\""), &chunked),
        ("a coding with a tail", te("chunked;x"), &chunked),
        (
            "a space before the colon",
            "transfer-encoding : chunked\r\n".to_owned(),
            &chunked,
        ),
        (
            "a folded line",
            "x: y\r\n z: 1\r\ncontent-length : 1\r\n".to_owned(),
            "x",
        ),
        (
            "a bare return",
            "x: y\rcontent-length: 5\r\ncontent-length: 1\r\n".to_owned(),
            "x",
        ),
        (
            "NUL in a value",
            "x: a\0b\r\ncontent-length: 1\r\n".to_owned(),
            "x",
        ),
        ("a chunk of no size", te("chunked"), "x\r\n\r\n0\r\n\r\n"),
        (
            "a chunk beyond all numbers",
            te("chunked"),
            "fffffffffffffffff\r\nx\r\n0\r\n\r\n",
        ),
        ("a negative chunk", te("chunked"), "-1\r\nx\r\n0\r\n\r\n"),
        (
            "a chunk without its end",
            te("chunked"),
            "1\r\nxy\r\n0\r\n\r\n",
        ),
        ("a chunk that never comes", te("chunked"), "5\r\nx"),
        ("a body that is too short", cl("5"), "x"),
    ] {
        let request = format!("POST {MESSAGES} HTTP/1.1\r\nhost: x\r\n{framing}\r\n{body}");
        let answers = victim.say(request.as_bytes()).await;
        assert!(answers.iter().all(Answer::refuses), "{what}: {answers:?}");
        assert!(
            answers.len() <= 1,
            "{what}: one refusal, then the end: {answers:?}"
        );
        assert_eq!(victim.accepted().await, 0, "{what}: {answers:?}");
    }
    victim.serves().await;
}

/// RFC 9112 requires this: the chunks count, and the connection is not used again.
#[tokio::test]
async fn behind_a_request_with_a_length_and_chunks_nothing_is_read() {
    let victim = Victim::combined().await;
    let (length, chunked) = ("content-length: 5\r\n", "transfer-encoding: chunked\r\n");
    for framing in [[length, chunked], [chunked, length]] {
        let before = victim.accepted().await;
        let framing = framing.concat();
        let request =
            format!("POST {MESSAGES} HTTP/1.1\r\nhost: x\r\n{framing}\r\n0\r\n\r\n{SMUGGLED}");
        let answers = victim.say(request.as_bytes()).await;
        assert_eq!(answers.len(), 1, "{answers:?}");
        let closes = answers[0].head.contains("connection: close");
        assert!(closes || answers[0].refuses(), "{answers:?}");
        assert!(victim.accepted().await - before <= 1, "{answers:?}");
    }
}

#[tokio::test]
async fn a_request_without_one_host_is_refused() {
    let victim = Victim::producer().await;
    for (what, request) in [
        ("no host", "GET /healthz HTTP/1.1\r\n\r\n"),
        (
            "two hosts",
            "GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        ),
        (
            "one host twice",
            "GET /healthz HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n",
        ),
    ] {
        let answers = victim.say(request.as_bytes()).await;
        assert_eq!(answers.len(), 1, "{what}: {answers:?}");
        assert_eq!(answers[0].status, 400, "{what}: {answers:?}");
        assert!(
            answers[0].body.contains(r#""code":"malformed""#),
            "{what}: {answers:?}"
        );
    }
    let old = victim.say(b"GET /healthz HTTP/1.0\r\n\r\n").await;
    assert_eq!(old[0].status, 200, "HTTP/1.0 knows no host: {old:?}");
}

#[tokio::test]
async fn garbage_behind_a_good_request_spoils_only_what_follows() {
    let victim = Victim::combined().await;
    let good = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    for garbage in [
        "\0\0\0\0\r\n\r\n",
        "GET /healthz\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\u{3}\u{3}\r\n\r\n",
        "GET /healthz HTTP/9.9\r\nhost: x\r\n\r\n",
        "GET  /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
        "G\u{e4}T /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
        "EHLO x\r\nMAIL FROM:<a@b>\r\n\r\n",
    ] {
        let bytes = format!("{good}{garbage}{SMUGGLED}");
        let answers = victim.say(bytes.as_bytes()).await;
        assert_eq!(
            answers.first().map(|answer| answer.status),
            Some(200),
            "{garbage:?}"
        );
        let rest = &answers[1..];
        assert!(
            rest.len() <= 1 && rest.iter().all(Answer::refuses),
            "{garbage:?}: {answers:?}"
        );
        assert_eq!(victim.accepted().await, 0, "{garbage:?}");
    }
    // The unread rest of a refused body is not the next request either.
    let refused = format!(
        "POST {MESSAGES} HTTP/1.1\r\nhost: x\r\nLisa-Dealy: 1\r\ncontent-length: {}\r\n\r\n{SMUGGLED}{SMUGGLED}",
        SMUGGLED.len()
    );
    let answers = victim.say(refused.as_bytes()).await;
    assert_eq!(answers[0].status, 422, "{answers:?}");
    let stored = answers[1..]
        .iter()
        .filter(|answer| answer.status == 202)
        .count();
    assert_eq!(victim.accepted().await, stored as u64, "{answers:?}");
    assert!(stored <= 1, "{answers:?}");
    victim.serves().await;
}

/// Methods and forms of targets that no route has.
#[tokio::test]
async fn methods_and_targets_that_no_route_has_are_refused() {
    let victim = Victim::combined().await;
    for line in [
        "CONNECT example.com:443 HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "TRACE /healthz HTTP/1.1",
        "get /healthz HTTP/1.1",
        "BREW /healthz HTTP/1.1",
        "GET http://example.com/secret HTTP/1.1",
        "GET example.com HTTP/1.1",
        "GET * HTTP/1.1",
    ] {
        let answers = victim
            .say(format!("{line}\r\nhost: x\r\n\r\n").as_bytes())
            .await;
        assert_eq!(answers.len(), 1, "{line}: {answers:?}");
        assert!(answers[0].refuses(), "{line}: {answers:?}");
    }
}
