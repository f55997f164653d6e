//! The routes of single messages.

use super::{SOON, Service};
use futures_util::future::join_all;
use lisa_core::broker::Verdict;
use lisa_core::topic::Shard;
use lisa_tests::http::Reply;
use lisa_tests::{Api, Binary, Relay, Server, Stopwatch, eventually, free_port, relay};
use redis::{FromRedisValue, cmd};
use reqwest::{Body, Method};
use serde_json::{Value, json};
use std::time::Duration;

#[tokio::test]
async fn a_message_is_accepted_seen_rescheduled_and_cancelled() {
    let service = Service::shared("roundtrip", "").await;
    let api = &service.api;
    let headers = [
        ("Lisa-Delay", "1h"),
        ("Lisa-Id", "order:7"),
        ("Lisa-Max-Attempts", "3"),
        ("Lisa-Retry", r#"{"kind": "fixed", "delay": "5s"}"#),
        ("Lisa-Header-Tenant", "a"),
        ("Content-Type", "application/json"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
    ];
    let sent = api.send("t", r#"{"a": 1}"#, &headers).await.expect(202);
    assert_eq!(sent.header("location"), "/v1/topics/t/messages/order:7");
    let receipt = sent.json();
    assert_eq!(receipt["id"], "order:7");
    assert_eq!(receipt["topic"], "t");
    assert_eq!(receipt["outcome"], "waiting");
    let again = api.send("t", "other", &headers).await.expect(202).json();
    assert_eq!(again["outcome"], "duplicate");
    assert_eq!(again["due_at"], receipt["due_at"]);
    let metrics = api.get("/metrics").await.expect(200).body;
    for outcome in ["waiting", "duplicate"] {
        let line = format!("lisa_messages_sent_total{{topic=\"t\",outcome=\"{outcome}\"}} 1");
        assert!(metrics.contains(&line), "{metrics}");
    }
    let path = sent.header("location");
    let seen = api.get_json(path).await;
    assert_eq!(seen["state"], "waiting");
    assert_eq!(seen["due_at"], receipt["due_at"]);
    assert_eq!(seen["payload"], r#"{"a": 1}"#);
    assert_eq!(seen["max_attempts"], 3);
    let policy = json!({ "kind": "fixed", "delay": "5s", "jitter": 0.2 });
    assert_eq!(seen["retry"], policy);
    assert_eq!(seen["attempt"], 1);
    assert_eq!(seen["headers"]["tenant"], "a");
    assert_eq!(seen["headers"]["content-type"], "application/json");
    assert_eq!(seen["headers"].as_object().unwrap().len(), 3, "{seen}");
    let due = json!({ "deliver_at": "2033-01-01T00:00:00Z" });
    api.call(Method::PATCH, path, &due).await.expect(422);
    let moved = api
        .call(Method::PATCH, path, &json!({ "delay": "2h" }))
        .await
        .expect(200)
        .json();
    assert_eq!(moved["outcome"], "rescheduled");
    assert!(moved["due_at"].as_str() > receipt["due_at"].as_str());
    let now = format!("{path}/deliver-now");
    let now = api.call(Method::POST, &now, &Value::Null).await;
    let now = now.expect(200).json();
    assert_eq!(now["outcome"], "rescheduled");
    assert!(now["due_at"].as_str() < receipt["due_at"].as_str());
    let cancelled = api
        .call(Method::DELETE, path, &Value::Null)
        .await
        .expect(200)
        .json();
    assert_eq!(cancelled["outcome"], "cancelled");
    assert_eq!(cancelled["payload"], r#"{"a": 1}"#);
    let gone = api.get(path).await.expect(404).json();
    assert_eq!(gone["code"], "not_found");
    assert_eq!(gone["ended"], "cancelled");
    api.call(Method::DELETE, path, &Value::Null)
        .await
        .expect(200);
}

#[tokio::test]
async fn a_send_of_a_cancelled_id_is_refused_unless_it_is_sent_even_so() {
    let service = Service::shared("again", "").await;
    let api = &service.api;
    let send = [("Lisa-Id", "a"), ("Lisa-Delay", "1h")];
    let again = [("Lisa-Even-If-Cancelled", "true"), send[0], send[1]];
    api.send("t", "x", &again).await.expect(202);
    let path = "/v1/topics/t/messages/a";
    api.call(Method::DELETE, path, &Value::Null)
        .await
        .expect(200);
    let refused = api.send("t", "x", &send).await.expect(409).json();
    let said = ["code", "ended", "id"].map(|member| &refused[member]);
    assert_eq!(said, ["cancelled", "cancelled", "a"]);
    let batch = "/v1/topics/t/messages:batch";
    let line = |more: &str| format!(r#"{{"payload":1,"id":"a","delay":"1h"{more}}}"#);
    let lines = [line(""), line(r#","even_if_cancelled":false"#)].join("\n");
    let request = api.request(Method::POST, batch).body(lines);
    let answer = request.send().await.unwrap().text().await.unwrap();
    for line in answer.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["error"]["code"], "cancelled", "{line}");
    }
    let wrong = [("Lisa-Even-If-Cancelled", "yes"), send[0]];
    api.send("t", "x", &wrong).await.expect(422);
    for outcome in ["waiting", "duplicate"] {
        let sent = api.send("t", "y", &again).await.expect(202).json();
        assert_eq!(sent["outcome"], outcome);
    }
    assert_eq!(api.get_json(path).await["payload"], "y");
}

#[tokio::test]
async fn a_merged_id_is_answered_with_the_message_that_stands_for_it() {
    let service = Service::shared("survivor", "").await;
    let api = &service.api;
    let sent = async |id| {
        let headers = [
            ("Lisa-Id", id),
            ("Lisa-Merge-Key", "m"),
            ("Lisa-Delay", "1h"),
        ];
        api.send("t", id, &headers).await.expect(202).json()
    };
    sent("s1").await;
    for _ in 0..2 {
        let merged = sent("s2").await;
        let said = ["outcome", "id"].map(|member| &merged[member]);
        assert_eq!(said, ["merged", "s1"]);
        assert!(merged["due_at"].is_string(), "{merged}");
    }
    let path = "/v1/topics/t/messages/s2";
    let now = format!("{path}/deliver-now");
    for (method, path) in [
        (Method::GET, path),
        (Method::DELETE, path),
        (Method::POST, &now),
    ] {
        let gone = api
            .call(method, path, &Value::Null)
            .await
            .expect(404)
            .json();
        let said = ["code", "ended", "into"].map(|member| &gone[member]);
        assert_eq!(said, ["not_found", "merged", "s1"]);
    }
    // Whatever the state of that message, a repeat names it and says that it does not wait.
    let survivor = "/v1/topics/t/messages/s1";
    let cancelled = api.call(Method::DELETE, survivor, &Value::Null).await;
    cancelled.expect(200);
    let merged = sent("s2").await;
    let said = ["outcome", "id", "due_at", "ended"].map(|member| &merged[member]);
    let null = &Value::Null;
    assert_eq!(said, [&json!("merged"), &json!("s1"), null, null]);
    let headers = [("Lisa-Id", "s1"), ("Lisa-Merge-Key", "m")];
    let refused = api.send("t", "s1", &headers).await.expect(409).json();
    assert_eq!(refused["code"], "cancelled");
}

#[tokio::test]
async fn an_expiry_before_the_end_of_the_delay_is_refused_unless_it_may_be_a_repeat() {
    let service = Service::shared("worthless", "").await;
    let api = &service.api;
    let soon = [
        ("Lisa-Delay", "1h"),
        ("Lisa-Expires-At", "2001-01-01T00:00:00Z"),
    ];
    let refused = api.send("t", "x", &soon).await.expect(422).json();
    assert_eq!(refused["errors"][0]["field"], "expires_at");
    let named = [soon[0], soon[1], ("Lisa-Id", "mine")];
    api.send("t", "x", &named).await.expect(202);
}

#[tokio::test]
async fn an_empty_or_binary_body_is_a_message_and_the_past_is_now() {
    let service = Service::shared("bodies", "").await;
    let past = [
        ("Lisa-Deliver-At", "2001-01-01T00:00:00Z"),
        ("Lisa-Id", "empty"),
    ];
    let sent = service.api.send("t", "", &past).await.expect(202).json();
    assert_eq!(sent["outcome"], "ready");
    assert_eq!(
        service.api.get_json("/v1/topics/t/messages/empty").await["payload"],
        ""
    );
    let id = [("Lisa-Id", "binary")];
    service.api.send("t", [0, 255], &id).await.expect(202);
    let seen = service.api.get_json("/v1/topics/t/messages/binary").await;
    assert_eq!(seen["payload_base64"], "AP8=");
    assert!(seen.get("payload").is_none());
}

#[tokio::test]
async fn a_message_that_is_ready_or_in_garbage_stays_as_it_is() {
    let server = Server::shared();
    let connection = relay::connection(server).await;
    let relay = Relay::on(server, &connection, "conflict", relay::settings()).await;
    relay.put_in_garbage("in_garbage").await;
    relay.send(&[relay::message("ready", Duration::ZERO)]).await;
    let namespace = relay.broker().namespace().to_string();
    let service = Service::start(&server.socket_url(), &namespace, "").await;
    for (id, code) in [("ready", "in_flight"), ("in_garbage", "garbage")] {
        let path = format!("/v1/topics/t/messages/{id}");
        let cancel = service.api.call(Method::DELETE, &path, &Value::Null).await;
        assert_eq!(cancel.expect(409).json()["code"], code);
        let delay = json!({ "delay": "1s" });
        let moved = service.api.call(Method::PATCH, &path, &delay).await;
        assert_eq!(moved.expect(409).json()["code"], code);
    }
    let seen = service
        .api
        .get_json("/v1/topics/t/messages/in_garbage")
        .await;
    assert_eq!(seen["state"], "garbage");
    assert_eq!(
        (&seen["reason"], &seen["error"]),
        (&"rejected".into(), &"no good".into())
    );
    assert!(
        seen["garbage_at"].is_string() && seen.get("due_at").is_none(),
        "{seen}"
    );
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_message_in_flight_names_its_consumer() {
    let service = Service::shared("flight", "").await;
    service
        .api
        .send("t", "x", &[("Lisa-Id", "a")])
        .await
        .expect(202);
    let topic = service.broker.topic(&"t".parse().unwrap()).await.unwrap();
    let mut reader = service.broker.connection().any().reader().await.unwrap();
    let (shard, group) = (Shard::new(0), &topic.groups()[0]);
    let block = Duration::from_secs(5);
    let read = service
        .broker
        .read(&mut reader, &topic, shard, group, "w1", 1, block)
        .await;
    let read = read.unwrap().pop().unwrap();
    let seen = service.api.get_json("/v1/topics/t/messages/a").await;
    assert_eq!(
        (&seen["state"], &seen["consumer"]),
        (&json!("in_flight"), &json!("w1"))
    );
    let settlement = relay::settlement(&read, Verdict::Ack);
    service
        .broker
        .settle(&topic, shard, group, &[settlement])
        .await
        .unwrap();
    let gone = service
        .api
        .get("/v1/topics/t/messages/a")
        .await
        .expect(404)
        .json();
    assert!(gone["detail"].as_str().unwrap().contains("acked"), "{gone}");
}

#[tokio::test]
async fn a_token_does_what_its_scopes_allow() {
    // The hashes of "s", "r" and "b".
    let tokens = r#"
[auth]
tokens = [
    { name = "sender", sha256 = "043a718774c572bd8a25adbeb1bfcd5c0256ae11cecf9f9c3f925d0e52beaf89", scopes = ["send"] },
    { name = "reader", sha256 = "454349e422f05297191ead13e21d3db520e5abef52055e4964b82fb213f593a1", scopes = ["read"] },
    { name = "both", sha256 = "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d", scopes = ["send", "read"] },
]
"#;
    let service = Service::shared("scopes", tokens).await;
    let sender = service.api.clone().token("s");
    let reader = service.api.clone().token("r");
    let path = "/v1/topics/t/messages/a";
    let send = async |api: &Api| {
        let headers = [("Lisa-Id", "a"), ("Lisa-Delay", "1h")];
        api.send("t", "x", &headers).await.status
    };
    assert_eq!(send(&service.api).await, 401);
    assert_eq!(send(&reader).await, 403);
    assert_eq!(send(&sender).await, 202);
    sender.get(path).await.expect(403);
    reader.get(path).await.expect(200);
    reader
        .call(Method::DELETE, path, &Value::Null)
        .await
        .expect(403);
    reader
        .call(Method::PATCH, path, &json!({ "delay": "1h" }))
        .await
        .expect(403);
    let now = format!("{path}/deliver-now");
    reader
        .call(Method::POST, &now, &Value::Null)
        .await
        .expect(403);
    let batch = "/v1/topics/t/messages:batch";
    reader
        .call(Method::POST, batch, &json!([{ "payload": 1 }]))
        .await
        .expect(403);
    sender
        .call(Method::POST, batch, &json!([{ "payload": 1 }]))
        .await
        .expect(200);
    // A payload needs the scope `read`, also from a cancel.
    let cancel = async |api: &Api| {
        let cancelled = api.call(Method::DELETE, path, &Value::Null).await;
        let cancelled = cancelled.expect(200).json();
        assert_eq!(cancelled["outcome"], "cancelled");
        (cancelled["payload"].clone(), cancelled["headers"].clone())
    };
    assert_eq!(cancel(&sender).await, (Value::Null, Value::Null));
    let both = service.api.clone().token("b");
    let again = [("Lisa-Id", "a"), ("Lisa-Even-If-Cancelled", "true")];
    both.send("t", "x", &[&again[..], &[("Lisa-Delay", "1h")]].concat())
        .await
        .expect(202);
    let (payload, headers) = cancel(&both).await;
    assert!(payload == "x" && headers.is_object(), "{payload} {headers}");
}

async fn redis<T: FromRedisValue>(server: &Server, command: &[&str]) -> T {
    let mut connection = server.connection().await;
    let mut asked = cmd(command[0]);
    asked.arg(&command[1..]);
    asked.query_async(&mut connection).await.expect("a reply")
}

/// Returns the number of commands that a server has run, also in scripts.
async fn commands(server: &Server) -> u64 {
    let stats: String = redis(server, &["INFO", "commandstats"]).await;
    let calls = stats.lines().filter_map(|line| {
        let (_, calls) = line.split_once(":calls=")?;
        calls.split(',').next()?.parse::<u64>().ok()
    });
    calls.sum()
}

#[tokio::test]
async fn a_search_of_all_shards_takes_few_commands_and_each_client_has_a_share_of_them() {
    let server = Server::start();
    let lines = "[topics.t]\nshards = 64\n";
    let service = Service::start(&server.socket_url(), "search", lines).await;
    service
        .api
        .send("t", "x", &[("Lisa-Delay", "1h")])
        .await
        .expect(202);
    let path = "/v1/topics/t/messages/nobody";
    let cancel = async || service.api.call(Method::DELETE, path, &Value::Null).await;
    cancel().await.expect(404);
    let before = commands(&server).await;
    cancel().await.expect(404);
    let count = commands(&server).await - before;
    assert!(count <= 64 * 16, "{count} commands");

    // While Redis runs no script that may write, a client gets as many searches as its share.
    let () = redis(&server, &["CLIENT", "PAUSE", "600000", "WRITE"]).await;
    let cancels = join_all((0..12).map(|_| cancel())).await;
    let refused = |reply: &Reply| reply.body.contains("searches of this client");
    assert!(cancels.iter().any(refused), "{cancels:?}");
    let keyed = service.api.request(Method::DELETE, path);
    let keyed = keyed.header("Lisa-Key", "k").send().await.expect("sent");
    let keyed = keyed.text().await.expect("an answer");
    assert!(!keyed.contains("searches"), "{keyed}");
    let () = redis(&server, &["CLIENT", "UNPAUSE"]).await;
}

#[tokio::test]
async fn the_description_names_every_route() {
    let service = Service::shared("openapi", "").await;
    let description = service.api.get_json("/openapi.json").await;
    let paths = &description["paths"];
    assert!(paths["/v1/topics/{topic}/messages"]["post"].is_object());
    assert!(paths["/v1/topics/{topic}/messages:batch"]["post"].is_object());
    for method in ["get", "delete", "patch"] {
        assert!(
            paths["/v1/topics/{topic}/messages/{id}"][method].is_object(),
            "{method}"
        );
    }
    assert!(paths["/v1/topics/{topic}/messages/{id}/deliver-now"]["post"].is_object());
}

#[tokio::test]
async fn without_redis_requests_are_refused_within_five_seconds_and_served_when_it_is_back() {
    let mut server = Server::start();
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let config = format!("redis.url = \"{}\"\n[topics.t]\n", server.url());
    let _process = Binary::Producer
        .with(["run", "--listen", &listen])
        .config(&config)
        .start();
    let api = Api::new(port);
    let ready = async |expected: u16| {
        eventually(SOON, async || match api.try_get("/readyz").await {
            Some(reply) if reply.status == expected => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    };
    ready(200).await;
    api.send("t", "x", &[]).await.expect(202);
    server.stop();
    let watch = Stopwatch::start();
    let refused = api
        .send("t", "x", &[("Lisa-Id", "again")])
        .await
        .expect(503);
    watch.assert_within(Duration::from_secs(5), Duration::from_secs(2));
    assert!(!refused.header("retry-after").is_empty());
    assert_eq!(refused.json()["id"], "again");
    ready(503).await;
    server.restart();
    eventually(SOON, async || {
        match api.send("t", "x", &[("Lisa-Id", "again")]).await {
            reply if reply.status == 202 => Ok(()),
            reply => Err(format!("{reply:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn a_huge_body_is_refused_in_bounded_memory() {
    let server = Server::shared();
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let (url, namespace) = (server.url(), server.namespace("huge"));
    let config = format!("namespace = \"{namespace}\"\nredis.url = \"{url}\"\n[topics.t]\n");
    let process = Binary::Producer
        .with(["run", "--listen", &listen])
        .config(&config)
        .start();
    let api = Api::new(port);
    eventually(SOON, async || match api.try_get("/readyz").await {
        Some(reply) if reply.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let peak = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid().unwrap()));
        let status = status.unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = peak();
    // Of no declared length, so that the producer must count.
    let chunks = (0..200).map(|_| Ok::<_, std::io::Error>(vec![b'x'; 1024 * 1024]));
    let body = Body::wrap_stream(futures_util::stream::iter(chunks));
    let request = api
        .request(Method::POST, "/v1/topics/t/messages")
        .body(body);
    // A client that is still writing may see the connection end instead of the answer.
    if let Ok(response) = request.send().await {
        assert_eq!(response.status(), 413);
    }
    let grown = peak() - before;
    assert!(grown < 32 * 1024, "the peak grew by {grown} KiB");
    api.send("t", "x", &[]).await.expect(202);
}
