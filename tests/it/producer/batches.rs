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
async fn a_byte_order_mark_before_a_batch_is_left_out() {
    let service = Service::shared("bom", "").await;
    let send = async |kind: &'static str, text: &str| {
        let request = service.api.request(Method::POST, BATCH);
        let request = request.header("content-type", kind);
        let response = request.body(format!("\u{feff}{text}")).send().await;
        response
            .expect("an answer")
            .text()
            .await
            .expect("all of it")
    };
    let (json, lines) = ("application/json", "application/x-ndjson");
    for (kind, text) in [
        (lines, "{\"payload\":1}\n{\"payload\":2}"),
        (json, "{\"payload\":1}\n{\"payload\":2}"),
        (json, "[{\"payload\":1},{\"payload\":2}]"),
    ] {
        let results = send(kind, text).await;
        assert_eq!(
            results.matches("\"outcome\":\"ready\"").count(),
            2,
            "{results}"
        );
    }
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

const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";

/// Sends a body as JSON and returns the status and the answer.
async fn post_array(service: &Service, body: impl Into<Body>) -> (u16, Value) {
    let request = service.api.request(Method::POST, BATCH);
    let request = request.header("Content-Type", JSON).body(body);
    let response = request.send().await.expect("an answer");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let kind = if status == 200 {
        JSON
    } else {
        "application/problem+json"
    };
    assert_eq!(headers["content-type"], kind);
    (status, response.json().await.expect("JSON"))
}

#[tokio::test]
async fn each_element_of_an_array_has_its_result_at_its_place_also_a_broken_one() {
    let service = Service::shared("array", "").await;
    let large = json!({ "payload_text": "x".repeat(1025) }).to_string();
    let endless = format!(r#"{{"payload_text":"{}"}}"#, "x".repeat(400 * 1024));
    let deep = format!("{}{}", "[".repeat(400), "]".repeat(400));
    let deep_payload = format!(r#"{{"payload":{deep},"delay":"1h","id":"deep"}}"#);
    let deep_option = format!(r#"{{"payload":1,"id":{deep}}}"#);
    let elements = [
        (
            r#"{"payload": {"b":1, "a":1.50} ,"delay":"1h","id":"json"}"#,
            "waiting",
        ),
        ("1", "invalid"),
        (r#"[1,null,null]"#, "invalid"),
        ("null", "invalid"),
        (r#""{}""#, "invalid"),
        ("{}", "invalid"),
        (&deep, "invalid"),
        (&deep_option, "invalid"),
        (&deep_payload, "waiting"),
        (&large, "too_large"),
        (&endless, "too_large"),
        (
            r#"{"payload_base64":"AP8=","delay":"1h","id":"binary"}"#,
            "waiting",
        ),
        (r#"{"payload":1,"id":"json"}"#, "duplicate"),
    ];
    let body = elements.map(|(element, _)| element).join(",\n  ");
    let (status, results) = post_array(&service, format!("\n[ {body} ]\n")).await;
    assert_eq!(status, 200, "{results}");
    let results = results.as_array().expect("an array");
    assert_eq!(results.len(), elements.len());
    for (result, (element, word)) in results.iter().zip(elements) {
        let answered = match result["error"].is_object() {
            true => &result["error"]["code"],
            false => &result["outcome"],
        };
        assert_eq!(answered, word, "{element:.80}: {result}");
    }
    let detail = results[10]["error"]["detail"].as_str().expect("a text");
    assert!(detail.starts_with("message 10 is longer than "), "{detail}");
    let detail = results[3]["error"]["detail"].as_str();
    assert_eq!(detail, Some("not a message: expected a JSON object"));
    let seen = service.api.get_json("/v1/topics/t/messages/json").await;
    assert_eq!(seen["payload"], r#"{"b":1, "a":1.50}"#);
    let seen = service.api.get_json("/v1/topics/t/messages/deep").await;
    assert_eq!(seen["payload"], deep);
    let seen = service.api.get_json("/v1/topics/t/messages/binary").await;
    assert_eq!(seen["payload_base64"], "AP8=");
}

#[tokio::test]
async fn the_longest_array_is_sent_in_order_and_a_longer_one_is_refused_whole() {
    let service = Service::shared("longest", "").await;
    let array = |range: std::ops::Range<usize>| {
        let message = |n| json!({ "payload": n, "delay": "1h", "id": format!("m{n}") });
        Value::from(range.map(message).collect::<Vec<_>>()).to_string()
    };
    let (status, refused) = post_array(&service, array(0..1_001)).await;
    assert_eq!((status, &refused["code"]), (413, &json!("too_large")));
    let (status, results) = post_array(&service, array(0..1_000)).await;
    assert_eq!(status, 200);
    let results = results.as_array().expect("an array");
    assert_eq!(results.len(), 1_000);
    for (n, result) in results.iter().enumerate() {
        // Not a duplicate: nothing of the longer array was sent.
        assert_eq!(
            (&result["id"], &result["outcome"]),
            (&json!(format!("m{n}")), &json!("waiting"))
        );
    }
}

#[tokio::test]
async fn a_body_of_json_that_is_no_array_is_refused_whole() {
    let service = Service::shared("noarray", "").await;
    let message = r#"{"payload":1,"delay":"1h","id":"never"}"#;
    let bodies = [
        String::new(),
        "null".to_owned(),
        r#""[]""#.to_owned(),
        format!("[{message}"),
        format!("[{message},]"),
        format!("[{message}]x"),
        format!("[{message}] [{message}]"),
    ];
    for body in bodies {
        let (status, refused) = post_array(&service, body.clone()).await;
        assert_eq!(
            (status, &refused["code"]),
            (422, &json!("invalid")),
            "{body}"
        );
        let detail = refused["detail"].as_str().expect("a text");
        assert!(
            detail.starts_with("body is not valid: "),
            "{body}: {detail}"
        );
    }
    let not_utf8 = [
        b"[{\"payload\":\"\xff\"},".as_slice(),
        message.as_bytes(),
        b"]",
    ]
    .concat();
    assert_eq!(post_array(&service, not_utf8).await.0, 422);
    let (status, refused) = post_array(&service, vec![b' '; 16 * 1024 * 1024 + 1]).await;
    assert_eq!((status, &refused["code"]), (413, &json!("too_large")));
    let unknown = service.api.get("/v1/topics/t/messages/never").await;
    unknown.expect(404);
}

#[tokio::test]
async fn lines_that_a_client_declares_as_json_are_lines() {
    let service = Service::shared("declared", "").await;
    let body = "\n{\"payload\":1,\"delay\":\"1h\"}\n\n{\"payload\"\n{\"payload\":2}\n";
    let request = service.api.request(Method::POST, BATCH).body(body);
    let request = request.header("Content-Type", JSON);
    let response = request.send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], LINES);
    let text = response.text().await.expect("all of it");
    let outcomes: Vec<bool> = text.lines().map(|line| line.contains("outcome")).collect();
    assert_eq!(outcomes, [true, false, true], "{text}");
    let too_many = "{}\n".repeat(1_001);
    let (status, refused) = post_array(&service, too_many).await;
    assert_eq!((status, &refused["code"]), (413, &json!("too_large")));
}

#[tokio::test]
async fn a_client_may_ask_for_the_other_format_of_the_results() {
    let service = Service::shared("formats", "").await;
    let message = r#"{"payload":1,"delay":"1h"}"#;
    for (sent, accepted, body, count) in [
        (LINES, JSON, format!("{message}\n{{\n{message}"), 3),
        (LINES, JSON, String::new(), 0),
        (JSON, LINES, format!("[{message},1,{message}]"), 3),
        (JSON, LINES, "[]".to_owned(), 0),
        (JSON, JSON, "[]".to_owned(), 0),
    ] {
        let request = service.api.request(Method::POST, BATCH).body(body);
        let request = request
            .header("Content-Type", sent)
            .header("Accept", accepted);
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], accepted);
        let text = response.text().await.expect("all of it");
        let results: Vec<Value> = match accepted {
            JSON => serde_json::from_str(&text).expect("an array"),
            _ => text
                .lines()
                .map(|line| serde_json::from_str(line).expect("JSON"))
                .collect(),
        };
        assert_eq!(results.len(), count, "{sent}, {accepted}: {text}");
        for (n, result) in results.iter().enumerate() {
            assert_eq!(result["error"].is_object(), n == 1, "{result}");
        }
    }
}
