//! The number of messages that a token may send in a second.

use std::time::Instant;

use super::*;

const PATH: &str = "/v1/topics/shop-a/messages";
/// The quota of each token here.
const QUOTA: u32 = 5;

/// The number of messages that may have been sent since then, at most.
fn most_since(begun: Instant) -> usize {
    let seconds = begun.elapsed().as_secs_f64();
    (f64::from(QUOTA) * (seconds + 1.0)) as usize + 1
}

/// Sends this many lines, or elements of an array, and returns the number that was sent.
async fn batch(api: &Api, count: usize, is_array: bool) -> usize {
    let messages: Vec<_> = (0..count).map(|n| json!({ "payload": n })).collect();
    let (kind, body) = match is_array {
        true => ("application/json", json!(messages).to_string()),
        false => {
            let lines: Vec<_> = messages.iter().map(Value::to_string).collect();
            ("application/x-ndjson", lines.join("\n"))
        }
    };
    let request = api.request(Method::POST, &format!("{PATH}:batch"));
    let request = request.header("Content-Type", kind).body(body);
    let replies = reply(request).await.expect(200).body;
    let results: Vec<Value> = match is_array {
        true => serde_json::from_str(&replies).unwrap(),
        false => {
            let lines = replies.lines();
            lines
                .map(|line| serde_json::from_str(line).unwrap())
                .collect()
        }
    };
    assert_eq!(results.len(), count);
    let (sent, refused): (Vec<_>, Vec<_>) = results
        .into_iter()
        .partition(|result| result["error"].is_null());
    for result in refused {
        assert_eq!(result["error"]["code"], "full", "{result}");
        assert_eq!(result["error"]["status"], 429, "{result}");
    }
    sent.len()
}

#[tokio::test]
async fn a_quota_counts_messages_of_single_sends_and_of_batches_in_each_process() {
    let server = Server::start();
    let configured = json!({ "sends_per_second": QUOTA });
    let all = tokens(&[
        (ADMIN, &["tokens", "send"], Value::Null),
        ("configured", &["send"], configured),
    ]);
    let served = served_with(&server, "by-call", &all).await;
    let other = served_with(&server, "by-call", &all).await;
    let admin = served.api.clone().token(ADMIN);
    let body = json!({ "scopes": ["send"], "sends_per_second": QUOTA });
    let stored = create(&admin, "stored", body).await;
    for served in [&served, &other] {
        status(&served.api, &stored, LIST, 403).await;
    }
    for token in ["configured", &stored] {
        let api = served.api.clone().token(token);
        let begun = Instant::now();
        let mut sent = 0;
        let refused = loop {
            let reply = api.send("shop-a", "x", &[]).await;
            match reply.status {
                202 => sent += 1,
                _ => break reply,
            }
            assert!(sent <= most_since(begun), "{sent} sent");
        };
        assert!(sent >= QUOTA as usize, "{sent}: {refused:?}");
        let refused = refused.expect(429);
        assert_eq!(refused.header("Retry-After"), "1");
        let problem = refused.json();
        assert_eq!(problem["code"], "full");
        let why = "the token may send 5 messages a second in each process; nothing was stored";
        assert_eq!(problem["detail"], why);
        for is_array in [true, false] {
            sent += batch(&api, 50, is_array).await;
            assert!(sent <= most_since(begun), "{sent} sent");
        }
        // Another token has its own quota, and so has another process.
        admin.send("shop-a", "x", &[]).await.expect(202);
        let elsewhere = other.api.clone().token(token);
        elsewhere.send("shop-a", "x", &[]).await.expect(202);
        eventually(SOON, async || match api.send("shop-a", "x", &[]).await {
            reply if reply.status == 202 => Ok(()),
            reply => Err(format!("{reply:?}")),
        })
        .await;
    }
    let metrics = served.api.get("/metrics").await.body;
    let line = r#"lisa_messages_sent_total{topic="shop-a",outcome="over_quota"}"#;
    assert!(metrics.contains(line), "{metrics}");
    for served in [served, other] {
        served.end().await;
    }
}

/// Otherwise, each change of any token would renew the quotas of all.
#[tokio::test]
async fn a_change_of_another_token_does_not_renew_a_quota() {
    let server = Server::start();
    let served = served(&server).await;
    let body = json!({ "scopes": ["send"], "sends_per_second": 1 });
    let slow = create(&served.api, "slow", body).await;
    status(&served.api, &slow, LIST, 403).await;
    let api = served.api.clone().token(&slow);
    let begun = Instant::now();
    let mut sent = 0;
    for number in 0..4 {
        let name = format!("other-{number}");
        let other = create(&served.api, &name, json!({ "scopes": ["read"] })).await;
        for is_known in [false, true] {
            if is_known {
                status(&served.api, &other, LIST, 200).await;
            }
            for _ in 0..5 {
                sent += u64::from(api.send("shop-a", "x", &[]).await.status == 202);
            }
        }
    }
    assert!(sent <= begun.elapsed().as_secs() + 2, "{sent} sent");
    served.end().await;
}
