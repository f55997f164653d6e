//! Mistakes of HTTP clients: each has its status and its code, and none leaves a trace.

use super::Deployment;
use super::deployment::TOPIC;
use lisa_tests::Api;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

/// The topic takes payloads of up to 1 KiB, a day ahead.
pub(super) const SETTINGS: &str = "max_payload = \"1KiB\"\nmax_delay = \"1d\"";
pub(super) const MESSAGES: &str = "/v1/topics/orders/messages";
pub(super) const BATCH: &str = "/v1/topics/orders/messages:batch";

/// Sends a request; a refused one must have a problem document, and the expected status and code.
pub(super) async fn refused(what: &str, request: RequestBuilder, status: u16, code: &str) -> Value {
    let response = request
        .send()
        .await
        .unwrap_or_else(|error| panic!("{what}: {error:?}"));
    let seen = response.status().as_u16();
    let kind = response.headers().get("content-type").cloned();
    let body = response.text().await.unwrap_or_default();
    assert_eq!(seen, status, "{what}: {body}");
    assert_eq!(
        kind.expect(what),
        "application/problem+json",
        "{what}: {body}"
    );
    let problem: Value =
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{what}: {error}: {body}"));
    assert_eq!(problem["code"], code, "{what}: {problem}");
    assert_eq!(problem["status"], status, "{what}: {problem}");
    assert!(
        problem["detail"]
            .as_str()
            .is_some_and(|text| !text.is_empty()),
        "{what}: {problem}"
    );
    problem
}

#[tokio::test]
async fn every_bad_request_is_refused_with_its_own_code_and_leaves_no_trace() {
    let here = Deployment::start(SETTINGS).await;
    let producer = here.producer().await;
    let api = &producer.api;
    let before = here.snapshot().await;

    let over = "x".repeat(1025);
    let long_id = "x".repeat(65);
    let headers: &[(&str, &str, &str)] = &[
        ("a delay without a unit", "Lisa-Delay", "90"),
        ("a delay in words", "Lisa-Delay", "soon"),
        ("a negative delay", "Lisa-Delay", "-5s"),
        ("an empty delay", "Lisa-Delay", ""),
        ("a delay beyond the topic's bound", "Lisa-Delay", "25h"),
        ("an absurd delay", "Lisa-Delay", "99999999999999999999d"),
        ("an instant that is none", "Lisa-Deliver-At", "tomorrow"),
        (
            "an instant without an offset",
            "Lisa-Deliver-At",
            "2026-11-21T09:30:00",
        ),
        (
            "an instant beyond the topic's bound",
            "Lisa-Deliver-At",
            "9999-12-31T23:59:59Z",
        ),
        ("an id with a space", "Lisa-Id", "a b"),
        ("an id with a dot", "Lisa-Id", "a.b"),
        ("an id that is too long", "Lisa-Id", &long_id),
        ("an empty id", "Lisa-Id", ""),
        ("an idempotency key that is no id", "Idempotency-Key", "a/b"),
        ("no attempts", "Lisa-Max-Attempts", "0"),
        ("too many attempts", "Lisa-Max-Attempts", "1001"),
        ("attempts in words", "Lisa-Max-Attempts", "many"),
        ("an empty ordering key", "Lisa-Key", ""),
        ("an empty merge key", "Lisa-Merge-Key", ""),
        ("a priority beyond i32", "Lisa-Priority", "2147483648"),
        ("a ttl without a unit", "Lisa-Ttl", "60"),
        (
            "an expiry that is no instant",
            "Lisa-Expires-At",
            "tomorrow",
        ),
        (
            "a retry policy of no kind",
            "Lisa-Retry",
            r#"{"kind": "often"}"#,
        ),
        ("an id to replace that is none", "Lisa-Replace", "a/b"),
        ("a misspelt option", "Lisa-Dealy", "5s"),
        ("a header without a name", "Lisa-Header-", "x"),
    ];
    for (what, name, value) in headers {
        let request = api
            .request(Method::POST, MESSAGES)
            .header(*name, *value)
            .body("x");
        let problem = refused(what, request, 422, "invalid").await;
        let named = problem["errors"][0]["field"].as_str().unwrap_or_default();
        // A value that only the topic refuses is named by its meaning, not by where it was written.
        let known = named.eq_ignore_ascii_case(name) || named == "due";
        assert!(known, "{what}: {problem}");
    }
    let post = |path: &str| api.request(Method::POST, path);
    let both = post(MESSAGES).header("Lisa-Delay", "5s");
    let both = both.header("Lisa-Deliver-At", "2026-11-21T09:30:00Z");
    let bytes = reqwest::header::HeaderValue::from_bytes(b"\xff\xfe").expect("a header value");
    let cases = [
        ("both due times", both, 422, "invalid"),
        (
            "an option twice",
            post(MESSAGES).header("Lisa-Id", "a").header("Lisa-Id", "b"),
            422,
            "invalid",
        ),
        (
            "bytes in a header",
            post(MESSAGES).header("Lisa-Header-Name", bytes),
            422,
            "invalid",
        ),
        (
            "a payload that is too large",
            post(MESSAGES).body(over.clone()),
            413,
            "too_large",
        ),
        (
            "an unknown topic",
            post("/v1/topics/other/messages"),
            404,
            "unknown_topic",
        ),
        (
            "a name that no topic has",
            post("/v1/topics/Or%20ders/messages"),
            422,
            "invalid",
        ),
        (
            "a batch to an unknown topic",
            post("/v1/topics/other/messages:batch"),
            404,
            "unknown_topic",
        ),
        (
            "options beside a batch",
            post(BATCH).header("Lisa-Delay", "5s"),
            422,
            "invalid",
        ),
        (
            "an unknown route",
            post("/v1/topic/orders/messages"),
            404,
            "unknown_route",
        ),
        (
            "another unknown route",
            api.request(Method::GET, "/"),
            404,
            "unknown_route",
        ),
        (
            "a wrong method",
            api.request(Method::PUT, MESSAGES),
            405,
            "method_not_allowed",
        ),
        (
            "a get of nothing",
            api.request(Method::GET, "/v1/topics/orders/messages/nobody"),
            404,
            "not_found",
        ),
        (
            "a get of a bad id",
            api.request(Method::GET, "/v1/topics/orders/messages/a.b"),
            422,
            "invalid",
        ),
    ];
    for (what, request, status, code) in cases {
        refused(what, request, status, code).await;
    }
    let due = |body: &str| {
        let request = api.request(Method::PATCH, "/v1/topics/orders/messages/nobody");
        request
            .header("Content-Type", "application/json")
            .body(body.to_owned())
    };
    for (what, body) in [
        ("no due time", "{}"),
        (
            "both due times in a change",
            r#"{"delay": "5s", "deliver_at": "2026-11-21T09:30:00Z"}"#,
        ),
        ("a bad delay in a change", r#"{"delay": "soon"}"#),
        ("an unknown key in a change", r#"{"dealy": "5s"}"#),
        ("a change that is no JSON", "{"),
    ] {
        refused(what, due(body), 422, "invalid").await;
    }
    let after = here.snapshot().await;
    assert_eq!(before.diff(&after), "");
    here.conserved().await;
}

#[tokio::test]
async fn a_batch_takes_its_good_lines_and_says_of_each_bad_one_what_is_wrong() {
    let here = Deployment::start(SETTINGS).await;
    let producer = here.producer().await;
    let long = format!("{{\"payload_text\": \"{}\"}}", "x".repeat(1025));
    let lines = [
        (r#"{"payload": {"order": 7}, "id": "first"}"#, ""),
        (r#"{"payload": "#, "invalid"),
        ("not json", "invalid"),
        ("[1, 2]", "invalid"),
        (r#"{"delay": "5s"}"#, "invalid"),
        (r#"{"payload": 1, "payload_text": "1"}"#, "invalid"),
        (
            r#"{"payload": 1, "delay": "5s", "deliver_at": "2026-11-21T09:30:00Z"}"#,
            "invalid",
        ),
        (r#"{"payload": 1, "delay": "25h"}"#, "invalid"),
        (r#"{"payload": 1, "id": "a.b"}"#, "invalid"),
        (r#"{"payload": 1, "headers": {"a b": "x"}}"#, "invalid"),
        (r#"{"payload": 1, "key": ""}"#, "invalid"),
        (r#"{"payload_base64": "%%%"}"#, "invalid"),
        (long.as_str(), "too_large"),
        (r#"{"payload_base64": "AP8=", "id": "last"}"#, ""),
        (r#"{"payload": {"order": 7}, "id": "first"}"#, ""),
    ];
    let body: String = lines.iter().map(|(line, _)| format!("{line}\n")).collect();
    let request = producer.api.request(Method::POST, BATCH).body(body);
    let response = request.send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    let body = response.text().await.expect("a body");
    let results: Vec<Value> = body
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect();
    assert_eq!(results.len(), lines.len(), "{body}");
    for ((line, code), result) in lines.iter().zip(&results) {
        if code.is_empty() {
            assert!(result["outcome"].is_string(), "{line}: {result}");
        } else {
            assert_eq!(result["error"]["code"], *code, "{line}: {result}");
        }
    }
    assert_eq!(results[lines.len() - 1]["outcome"], "duplicate");
    let stats = here.stats().await;
    assert_eq!(Deployment::counter(&stats, "accepted"), 2, "{stats:#}");
    here.conserved().await;
}

#[tokio::test]
async fn any_bytes_up_to_the_limit_are_a_payload_also_none() {
    let here = Deployment::start(SETTINGS).await;
    let producer = here.producer().await;
    let api = &producer.api;
    let binary: Vec<u8> = (0..=255).collect();
    let send = async |id: &str, payload: Vec<u8>| {
        let options = [("Lisa-Id", id), ("Lisa-Delay", "1h")];
        api.send(TOPIC, payload, &options).await.expect(202);
        api.get_json(&format!("{MESSAGES}/{id}")).await
    };
    assert_eq!(send("empty", Vec::new()).await["payload"], "");
    assert_eq!(
        send("full", vec![b'x'; 1024]).await["payload"],
        "x".repeat(1024)
    );
    let seen = send("binary", binary.clone()).await;
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(binary);
    assert_eq!(seen["payload_base64"], json!(text), "{seen}");
    here.conserved().await;
}

/// Every listener refuses a route that no role has in the same way.
#[tokio::test]
async fn a_manager_refuses_what_it_does_not_know() {
    let here = Deployment::start(SETTINGS).await;
    let manager = here.manager().await;
    let api: &Api = &manager.api;
    let get = |path: &str| api.request(Method::GET, path);
    for (what, request, status, code) in [
        (
            "an unknown topic",
            get("/v1/topics/other"),
            404,
            "unknown_topic",
        ),
        (
            "an unknown group",
            api.request(
                Method::POST,
                "/v1/topics/orders/groups/other/garbage/requeue",
            )
            .body("{\"all\": true}"),
            404,
            "not_found",
        ),
        (
            "an unknown state",
            get("/v1/topics/orders/messages?state=lost"),
            422,
            "invalid",
        ),
        (
            "an unknown parameter",
            get("/v1/topics/orders/messages?stat=ready"),
            422,
            "invalid",
        ),
        (
            "a limit beyond the bound",
            get("/v1/topics/orders/messages?limit=1001"),
            422,
            "invalid",
        ),
        (
            "a cursor of nowhere",
            get("/v1/topics/orders/messages?cursor=x"),
            422,
            "invalid",
        ),
        (
            "a cursor behind the last possible entry",
            get(
                "/v1/topics/orders/messages?state=ready&cursor=0:18446744073709551615-18446744073709551615",
            ),
            422,
            "invalid",
        ),
        (
            "a cursor behind the last possible offset",
            get("/v1/topics/orders/messages?state=parked&cursor=0:18446744073709551615"),
            422,
            "invalid",
        ),
        (
            "a cursor before the first possible entry",
            get("/v1/audit?cursor=0-0"),
            422,
            "invalid",
        ),
        (
            "an unknown job",
            api.request(Method::POST, "/v1/jobs/dance/run"),
            404,
            "not_found",
        ),
        ("an unknown route", get("/v1/nothing"), 404, "unknown_route"),
        (
            "a wrong method",
            api.request(Method::DELETE, "/v1/stats"),
            405,
            "method_not_allowed",
        ),
        (
            "the producer's routes",
            api.request(Method::DELETE, "/v1/topics/orders/messages/a"),
            405,
            "method_not_allowed",
        ),
        (
            "nothing selected",
            api.request(
                Method::POST,
                "/v1/topics/orders/groups/billing/garbage/purge",
            )
            .body("{}"),
            422,
            "invalid",
        ),
    ] {
        refused(what, request, status, code).await;
    }
    here.conserved().await;
}
