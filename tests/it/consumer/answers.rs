//! The memory of a gateway for answers that their clients do not read.

use super::SOON;
use super::gateways::{Site, post};
use futures_util::future::join_all;
use lisa_tests::eventually;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATH: &str = "/v1/topics/t/groups/default/pull";
/// The size of a payload of control characters. JSON escapes each with six, so two answers are 96 of the
/// 128 MiB of a client.
const SIZE: usize = 8 * 1024 * 1024;
const FITTING: usize = 2;

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_holds_a_bounded_amount_of_answers_that_nobody_reads() {
    let site = Site::start("[topics.t]\nmax_payload = \"8MiB\"\nlease = \"10m\"\n", "").await;
    let payload = "\u{1}".repeat(SIZE);
    for _ in 0..=FITTING {
        site.send("t", &[], &payload).await;
    }
    eventually(SOON, async || match site.stats("t").await {
        stats if stats["groups"][0]["ready"] == FITTING + 1 => Ok(()),
        stats => Err(stats.to_string()),
    })
    .await;
    let gateway = site.api(0);
    let mut unread = Vec::new();
    for _ in 0..FITTING {
        let mut client = TcpStream::connect(gateway.address()).await.unwrap();
        let request =
            format!("POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut head = [0; 15];
        client.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 OK");
        unread.push(client);
    }
    let refused = post(gateway, PATH, json!({})).await.expect(503).json();
    assert_eq!(
        (&refused["code"], &refused["detail"]),
        (
            &json!("unavailable"),
            &json!("too many large answers to this client at the same time; retry later")
        )
    );
    // The refused message was handed back, and the memory is free when the clients are gone.
    drop(unread);
    let text = eventually(SOON, async || {
        let reply = post(gateway, PATH, json!({ "wait": "1s" })).await;
        let delivery = match reply.status {
            200 => reply.json()["deliveries"][0].clone(),
            _ => Value::Null,
        };
        delivery["payload"]
            .as_str()
            .map(str::to_owned)
            .ok_or(reply.body)
    })
    .await;
    assert_eq!(text.len(), SIZE);
}

/// A gateway that has not seen a message yet expects the largest payloads.
#[tokio::test(flavor = "multi_thread")]
async fn pulls_after_a_start_wait_for_each_others_memory() {
    const PULLS: usize = 12;
    const EACH: usize = 64;
    let site = Site::start("[topics.t]\nlease = \"10m\"\n", "").await;
    let messages = vec![json!({ "payload": 1 }); PULLS * EACH];
    post(
        &site.manager,
        "/v1/topics/t/messages:batch",
        json!(messages),
    )
    .await
    .expect(200);
    eventually(SOON, async || match site.stats("t").await {
        stats if stats["groups"][0]["ready"] == PULLS * EACH => Ok(()),
        stats => Err(stats.to_string()),
    })
    .await;
    let options = json!({ "max": EACH, "wait": "10s" });
    let pulls = (0..PULLS).map(|_| post(site.api(0), PATH, options.clone()));
    for pulled in join_all(pulls).await {
        let deliveries = pulled.expect(200).json()["deliveries"].clone();
        assert!(!deliveries.as_array().unwrap().is_empty(), "{deliveries}");
    }
}
