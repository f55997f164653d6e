//! Tests with more clients than connection slots.

use super::*;

over_both! {
    clients_that_repeat_themselves_cannot_keep_others_out,
    a_full_listener_keeps_its_connections_while_nobody_waits,
    one_client_that_waits_does_not_cost_all_others_their_connections,
    a_response_under_way_ends_before_its_place_is_free,
    a_client_that_takes_its_response_slowly_cannot_keep_others_out,
}

const ASK: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
const ASK_ONCE: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

async fn crowded(over: Over, max_connections: usize, turn: Duration) -> Server {
    let limits = HttpLimits {
        max_connections,
        turn,
        ..HttpLimits::default()
    };
    over.start(limits).await
}

/// Repeats a request until the server closes the connection.
async fn repeat(mut stream: Wire) {
    let mut buffer = [0; 4096];
    while stream.write_all(ASK).await.is_ok() && matches!(stream.read(&mut buffer).await, Ok(1..)) {
        tokio::time::sleep(FAIR / 50).await;
    }
}

async fn clients_that_repeat_themselves_cannot_keep_others_out(over: Over) {
    let server = crowded(over, 3, FAIR).await;
    for _ in 0..6 {
        let client = server.client.clone();
        tokio::spawn(async move {
            while let Ok(stream) = client.connect().await {
                repeat(stream).await;
            }
        });
    }
    for _ in 0..3 {
        assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200 "));
    }
}

async fn a_full_listener_keeps_its_connections_while_nobody_waits(over: Over) {
    let server = crowded(over, 1, SHORT).await;
    let mut stream = server.connect().await;
    for _ in 0..3 {
        stream.write_all(ASK).await.unwrap();
        read_until(&mut stream, "}").await;
        let kept = timeout(SHORT * 2, stream.read_u8()).await;
        assert!(kept.is_err(), "still open");
    }
}

async fn one_client_that_waits_does_not_cost_all_others_their_connections(over: Over) {
    const SLOTS: usize = 50;
    let server = crowded(over, SLOTS, SHORT).await;
    let mut kept = Vec::new();
    for _ in 0..SLOTS {
        let mut stream = server.connect().await;
        stream.write_all(ASK).await.unwrap();
        read_until(&mut stream, "}").await;
        kept.push(stream);
    }
    tokio::time::sleep(SHORT).await;
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200 "));
    let mut open = 0;
    for stream in &mut kept {
        let is_open = timeout(SHORT / 10, stream.read_u8()).await.is_err();
        open += usize::from(is_open);
    }
    assert!(open > SLOTS / 2, "{open} of {SLOTS} are open");
}

async fn a_response_under_way_ends_before_its_place_is_free(over: Over) {
    let server = crowded(over, 1, SHORT).await;
    let mut first = server.connect().await;
    first
        .write_all(b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    read_until(&mut first, "begun").await;
    let mut second = server.connect().await;
    second.write_all(ASK_ONCE).await.unwrap();
    assert!(timeout(FAIR, second.read_u8()).await.is_err());
    server.go_on.notify_one();
    assert!(rest(&mut first).await.ends_with("done\r\n0\r\n\r\n"));
    assert!(rest(&mut second).await.starts_with("HTTP/1.1 200 "));
}

async fn a_client_that_takes_its_response_slowly_cannot_keep_others_out(over: Over) {
    let server = crowded(over, 1, SHORT).await;
    let mut slow = server.connect().await;
    slow.write_all(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    read_until(&mut slow, "xxx").await;
    tokio::spawn(async move {
        let mut few = [0; 64];
        while matches!(slow.read(&mut few).await, Ok(1..)) {
            tokio::time::sleep(SHORT / 10).await;
        }
    });
    assert!(server.get("/healthz").await.starts_with("HTTP/1.1 200 "));
}
