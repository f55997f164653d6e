//! The route of batches.

use super::{SOON, Service};
use futures_util::StreamExt;
use lisa_tests::Server;
use reqwest::{Body, Method};
use serde_json::{Value, json};
use tokio::sync::mpsc;

const BATCH: &str = "/v1/topics/t/messages:batch";

/// Sends a body and returns the results.
async fn post(service: &Service, body: impl Into<Body>) -> Vec<Value> {
    let request = service.api.request(Method::POST, BATCH).body(body);
    let response = request.send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let text = response.text().await.expect("all of it");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

#[tokio::test]
async fn each_line_has_its_result_at_its_place_also_a_broken_one() {
    let service = Service::shared("lines", "").await;
    let large = json!({ "payload_text": "x".repeat(1025) }).to_string();
    let endless = format!(r#"{{"payload_text":"{}"}}"#, "x".repeat(400 * 1024));
    let lines = [
        r#"{"payload":{"b":1, "a":1.50},"delay":"1h","id":"json","headers":{"Tenant":"a"}}"#,
        r#"{"payload":1"#,
        r#"{"payload_text":"","deliver_at":"2001-01-01T00:00:00Z","id":"empty"}"#,
        r#"{"payload":1,"priority":1.5}"#,
        &large,
        &endless,
        r#"{"payload_base64":"AP8=","delay":"1h","id":"binary","max_attempts":2}"#,
        r#"{"payload":1,"id":"json"}"#,
        "\u{1}",
    ];
    let results = post(&service, lines.join("\r\n")).await;
    assert_eq!(results.len(), lines.len(), "{results:#?}");
    let expected = [
        ("outcome", "waiting"),
        ("code", "invalid"),
        ("outcome", "ready"),
        ("code", "invalid"),
        ("code", "too_large"),
        ("code", "too_large"),
        ("outcome", "waiting"),
        ("outcome", "duplicate"),
        ("code", "invalid"),
    ];
    for (result, (kind, word)) in results.iter().zip(expected) {
        let told = if kind == "code" {
            &result["error"]["code"]
        } else {
            &result["outcome"]
        };
        assert_eq!(told, word, "{result}");
    }
    assert_eq!(results[7]["due_at"], results[0]["due_at"]);
    let seen = service.api.get_json("/v1/topics/t/messages/json").await;
    assert_eq!(seen["payload"], r#"{"b":1, "a":1.50}"#);
    assert_eq!(seen["headers"], json!({ "tenant": "a" }));
    let seen = service.api.get_json("/v1/topics/t/messages/binary").await;
    assert_eq!(seen["payload_base64"], "AP8=");
}

#[tokio::test]
async fn ten_thousand_lines_come_back_in_their_order() {
    let service = Service::shared("many", "").await;
    let line = |n: usize| match n % 1000 {
        7 => "{".to_owned(),
        _ => format!(r#"{{"payload":{n},"delay":"1h","id":"m{n}"}}"#),
    };
    let body: Vec<String> = (0..10_000).map(line).collect();
    let results = post(&service, body.join("\n")).await;
    assert_eq!(results.len(), 10_000);
    for (n, result) in results.iter().enumerate() {
        match n % 1000 {
            7 => assert_eq!(result["error"]["status"], 422),
            _ => assert_eq!(
                (&result["id"], &result["outcome"]),
                (&json!(format!("m{n}")), &json!("waiting"))
            ),
        }
    }
}

#[tokio::test]
async fn a_line_is_answered_before_the_next_one_is_written() {
    let service = Service::shared("talk", "").await;
    let (lines, body) = mpsc::channel::<Result<String, std::io::Error>>(1);
    let body = futures_util::stream::unfold(body, async |mut body| {
        body.recv().await.map(|line| (line, body))
    });
    let request = service
        .api
        .request(Method::POST, BATCH)
        .body(Body::wrap_stream(body));
    let mut results = request.send().await.unwrap().bytes_stream();
    for n in 0..3 {
        let line = format!("{{\"payload\":1,\"delay\":\"1h\",\"id\":\"m{n}\"}}\n");
        lines.send(Ok(line)).await.unwrap();
        let result = tokio::time::timeout(SOON, results.next()).await.unwrap();
        let result: Value = serde_json::from_slice(&result.unwrap().unwrap()).unwrap();
        assert_eq!(result["id"], format!("m{n}"));
    }
    drop(lines);
    assert!(results.next().await.is_none());
}

#[tokio::test]
async fn a_batch_to_an_unknown_topic_or_with_options_of_its_own_is_refused_whole() {
    let service = Service::shared("whole", "").await;
    let request = |path: &str| {
        service
            .api
            .request(Method::POST, path)
            .body("{\"payload\":1}")
    };
    let unknown = request("/v1/topics/nosuch/messages:batch")
        .send()
        .await
        .unwrap();
    assert_eq!(unknown.status(), 404);
    let options = request(BATCH)
        .header("Lisa-Delay", "1h")
        .send()
        .await
        .unwrap();
    assert_eq!(options.status(), 422);
    assert!(post(&service, "").await.is_empty());
}

#[tokio::test]
async fn an_outage_within_a_batch_shows_in_the_results() {
    let mut server = Server::start();
    let url = server.socket_url();
    let lines = "redis.response_timeout = \"1s\"\n[topics.t]\n";
    let service = Service::start(&url, "lisa", lines).await;
    service.api.send("t", "x", &[]).await.expect(202);
    server.stop();
    let body: Vec<String> = (0..3)
        .map(|n| format!(r#"{{"payload":1,"id":"m{n}"}}"#))
        .collect();
    let results = tokio::time::timeout(SOON, post(&service, body.join("\n")));
    for (n, result) in results.await.unwrap().iter().enumerate() {
        assert_eq!(result["error"]["status"], 503, "{result}");
        assert_eq!(result["error"]["id"], format!("m{n}"));
    }
}
