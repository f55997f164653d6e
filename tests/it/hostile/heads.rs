//! Heads that are too long, too many, or that name a path without a route.

use super::{Answer, SOON, Victim};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// The limit on a listener's growth during an attack, in KiB.
const GROWTH: u64 = 24 * 1024;

#[tokio::test]
async fn a_head_that_is_too_large_is_refused_in_whatever_way_it_is() {
    let victim = Victim::combined().await;
    let before = victim.memory("VmHWM");
    let long = |bytes: usize| "y".repeat(bytes);
    let one = |bytes: usize| {
        format!(
            "GET /healthz HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n",
            long(bytes)
        )
    };
    let many = |count: usize| {
        format!(
            "GET /healthz HTTP/1.1\r\nhost: x\r\n{}\r\n",
            "x: y\r\n".repeat(count)
        )
    };
    let uri = |bytes: usize| format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", long(bytes));
    let query = |bytes: usize| format!("GET /healthz?{} HTTP/1.1\r\nhost: x\r\n\r\n", long(bytes));
    for (what, request, statuses) in [
        ("a long value", one(17 * 1024), &[431][..]),
        ("a value of a megabyte", one(1024 * 1024), &[431]),
        (
            "a long name",
            format!(
                "GET /healthz HTTP/1.1\r\nhost: x\r\n{}: y\r\n\r\n",
                long(70_000)
            ),
            &[400, 431],
        ),
        ("a hundred lines more", many(101), &[431]),
        ("a hundred thousand lines", many(100_000), &[431]),
        ("a long path", uri(17 * 1024), &[431]),
        ("a path of a megabyte", uri(1024 * 1024), &[414, 431]),
        ("a long query", query(17 * 1024), &[431]),
        ("a query of a megabyte", query(1024 * 1024), &[414, 431]),
    ] {
        for _ in 0..4 {
            let answers = victim.say(request.as_bytes()).await;
            // The unread rest may cut off the answer on its way.
            assert!(answers.len() <= 1, "{what}: {answers:?}");
            assert!(
                answers
                    .iter()
                    .all(|answer| statuses.contains(&answer.status)),
                "{what}: {answers:?}"
            );
        }
    }
    let grown = victim.memory("VmHWM") - before;
    assert!(grown < GROWTH, "the peak grew by {grown} KiB");
    victim.serves().await;
}

#[tokio::test]
async fn a_head_that_never_ends_is_cut_off_at_its_bound() {
    let victim = Victim::producer().await;
    let before = victim.memory("VmHWM");
    let (mut read, mut write) = victim.connect().await.into_split();
    let line = format!("x-padding: {}\r\n", "y".repeat(4000));
    let sent = async {
        let mut sent = write
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n")
            .await
            .map(|()| 0);
        while let Ok(bytes) = sent {
            sent = write
                .write_all(line.as_bytes())
                .await
                .map(|()| bytes + line.len());
            assert!(bytes < 64 * 1024 * 1024, "it takes whatever comes");
        }
    };
    let heard = async {
        let mut all = Vec::new();
        while let Ok(1..) = read.read_buf(&mut all).await {}
    };
    let ended = timeout(SOON, async { tokio::join!(sent, heard) }).await;
    ended.expect("the connection is closed");
    let grown = victim.memory("VmHWM") - before;
    assert!(grown < GROWTH, "the peak grew by {grown} KiB");
    victim.serves().await;
}

#[tokio::test]
async fn no_spelling_of_a_path_leads_to_another_route() {
    let victim = Victim::combined().await;
    for path in [
        "/v1/topics/\0/messages/a",
        "/v1/topics/%00/messages/a",
        "/v1/topics/t%00/messages/a",
        "/v1/topics/t/messages/a%00",
        "/v1/topics/t/messages/a%0d%0aset-cookie:%20x",
        "/v1/topics/../healthz",
        "/v1/../healthz",
        "/../healthz",
        "/%2e%2e/healthz",
        "/v1/%2e%2e/healthz",
        "/v1/topics/t%2f..%2f..%2f..%2fhealthz",
        "/v1/topics/t%2fmessages%2fa",
        "/v1/topics/..%2ft",
        "/v1/topics/t/messages/..%2f..",
        "/v1/topics/t\\..\\..",
        "/v1//topics/t",
        "//healthz",
        "/healthz/",
        "/healthz;x=y",
        "/healthz%20",
        "/HEALTHZ",
        "/%68ealthz/..",
        "/v1/topics/%c0%af/messages/a",
        "/v1/topics/%ff/messages/a",
        "/v1/topics/%zz/messages/a",
        "/v1/topics/%/messages/a",
        "/v1/topics/t/messages/{id}",
        "/v1/topics/T",
        "/v1/topics/%D1%82",
    ] {
        let answers = victim
            .say(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes())
            .await;
        assert_eq!(answers.len(), 1, "{path:?}: {answers:?}");
        let Answer { status, head, body } = &answers[0];
        assert!(matches!(status, 400 | 404 | 422), "{path:?}: {answers:?}");
        assert!(!head.contains("set-cookie"), "{path:?}: {head}");
        // hyper refuses an invalid target without a body; every other answer is a problem document.
        let ours = body.contains(r#""code":""#);
        assert!(
            ours || (*status == 400 && body.is_empty()),
            "{path:?}: {answers:?}"
        );
    }
    let metrics = victim.api.get("/metrics").await.expect(200).body;
    assert!(
        !metrics.contains("set-cookie") && !metrics.contains("%2e"),
        "{metrics}"
    );
}
