//! Clients that close their side of the connection.

use super::*;

over_both! {
    a_client_that_closes_its_side_after_a_whole_request_gets_the_answer,
    a_request_that_ends_with_its_client_ends_at_a_half_close,
    the_end_of_a_client_that_had_an_answer_is_seen_at_once,
}

async fn a_client_that_closes_its_side_after_a_whole_request_gets_the_answer(over: Over) {
    let server = over.start(HttpLimits::default()).await;
    let head = "POST /echo HTTP/1.1\r\nhost: x\r\n";
    for (request, answer) in [
        (format!("{head}content-length: 3\r\n\r\nabc"), "abc"),
        (
            format!("{head}transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
            "abc",
        ),
        ("GET /slow HTTP/1.1\r\nhost: x\r\n\r\n".into(), "done"),
        ("GET /stream HTTP/1.1\r\nhost: x\r\n\r\n".into(), "done"),
    ] {
        let mut stream = server.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        if request.contains("/slow") {
            server.arrived.notified().await;
        }
        if request.starts_with("GET") {
            server.go_on.notify_one();
        }
        let text = rest(&mut stream).await;
        assert!(text.starts_with("HTTP/1.1 200 "), "{request}: {text}");
        assert!(text.contains(answer), "{request}: {text}");
    }
    // A body that is cut off is not whole.
    let mut stream = server.connect().await;
    let part = format!("{head}content-length: 9\r\n\r\nabc");
    stream.write_all(part.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    assert!(!rest(&mut stream).await.starts_with("HTTP/1.1 200 "));
}

async fn a_request_that_ends_with_its_client_ends_at_a_half_close(over: Over) {
    let limits = HttpLimits {
        max_connections: 1,
        ..HttpLimits::default()
    };
    let server = over.start(limits).await;
    let head = "POST /pull HTTP/1.1\r\nhost: x\r\ncontent-length: ";
    let mut stream = server.connect().await;
    // The bytes of a later request must not end the watch.
    for body in ["3\r\n\r\nabc", "3\r\n\r\nabc", "0\r\n\r\n"] {
        let request = format!("{head}{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        if body.contains("abc") {
            read_until(&mut stream, "done").await;
        }
    }
    assert!(timeout(SHORT, stream.read_u8()).await.is_err(), "it waits");
    stream.shutdown().await.unwrap();
    assert_eq!(rest(&mut stream).await, "");
    // The only slot is free again.
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200 "));
}

async fn the_end_of_a_client_that_had_an_answer_is_seen_at_once(over: Over) {
    let server = over.start(HttpLimits::default()).await;
    let head = "POST /pull HTTP/1.1\r\nhost: x\r\ncontent-length: ";
    let mut took = Vec::new();
    for _ in 0..20 {
        let mut stream = server.connect().await;
        let answered = format!("{head}3\r\n\r\nabc");
        stream.write_all(answered.as_bytes()).await.unwrap();
        read_until(&mut stream, "done").await;
        let waits = format!("{head}0\r\n\r\n");
        stream.write_all(waits.as_bytes()).await.unwrap();
        server.arrived.notified().await;
        let left = Instant::now();
        stream.shutdown().await.unwrap();
        assert_eq!(rest(&mut stream).await, "");
        took.push(left.elapsed());
    }
    // On a busy machine, some take longer.
    assert!(took.iter().min() < Some(&SHORT), "{took:?}");
}
