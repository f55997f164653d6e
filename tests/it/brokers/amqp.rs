//! The `amqp` sink on RabbitMQ.

use super::{RETRY, SOON, Scene, all_received, ids, shows};
use crate::scenarios::Deployment;
use crate::scenarios::deployment::TOPIC;
use lapin::message::BasicGetMessage;
use lapin::options::{
    BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use lisa_tests::{RabbitMq, eventually};
use serde_json::{Value, json};

/// A channel of a test, on its own connection.
pub(super) struct Peer {
    pub(super) channel: Channel,
    _connection: Connection,
}

impl Peer {
    pub(super) async fn new(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default())
            .await
            .unwrap();
        Self {
            channel: connection.create_channel().await.unwrap(),
            _connection: connection,
        }
    }

    /// Declares a durable queue.
    pub(super) async fn queue(&self, name: &str) {
        let options = QueueDeclareOptions::durable();
        self.channel
            .queue_declare(name.into(), options, FieldTable::default())
            .await
            .unwrap();
    }

    async fn exchange(&self, name: &str) {
        let options = ExchangeDeclareOptions {
            durable: true,
            ..Default::default()
        };
        let declared = self.channel.exchange_declare(
            name.into(),
            ExchangeKind::Direct,
            options,
            FieldTable::default(),
        );
        declared.await.unwrap();
    }

    async fn bind(&self, queue: &str, exchange: &str, key: &str) {
        let (queue, exchange, key) = (queue.into(), exchange.into(), key.into());
        let options = QueueBindOptions::default();
        self.channel
            .queue_bind(queue, exchange, key, options, FieldTable::default())
            .await
            .unwrap();
    }

    /// Takes all messages off a queue; returns their ids.
    async fn ids(&self, queue: &str) -> Vec<String> {
        self.take(queue).await.iter().map(id).collect()
    }

    /// Takes all messages off a queue.
    pub(super) async fn take(&self, queue: &str) -> Vec<BasicGetMessage> {
        let mut taken = Vec::new();
        let options = BasicGetOptions { no_ack: true };
        while let Some(message) = self.channel.basic_get(queue.into(), options).await.unwrap() {
            taken.push(message);
        }
        taken
    }
}

pub(super) fn id(message: &BasicGetMessage) -> String {
    message
        .properties
        .message_id()
        .as_ref()
        .unwrap()
        .to_string()
}

pub(super) fn header(message: &BasicGetMessage, name: &str) -> String {
    let headers = message.properties.headers().as_ref().unwrap().inner();
    let value = headers
        .get(name)
        .unwrap_or_else(|| panic!("no {name} in {headers:?}"));
    value.as_long_string().unwrap().to_string()
}

fn sink(url: &str, keys: &str) -> String {
    format!(r#"{{ type = "amqp", url = "{url}"{keys} }}"#)
}

#[tokio::test]
async fn a_published_message_carries_the_payload_headers_and_metadata() {
    let Some(rabbit) = RabbitMq::shared().await else {
        return;
    };
    let url = rabbit.vhost().await;
    let peer = Peer::new(&url).await;
    peer.queue("emea").await;
    peer.exchange("due").await;
    peer.bind("emea", "due", "orders.emea").await;
    let keys = r#", exchange = "due", routing_key = "{topic}.{header:to}""#;
    let scene = Scene::start(&sink(&url, keys)).await;
    let options = [
        ("Lisa-Id", "order-7"),
        ("Lisa-Header-To", "emea"),
        ("Content-Type", "application/json"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
    ];
    scene
        .relay
        .api
        .send(TOPIC, "{\"order\": 7}", &options)
        .await
        .expect(202);
    scene.no_attempt_lost(1).await;
    let taken = peer.take("emea").await;
    assert_eq!((taken.len(), id(&taken[0]).as_str()), (1, "order-7"));
    let properties = &taken[0].properties;
    assert_eq!(*properties.delivery_mode(), Some(2), "persistent");
    assert_eq!(
        properties.content_type().as_ref().unwrap().as_str(),
        "application/json"
    );
    assert!(properties.timestamp().is_some());
    assert_eq!(taken[0].data, b"{\"order\": 7}");
    for (name, value) in [
        ("lisa-topic", "orders"),
        ("lisa-group", "billing"),
        ("lisa-attempt", "1"),
        ("to", "emea"),
    ] {
        assert_eq!(header(&taken[0], name), value, "{name}");
    }
    assert!(header(&taken[0], "traceparent").starts_with("00-0af7"));
}

/// Sends `count` messages and kills RabbitMQ twice while they are published.
async fn killed(count: usize) {
    let Some(mut rabbit) = RabbitMq::start().await else {
        return;
    };
    Peer::new(&rabbit.url()).await.queue("out").await;
    rabbit.sync().await;
    let scene = Scene::start(&sink(&rabbit.url(), r#", routing_key = "out""#)).await;
    let third = count / 3;
    scene.send(ids(third)).await;
    for (sent, next) in [(third, 2 * third), (2 * third, count)] {
        scene.acked((sent - third + third / 10) as i64).await;
        rabbit.kill();
        // All that was sent before can be published by now.
        scene.send(ids(next).skip(sent)).await;
        scene.unavailable("").await;
        rabbit.restart().await;
    }
    scene.no_attempt_lost(count as i64).await;
    let taken = Peer::new(&rabbit.url()).await.ids("out").await;
    println!("{} of {count} messages twice", taken.len() - count);
    all_received(ids(count), &taken);
}

#[tokio::test]
async fn a_server_killed_twice_gets_every_message_and_costs_no_attempt() {
    killed(3000).await;
}

#[tokio::test]
#[ignore = "takes minutes; `make brokers` runs it"]
async fn a_server_killed_twice_gets_each_of_twenty_thousand_messages() {
    killed(20_000).await;
}

#[tokio::test]
async fn a_message_that_reaches_no_queue_is_never_acknowledged() {
    let Some(rabbit) = RabbitMq::shared().await else {
        return;
    };
    let url = rabbit.vhost().await;
    let peer = Peer::new(&url).await;
    peer.queue("out").await;
    let scene = Scene::with(
        &format!("max_attempts = 2\n{RETRY}"),
        &sink(&url, r#", routing_key = "{header:to}""#),
    )
    .await;
    let to = |n: usize| {
        if n.is_multiple_of(10) {
            "nowhere"
        } else {
            "out"
        }
    };
    let messages: Vec<Value> = (0..2000)
        .map(|n| json!({"id": format!("m-{n}"), "payload": "x", "headers": {"to": to(n)}}))
        .collect();
    scene.send_all(&messages).await;
    let stats = scene.in_garbage(200).await;
    assert_eq!(Deployment::counter(&stats, "acked"), 1800, "{stats:#}");
    let queued = peer.ids("out").await;
    all_received(
        (0..2000).filter(|n| n % 10 != 0).map(|n| format!("m-{n}")),
        &queued,
    );
    scene.garbage_says("312 NO_ROUTE").await;
    scene.here.conserved().await;
}

#[tokio::test]
async fn a_memory_alarm_costs_no_attempt() {
    let Some(rabbit) = RabbitMq::start().await else {
        return;
    };
    let peer = Peer::new(&rabbit.url()).await;
    peer.queue("out").await;
    rabbit.memory_alarm(true).await;
    let scene = Scene::start(&sink(&rabbit.url(), r#", routing_key = "out""#)).await;
    scene.send(ids(500)).await;
    scene.unavailable("blocks all publishers").await;
    rabbit.memory_alarm(false).await;
    scene.no_attempt_lost(500).await;
    all_received(ids(500), &peer.ids("out").await);
}

#[tokio::test]
async fn a_server_that_never_confirms_costs_attempts_and_loses_nothing() {
    let Some(mut rabbit) = RabbitMq::start().await else {
        return;
    };
    Peer::new(&rabbit.url()).await.queue("out").await;
    let keys = r#", routing_key = "out", confirm_timeout = "500ms""#;
    let scene = Scene::start(&sink(&rabbit.url(), keys)).await;
    scene.send(ids(50)).await;
    scene.acked(50).await;
    rabbit.pause();
    scene.send((50..100).map(|n| format!("m-{n}"))).await;
    scene.retried().await;
    rabbit.resume();
    scene.nothing_lost(100).await;
    let taken = Peer::new(&rabbit.url()).await.ids("out").await;
    all_received(ids(100), &taken);
}

/// Returns the number of connections that a process has or attempts: the client library runs each in a thread.
fn connections(pid: u32) -> usize {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let names = threads.flatten().filter_map(|thread| {
        // It fails if the thread has just ended.
        std::fs::read_to_string(thread.path().join("comm")).ok()
    });
    names.filter(|name| name.trim() == "lapin-io-loop").count()
}

#[tokio::test]
async fn connections_to_a_silent_server_end() {
    let Some(mut rabbit) = RabbitMq::start().await else {
        return;
    };
    Peer::new(&rabbit.url()).await.queue("out").await;
    let keys = r#", routing_key = "out", confirm_timeout = "500ms", connect_timeout = "500ms""#;
    let scene = Scene::start(&sink(&rabbit.url(), keys)).await;
    scene.send(ids(1)).await;
    scene.acked(1).await;
    rabbit.pause();
    scene.send(["m-1".to_owned()]).await;
    // By now, one connection gave no confirm, and one could not be opened.
    scene.unavailable("within 500ms").await;
    let pid = scene.consumer.process.pid().expect("it runs");
    eventually(SOON, async || match connections(pid) {
        // A probe may be running.
        0 | 1 => Ok(()),
        more => Err(format!("{more} connections")),
    })
    .await;
    rabbit.resume();
    scene.nothing_lost(2).await;
    assert_eq!(connections(pid), 1);
}

#[tokio::test]
async fn a_message_with_headers_larger_than_a_frame_is_rejected() {
    let Some(rabbit) = RabbitMq::shared().await else {
        return;
    };
    let url = rabbit.vhost().await;
    let peer = Peer::new(&url).await;
    peer.queue("out").await;
    let scene = Scene::start(&sink(&url, r#", routing_key = "out""#)).await;
    // The largest frame of RabbitMQ is 131,072 bytes.
    let headers = |count: usize| -> Value {
        let headers = (0..count).map(|n| (format!("h{n}"), json!("x".repeat(4000))));
        Value::Object(headers.collect())
    };
    let mut messages: Vec<Value> = ids(100)
        .map(|id| json!({"id": id, "payload": "x"}))
        .collect();
    messages.insert(
        30,
        json!({"id": "large", "payload": "x", "headers": headers(33)}),
    );
    messages.insert(
        60,
        json!({"id": "m-fits", "payload": "x", "headers": headers(32)}),
    );
    scene.send_all(&messages).await;
    let stats = scene.in_garbage(1).await;
    assert_eq!(Deployment::counter(&stats, "acked"), 101, "{stats:#}");
    assert_eq!(Deployment::counter(&stats, "retried"), 0, "{stats:#}");
    let sent = ids(100).chain(["m-fits".to_owned()]);
    all_received(sent, &peer.ids("out").await);
    scene.garbage_says("(frame_max)").await;
    scene.here.conserved().await;
}

#[tokio::test]
async fn only_the_message_that_is_too_large_is_rejected() {
    let Some(rabbit) = RabbitMq::start().await else {
        return;
    };
    let limit = rabbit.ctl(&[
        "eval",
        "application:set_env(rabbit, max_message_size, 1000).",
    ]);
    assert!(limit.await.contains("ok"));
    let peer = Peer::new(&rabbit.url()).await;
    peer.queue("out").await;
    let scene = Scene::start(&sink(&rabbit.url(), r#", routing_key = "out""#)).await;
    let mut messages: Vec<Value> = ids(500)
        .map(|id| json!({"id": id, "payload": "x"}))
        .collect();
    messages.insert(250, json!({"id": "large", "payload": "x".repeat(2000)}));
    scene.send_all(&messages).await;
    let stats = scene.in_garbage(1).await;
    assert_eq!(Deployment::counter(&stats, "acked"), 500, "{stats:#}");
    assert_eq!(Deployment::counter(&stats, "retried"), 0, "{stats:#}");
    all_received(ids(500), &peer.ids("out").await);
    scene.here.conserved().await;
}

#[tokio::test]
async fn only_the_messages_that_make_the_server_close_the_channel_are_charged() {
    let Some(rabbit) = RabbitMq::start().await else {
        return;
    };
    let peer = Peer::new(&rabbit.url()).await;
    peer.queue("out").await;
    peer.bind("out", "amq.topic", "#").await;
    rabbit.ctl(&["add_user", "lisa", "secret"]).await;
    rabbit
        .ctl(&["set_permissions", "lisa", ".*", ".*", ".*"])
        .await;
    rabbit
        .ctl(&["set_topic_permissions", "lisa", "amq.topic", "^ok", ".*"])
        .await;
    let url = rabbit.url().replace("guest:guest", "lisa:secret");
    let keys = r#", exchange = "amq.topic", routing_key = "{header:to}""#;
    let topic = format!("max_attempts = 3\n{RETRY}");
    let scene = Scene::with(&topic, &sink(&url, keys)).await;
    let is_forbidden = |n: usize| n % 100 == 50;
    let to = |n| match is_forbidden(n) {
        true => "forbidden",
        false => "ok",
    };
    let messages: Vec<Value> = (0..2000)
        .map(|n| json!({"id": format!("m-{n}"), "payload": "x", "headers": {"to": to(n)}}))
        .collect();
    scene.send_all(&messages).await;
    let stats = scene.in_garbage(20).await;
    assert_eq!(Deployment::counter(&stats, "acked"), 1980, "{stats:#}");
    assert_eq!(Deployment::counter(&stats, "retried"), 2 * 20, "{stats:#}");
    let queued = peer.ids("out").await;
    let allowed = (0..2000).filter(|n| !is_forbidden(*n));
    all_received(allowed.map(|n| format!("m-{n}")), &queued);
    scene.garbage_says("ACCESS_REFUSED").await;
    scene.here.conserved().await;
}

#[tokio::test]
async fn a_wrong_password_costs_no_attempt_and_is_reported_without_it() {
    let Some(rabbit) = RabbitMq::shared().await else {
        return;
    };
    let url = format!("amqp://guest:secret-7@127.0.0.1:{}", rabbit.port());
    let scene = Scene::start(&sink(&url, r#", routing_key = "out""#)).await;
    scene.send(ids(20)).await;
    scene.unavailable("ACCESS_REFUSED").await;
    scene.no_attempt().await;
    let log = scene.consumer.process.stderr();
    assert!(!log.contains("secret-7"), "{log}");
    scene.here.conserved().await;
}

#[tokio::test]
async fn a_missing_exchange_costs_attempts_until_it_is_declared() {
    let Some(rabbit) = RabbitMq::shared().await else {
        return;
    };
    let url = rabbit.vhost().await;
    let peer = Peer::new(&url).await;
    let scene = Scene::start(&sink(&url, r#", exchange = "late", routing_key = "out""#)).await;
    scene.send(ids(20)).await;
    scene.retried().await;
    peer.queue("out").await;
    peer.exchange("late").await;
    peer.bind("out", "late", "out").await;
    scene.nothing_lost(20).await;
    all_received(ids(20), &peer.ids("out").await);
}

#[tokio::test]
async fn a_password_that_changes_in_its_file_needs_no_restart() {
    let Some(rabbit) = RabbitMq::shared().await else {
        return;
    };
    let url = rabbit.vhost().await;
    let (_, vhost) = url.rsplit_once('/').unwrap();
    rabbit.ctl(&["add_user", "app", "first"]).await;
    let rights = ["set_permissions", "-p", vhost, "app", ".*", ".*", ".*"];
    rabbit.ctl(&rights).await;
    let peer = Peer::new(&url).await;
    peer.queue("due").await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "first\n").unwrap();
    let of_app = format!("amqp://app@127.0.0.1:{}/{vhost}", rabbit.port());
    let keys = format!(
        ", password_file = \"{}\", routing_key = \"due\"",
        file.display()
    );
    let scene = Scene::start(&sink(&of_app, &keys)).await;
    scene.send(ids(20)).await;
    scene.acked(20).await;

    rabbit.ctl(&["change_password", "app", "second"]).await;
    std::fs::write(&file, "second\n").unwrap();
    let reloads = "lisa_config_reloads_total{result=\"applied\"}";
    shows(&scene.consumer, reloads, 1).await;
    let close = ["close_all_user_connections", "app", "the password changed"];
    rabbit.ctl(&close).await;
    scene.send(ids(40).skip(20)).await;
    scene.no_attempt_lost(40).await;
    all_received(ids(40), &peer.ids("due").await);
}
