//! Sends and changes that are refused, with the field at fault.

use super::Service;
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn bad_input_is_refused_with_the_field_at_fault() {
    let service = Service::shared("bad", "").await;
    let api = &service.api;
    for (name, value) in [
        ("Lisa-Delay", "90"),
        ("Lisa-Delay", "-1s"),
        ("Lisa-Deliver-At", "tomorrow"),
        ("Lisa-Deliver-At", "2026-11-21T09:30:00"),
        ("Lisa-Id", "a.b"),
        ("Lisa-Id", ""),
        ("Idempotency-Key", "a b"),
        ("Lisa-Max-Attempts", "0"),
        ("Lisa-Max-Attempts", "1001"),
        ("Lisa-Max-Attempts", "x"),
        ("Lisa-Header-a_b", "x"),
        ("Lisa-Header-Lisa-Callback-Hops", "8"),
        ("Lisa-Key", ""),
        ("Lisa-Key", &"k".repeat(257)),
        ("Lisa-Merge-Key", "a\tb"),
        ("Lisa-Priority", "2147483648"),
        ("Lisa-Priority", "1.5"),
        ("Lisa-Ttl", "0s"),
        ("Lisa-Ttl", "3600"),
        ("Lisa-Expires-At", "tomorrow"),
        ("Lisa-Retry", "fixed"),
        ("Lisa-Retry", r#"{"kind":"fixed","delay":"5"}"#),
        ("Lisa-Retry", r#"{"factor":0}"#),
        ("Lisa-Replace", "a.b"),
        ("Lisa-Dealy", "1h"),
    ] {
        let problem = api
            .send("t", "x", &[(name, value)])
            .await
            .expect(422)
            .json();
        assert_eq!(problem["code"], "invalid");
        let field = problem["errors"][0]["field"].as_str().unwrap();
        assert!(field.eq_ignore_ascii_case(name), "{name}: {problem}");
    }
    let far = api
        .send("t", "x", &[("Lisa-Delay", "2d")])
        .await
        .expect(422)
        .json();
    assert_eq!(far["errors"][0]["field"], "due");
    let both = [
        ("Lisa-Delay", "1s"),
        ("Lisa-Deliver-At", "2026-11-21T09:30:00Z"),
    ];
    api.send("t", "x", &both).await.expect(422);
    let both = [
        ("Lisa-Ttl", "1s"),
        ("Lisa-Expires-At", "2026-11-21T09:30:00Z"),
    ];
    api.send("t", "x", &both).await.expect(422);
    let itself = [("Lisa-Id", "a"), ("Lisa-Replace", "a")];
    let problem = api.send("t", "x", &itself).await.expect(422).json();
    assert_eq!(problem["errors"][0]["field"], "Lisa-Replace");
    api.send(".bad", "x", &[]).await.expect(422);
    let unknown = api.send("nosuch", "x", &[]).await.expect(404).json();
    assert_eq!(unknown["code"], "unknown_topic");
    let path = "/v1/topics/t/messages/nosuch";
    for (body, field, detail) in [
        (json!({}), "delay", "set delay or deliver_at"),
        (
            json!({ "delay": "1" }),
            "delay",
            "\"1\" is not a duration: ",
        ),
        (
            json!({ "delay": 5 }),
            "delay",
            "expected a duration with a unit",
        ),
        (
            json!({ "delay": "100000d" }),
            "delay",
            "\"100000d\" is too long: ",
        ),
        (
            json!({ "delay": "1s", "deliver_at": "2026-11-21T09:30:00Z" }),
            "deliver_at",
            "cannot be combined with delay",
        ),
        (
            json!({ "dely": "1s" }),
            "dely",
            "unknown field, did you mean delay? ",
        ),
        (json!([]), "body", "expected a JSON object"),
    ] {
        let refused = api
            .call(Method::PATCH, path, &body)
            .await
            .expect(422)
            .json();
        let errors = refused["errors"].as_array().expect("a list");
        let named = errors.iter().find(|error| error["field"] == field);
        let named = named.unwrap_or_else(|| panic!("{field}: {refused}"));
        assert!(
            named["detail"].as_str().unwrap().starts_with(detail),
            "{refused}"
        );
    }
    let large = api
        .send("t", "x".repeat(1025).as_str(), &[])
        .await
        .expect(413)
        .json();
    let detail = "payload of at least 1025 bytes; the topic's max_payload is 1024 bytes";
    assert_eq!(large["detail"], detail);
    assert_eq!(
        large["errors"],
        json!([{"field": "payload", "detail": detail}])
    );
    api.send(
        "t",
        "x",
        &[("Lisa-Id", "no-limit-of-its-own"), ("Lisa-Delay", "1h")],
    )
    .await
    .expect(202);
    let seen = api
        .get_json("/v1/topics/t/messages/no-limit-of-its-own")
        .await;
    assert_eq!(seen["max_attempts"], 16, "that of the topic");
    api.call(Method::PATCH, path, &json!({ "delay": "1s" }))
        .await
        .expect(404);
    api.call(Method::DELETE, path, &Value::Null)
        .await
        .expect(404);
    api.get(path).await.expect(404);
    let now = format!("{path}/deliver-now");
    api.call(Method::POST, &now, &Value::Null).await.expect(404);
    for (method, path) in [
        (Method::GET, path),
        (Method::DELETE, path),
        (Method::POST, &now),
    ] {
        let request = api.request(method, path).header("Lisa-Key", "a\tb");
        assert_eq!(request.send().await.unwrap().status(), 422);
    }
    api.get("/v1/topics/t/messages/a.b").await.expect(422);
    api.get("/v1/topics/nosuch/messages/a").await.expect(404);
    let large = api
        .send("t", vec![b'x'; 1025], &[])
        .await
        .expect(413)
        .json();
    assert_eq!(large["code"], "too_large");
    api.send("t", vec![b'x'; 1024], &[]).await.expect(202);
}
