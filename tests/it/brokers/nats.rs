//! The `nats` sink on JetStream.

use super::{RETRY, Scene, all_received, ids};
use crate::scenarios::Deployment;
use crate::scenarios::deployment::TOPIC;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::Config;
use futures_util::StreamExt;
use lisa_tests::Nats;
use serde_json::{Value, json};

fn sink(nats: &Nats, keys: &str) -> String {
    format!(r#"{{ type = "nats", url = "{}"{keys} }}"#, nats.url())
}

/// Makes the stream `due` with all subjects below `due`.
async fn stream(nats: &Nats) -> Context {
    let jetstream = nats.jetstream().await;
    let config = Config {
        name: "due".to_owned(),
        subjects: vec!["due.>".to_owned()],
        ..Config::default()
    };
    jetstream.create_stream(config).await.expect("a stream");
    jetstream
}

/// Returns all messages of the stream.
async fn read(jetstream: &Context) -> Vec<async_nats::jetstream::Message> {
    let mut stream = jetstream.get_stream("due").await.expect("a stream");
    let count = stream.info().await.expect("a stream").state.messages;
    let config = pull::Config {
        ack_policy: AckPolicy::None,
        ..pull::Config::default()
    };
    let consumer = stream.create_consumer(config).await.expect("a consumer");
    let messages = consumer.messages().await.expect("messages");
    let messages = messages.take(usize::try_from(count).unwrap());
    messages
        .map(|message| message.expect("a message"))
        .collect()
        .await
}

fn header(message: &async_nats::jetstream::Message, name: &str) -> String {
    let headers = message.headers.as_ref().expect("headers");
    headers
        .get(name)
        .map(|value| value.as_str().to_owned())
        .unwrap_or_default()
}

async fn stored(jetstream: &Context) -> Vec<String> {
    read(jetstream)
        .await
        .iter()
        .map(|message| header(message, "lisa-id"))
        .collect()
}

#[tokio::test]
async fn a_stored_message_carries_the_payload_headers_and_metadata() {
    let Some(nats) = Nats::start().await else {
        return;
    };
    let jetstream = stream(&nats).await;
    let scene = Scene::start(&sink(&nats, r#", subject = "due.{topic}.{header:to}""#)).await;
    let options = [
        ("Lisa-Id", "order-7"),
        ("Lisa-Header-To", "emea"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
    ];
    scene
        .relay
        .api
        .send(TOPIC, "seven", &options)
        .await
        .expect(202);
    scene.no_attempt_lost(1).await;
    let read = read(&jetstream).await;
    assert_eq!((read.len(), &*read[0].payload), (1, &b"seven"[..]));
    assert_eq!(read[0].subject.as_str(), "due.orders.emea");
    for (name, value) in [
        ("lisa-id", "order-7"),
        ("lisa-topic", "orders"),
        ("lisa-attempt", "1"),
        ("to", "emea"),
        ("Nats-Msg-Id", "orders:billing:order-7"),
    ] {
        assert_eq!(header(&read[0], name), value, "{name}");
    }
    assert!(header(&read[0], "traceparent").starts_with("00-0af7"));
}

/// Sends `count` messages and kills NATS twice while they are published: the stream has each of them once.
async fn killed(count: usize) {
    let Some(mut nats) = Nats::start().await else {
        return;
    };
    stream(&nats).await;
    let scene = Scene::start(&sink(&nats, r#", ack_timeout = "1s""#)).await;
    let third = count / 3;
    scene.send(ids(third)).await;
    for (sent, next) in [(third, 2 * third), (2 * third, count)] {
        scene.acked((sent - third + third / 10) as i64).await;
        nats.kill();
        // All that was sent before can be published by now.
        scene.send(ids(next).skip(sent)).await;
        scene.unavailable("connect").await;
        nats.restart().await;
    }
    scene.no_attempt_lost(count as i64).await;
    let stored = stored(&nats.jetstream().await).await;
    assert_eq!(stored.len(), count, "each once within the duplicate window");
    all_received(ids(count), &stored);
}

#[tokio::test]
async fn a_server_killed_twice_stores_every_message_once() {
    killed(5000).await;
}

#[tokio::test]
#[ignore = "takes minutes; `make brokers` runs it"]
async fn a_server_killed_twice_stores_each_of_forty_thousand_messages_once() {
    killed(40_000).await;
}

#[tokio::test]
async fn without_a_stream_messages_end_in_garbage_and_a_requeue_delivers_them() {
    let Some(nats) = Nats::start().await else {
        return;
    };
    let scene = Scene::with(&format!("max_attempts = 2\n{RETRY}"), &sink(&nats, "")).await;
    scene.send(ids(3)).await;
    scene.in_garbage(3).await;
    scene.garbage_says("no stream found").await;
    let jetstream = stream(&nats).await;
    let requeue = ["garbage", "requeue", TOPIC, "--all", "--yes"];
    let (code, swept) = scene.here.json(lisa_tests::Binary::Manager, &requeue).await;
    assert_eq!(code, 0, "{swept}");
    scene.nothing_lost(3).await;
    all_received(ids(3), &stored(&jetstream).await);
}

#[tokio::test]
async fn a_server_that_never_acknowledges_costs_attempts_and_loses_nothing() {
    let Some(mut nats) = Nats::start().await else {
        return;
    };
    let jetstream = stream(&nats).await;
    let scene = Scene::start(&sink(&nats, r#", ack_timeout = "500ms""#)).await;
    scene.send(ids(50)).await;
    scene.acked(50).await;
    nats.pause();
    scene.send((50..100).map(|n| format!("m-{n}"))).await;
    scene.retried().await;
    nats.resume();
    scene.nothing_lost(100).await;
    let stored = stored(&jetstream).await;
    assert_eq!(stored.len(), 100, "each once within the duplicate window");
    all_received(ids(100), &stored);
}

#[tokio::test]
async fn a_wrong_password_costs_no_attempt_and_is_reported_without_it() {
    let Some(nats) = Nats::builder().user("lisa", "right-1").start().await else {
        return;
    };
    let url = format!("nats://lisa:secret-7@127.0.0.1:{}", nats.port());
    let scene = Scene::start(&format!(r#"{{ type = "nats", url = "{url}" }}"#)).await;
    scene.send(ids(20)).await;
    scene.unavailable("authorization violation").await;
    scene.no_attempt().await;
    let log = scene.consumer.process.stderr();
    assert!(!log.contains("secret-7"), "{log}");
    scene.here.conserved().await;
}

#[tokio::test]
async fn only_the_message_that_is_too_large_is_rejected() {
    let Some(nats) = Nats::builder().config("max_payload: 2000").start().await else {
        return;
    };
    let jetstream = stream(&nats).await;
    let scene = Scene::start(&sink(&nats, "")).await;
    let mut messages: Vec<Value> = ids(200)
        .map(|id| json!({"id": id, "payload": "x"}))
        .collect();
    messages.insert(100, json!({"id": "large", "payload": "x".repeat(3000)}));
    scene.send_all(&messages).await;
    let stats = scene.in_garbage(1).await;
    assert_eq!(Deployment::counter(&stats, "acked"), 200, "{stats:#}");
    assert_eq!(Deployment::counter(&stats, "retried"), 0, "{stats:#}");
    all_received(ids(200), &stored(&jetstream).await);
    scene.here.conserved().await;
}
