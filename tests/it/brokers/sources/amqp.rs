//! The `amqp` source on RabbitMQ.

use super::Intake;
use crate::brokers::amqp::{Peer, header, id};
use crate::brokers::{SOON, all_received, ids};
use crate::scenarios::Deployment;
use crate::scenarios::deployment::TOPIC;
use crate::scenarios::targets::shows;
use futures_util::future::join_all;
use lapin::BasicProperties;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lisa_tests::{RabbitMq, eventually};
use std::time::Instant;

pub(super) const QUEUE: &str = "in";

pub(super) fn from(url: &str) -> String {
    format!(r#"{{ type = "amqp", url = "{url}", queue = "{QUEUE}", prefetch = 100 }}"#)
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn properties(id: &str, headers: &[(&str, AMQPValue)]) -> BasicProperties {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), value.clone());
    }
    let properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_headers(table);
    match id {
        "" => properties,
        id => properties.with_message_id(id.into()),
    }
}

impl Peer {
    /// Publishes messages to the queue and waits for all confirms.
    async fn publish(&self, messages: impl IntoIterator<Item = (BasicProperties, String)>) {
        let confirms = ConfirmSelectOptions::default();
        self.channel.confirm_select(confirms).await.unwrap();
        let mut confirms = Vec::new();
        for (properties, payload) in messages {
            let options = BasicPublishOptions::default();
            let (exchange, key) = ("".into(), QUEUE.into());
            let published =
                self.channel
                    .basic_publish(exchange, key, options, payload.as_bytes(), properties);
            confirms.push(published.await.unwrap());
        }
        for confirm in join_all(confirms).await {
            assert!(confirm.unwrap().is_ack());
        }
    }

    /// Publishes messages that are due now, with these ids.
    pub(super) async fn publish_ids(&self, ids: impl Iterator<Item = String>) {
        let message = |id: String| (properties(&id, &[]), format!("payload of {id}"));
        self.publish(ids.map(message)).await;
    }

    /// Declares the queue with a dead-letter queue `dead`.
    async fn queue_with_dead_letters(&self) {
        self.queue("dead").await;
        let mut arguments = FieldTable::default();
        arguments.insert("x-dead-letter-exchange".into(), text(""));
        arguments.insert("x-dead-letter-routing-key".into(), text("dead"));
        let options = QueueDeclareOptions::durable();
        let declared = self.channel.queue_declare(QUEUE.into(), options, arguments);
        declared.await.unwrap();
    }

    /// The number of messages that the queue has and no consumer holds.
    async fn ready(&self) -> u32 {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let declared = self
            .channel
            .queue_declare(QUEUE.into(), options, FieldTable::default());
        declared.await.unwrap().message_count()
    }

    /// Waits until this number of messages is in the queue.
    pub(super) async fn holds(&self, count: u32) {
        eventually(SOON, async || match self.ready().await {
            ready if ready == count => Ok(()),
            ready => Err(format!("{ready} messages")),
        })
        .await;
    }
}

/// A queue on a virtual host of the shared server.
async fn queue() -> Option<(String, Peer)> {
    let url = RabbitMq::shared().await?.vhost().await;
    let peer = Peer::new(&url).await;
    peer.queue(QUEUE).await;
    Some((url, peer))
}

#[tokio::test]
async fn a_message_has_its_due_time_options_and_headers() {
    let Some((url, peer)) = queue().await else {
        return;
    };
    let intake = Intake::of(&from(&url)).await;
    let before = jiff::Timestamp::now().as_millisecond();
    let hour = AMQPValue::LongInt(3_600_000);
    let death = AMQPValue::FieldTable(FieldTable::default());
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let tomorrow = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24);
    let tomorrow = format!("{tomorrow:.3}");
    let full = [
        ("Lisa-Deliver-At", text(&tomorrow)),
        ("x-delay", hour.clone()),
        ("Lisa-Key", text("customer-7")),
        ("Lisa-Priority", AMQPValue::LongInt(5)),
        ("lisa-attempt", text("3")),
        ("Region", text("emea")),
        ("traceparent", text(trace)),
        ("x-death", death),
    ];
    let message = |id: &str, headers: &[_]| (properties(id, headers), id.to_owned());
    let (options, body) = message("full", &full);
    let late = options.with_content_type("application/json".into());
    peer.publish([
        (late, body),
        message("number", &[("x-delay", hour)]),
        message("text", &[("X-Delay", text("3600000"))]),
        message("http", &[("lisa-delay", text("1h"))]),
        message(
            "too long an id for Lisa: it is hashed",
            &[("Lisa-Delay", text("1h"))],
        ),
        message(
            "named",
            &[("Lisa-Id", text("own")), ("Lisa-Delay", text("1h"))],
        ),
    ])
    .await;
    let full = intake.message("in:full").await;
    assert_eq!(full["due_at"], tomorrow, "{full:#}");
    assert_eq!(
        (&full["key"], &full["priority"]),
        (&"customer-7".into(), &5.into())
    );
    let headers = &full["headers"];
    for (name, value) in [
        ("region", "emea"),
        ("traceparent", trace),
        ("content-type", "application/json"),
    ] {
        assert_eq!(headers[name], value, "{full:#}");
    }
    assert_eq!(headers.as_object().unwrap().len(), 3, "{full:#}");
    for id in ["in:number", "in:text", "in:http", "own"] {
        let message = intake.message(id).await;
        let due: jiff::Timestamp = message["due_at"].as_str().unwrap().parse().unwrap();
        let now = jiff::Timestamp::now().as_millisecond();
        let delay = due.as_millisecond() - 3_600_000;
        assert!((before..=now).contains(&delay), "{message:#}");
    }
    intake.takes("accepted", 6).await;
    peer.holds(0).await;
    let log = intake.producer.process.stderr();
    assert!(log.contains("x-death"), "{log}");
}

#[tokio::test]
async fn everything_in_the_queue_is_delivered_by_a_process_of_manager_and_producer() {
    let Some((url, peer)) = queue().await else {
        return;
    };
    const COUNT: usize = 3000;
    peer.publish_ids(ids(COUNT)).await;
    let here = Deployment::start("").await;
    let here = here.with(&super::config(&from(&url), ""));
    let start = Instant::now();
    let intake = Intake {
        _manager: here.manager().await,
        producer: here.combined().await,
        here,
    };
    intake.takes("accepted", COUNT as i64).await;
    intake.rate(COUNT as i64, start);
    intake.delivers(COUNT as i64).await;
    peer.holds(0).await;
    assert_eq!(intake.counted("duplicate").await, 0);
}

#[tokio::test]
async fn a_producer_killed_in_the_middle_loses_nothing_and_stores_nothing_twice() {
    let Some((url, peer)) = queue().await else {
        return;
    };
    const COUNT: usize = 3000;
    let mut intake = Intake::of(&from(&url)).await;
    let mut published = 0;
    for _ in 0..3 {
        let part = (published..published + COUNT / 3).map(|n| format!("m-{n}"));
        peer.publish_ids(part).await;
        published += COUNT / 3;
        intake.takes("accepted", 100).await;
        intake.kill_producer().await;
    }
    let consumer = intake.consumer().await;
    intake.delivered(COUNT as i64).await;
    peer.holds(0).await;
    drop(consumer);
}

#[tokio::test]
async fn a_broker_killed_in_the_middle_loses_nothing_and_nothing_is_stored_twice() {
    let Some(mut rabbit) = RabbitMq::start().await else {
        return;
    };
    const COUNT: usize = 3000;
    let peer = Peer::new(&rabbit.url()).await;
    peer.queue(QUEUE).await;
    rabbit.sync().await;
    peer.publish_ids(ids(COUNT)).await;
    let intake = Intake::of(&from(&rabbit.url())).await;
    intake.takes("accepted", 200).await;
    rabbit.kill();
    intake.unavailable("").await;
    rabbit.restart().await;
    intake.delivers(COUNT as i64).await;
    let duplicates = intake.counted("duplicate").await;
    println!("{duplicates} duplicates");
    shows(&intake.producer, "lisa_source_up", 1).await;
    Peer::new(&rabbit.url()).await.holds(0).await;
}

#[tokio::test]
async fn what_lisa_refuses_goes_to_the_dead_letter_queue() {
    let Some(rabbit) = RabbitMq::shared().await else {
        return;
    };
    let url = rabbit.vhost().await;
    let peer = Peer::new(&url).await;
    peer.queue_with_dead_letters().await;
    let keys = "topic = \"{header:lisa-topic}\"\ntopics = [\"orders\"]";
    let intake = Intake::start(&from(&url), keys, "max_payload = \"1KiB\"").await;
    let orders = ("lisa-topic", text(TOPIC));
    let with = |name, value| vec![orders.clone(), (name, text(value))];
    let bad = [
        ("delay", with("x-delay", "soon"), 1),
        ("option", with("lisa-dealy", "1s"), 1),
        ("far", with("Lisa-Delay", "9999999d"), 1),
        ("other", vec![("lisa-topic", text("payments"))], 1),
        ("none", Vec::new(), 1),
        ("large", vec![orders.clone()], 2000),
    ];
    let bad_messages = bad
        .iter()
        .map(|(id, headers, size)| (properties(id, headers), "x".repeat(*size)));
    peer.publish(bad_messages).await;
    let good = ids(200).map(|id| {
        (
            properties(&id, std::slice::from_ref(&orders)),
            "x".to_owned(),
        )
    });
    peer.publish(good).await;
    intake.takes("refused", 6).await;
    intake.delivers(200).await;
    peer.holds(0).await;
    let dead = peer.take("dead").await;
    let expected = bad.iter().map(|(id, ..)| (*id).to_owned());
    all_received(expected, &dead.iter().map(id).collect::<Vec<_>>());
    assert_eq!(dead.len(), bad.len());
    assert_eq!(header(&dead[0], "x-first-death-reason"), "rejected");
    let log = intake.producer.process.stderr();
    assert_eq!(log.matches("message refused").count(), 1, "{log}");
}

#[tokio::test]
async fn a_full_topic_stops_the_source_and_loses_nothing() {
    let Some((url, peer)) = queue().await else {
        return;
    };
    peer.publish_ids(ids(1000)).await;
    let intake = Intake::start(&from(&url), "", "max_messages = 300").await;
    intake.warns("max_messages").await;
    assert_eq!(intake.counted("accepted").await, 300);
    // Nothing else is taken beyond the prefetch.
    assert_eq!(peer.ready().await, 1000 - 300 - 100);
    shows(&intake.producer, "lisa_source_up", 1).await;
    let path = format!("/v1/topics/{TOPIC}/messages/in:m-0");
    intake.producer.api.get(&path).await.expect(200);
    intake.delivers(1000).await;
    peer.holds(0).await;
}

#[tokio::test]
async fn redis_unavailable_stops_the_source_and_loses_nothing() {
    let Some((url, peer)) = queue().await else {
        return;
    };
    let mut here = Deployment::durable("").await;
    here = here.with(&super::config(&from(&url), ""));
    let mut intake = Intake {
        _manager: here.manager().await,
        producer: here.producer().await,
        here,
    };
    peer.publish_ids(ids(300)).await;
    intake.takes("accepted", 300).await;
    intake.here.server().stop();
    peer.publish_ids((300..1000).map(|n| format!("m-{n}")))
        .await;
    eventually(SOON, async || {
        let ready = intake.producer.api.get("/readyz").await;
        match ready.body.contains("source in takes no messages") {
            true => Ok(()),
            false => Err(ready.body),
        }
    })
    .await;
    assert!(
        peer.ready().await >= 600,
        "no more than the prefetch is taken"
    );
    intake.here.server().restart();
    intake.delivers(1000).await;
    peer.holds(0).await;
}

#[tokio::test]
async fn a_queue_that_is_missing_or_deleted_is_reported_until_it_is_declared() {
    let Some(rabbit) = RabbitMq::shared().await else {
        return;
    };
    let url = rabbit.vhost().await;
    let intake = Intake::of(&from(&url)).await;
    intake.unavailable("NOT_FOUND").await;
    let peer = Peer::new(&url).await;
    for round in 0..2 {
        peer.queue(QUEUE).await;
        peer.publish_ids((round * 10..round * 10 + 10).map(|n| format!("m-{n}")))
            .await;
        intake.takes("accepted", round as i64 * 10 + 10).await;
        shows(&intake.producer, "lisa_source_up", 1).await;
        let deleted = peer
            .channel
            .queue_delete(QUEUE.into(), QueueDeleteOptions::default());
        deleted.await.unwrap();
        intake.unavailable("queue").await;
    }
    intake.delivers(20).await;
}

#[tokio::test]
async fn a_wrong_password_is_reported_without_it() {
    let Some(rabbit) = RabbitMq::shared().await else {
        return;
    };
    let url = format!("amqp://guest:secret-7@127.0.0.1:{}", rabbit.port());
    let intake = Intake::of(&from(&url)).await;
    intake.unavailable("ACCESS_REFUSED").await;
    let log = intake.producer.process.stderr();
    assert!(!log.contains("secret-7"), "{log}");
    let sent = intake.producer.api.send(TOPIC, "x", &[]).await;
    sent.expect(202);
}

#[tokio::test]
async fn a_shutdown_acknowledges_what_it_took() {
    let Some((url, peer)) = queue().await else {
        return;
    };
    // Without ids: what is not acknowledged would be stored twice.
    let message = |n: usize| (properties("", &[]), n.to_string());
    peer.publish((0..5000).map(message)).await;
    let mut intake = Intake::of(&from(&url)).await;
    intake.takes("accepted", 300).await;
    intake.producer.stop().await;
    let log = intake.producer.process.stderr();
    assert_eq!(log.matches("without an id").count(), 1, "{log}");
    intake.producer = intake.here.producer().await;
    intake.delivers(5000).await;
    peer.holds(0).await;
}

#[tokio::test]
async fn a_source_that_fails_does_not_hold_up_another() {
    let Some((url, peer)) = queue().await else {
        return;
    };
    let missing = r#"
        [[producer.sources]]
        name = "missing"
        topic = "orders"
        from = { type = "amqp", url = "amqp://127.0.0.1:1", queue = "x" }
        "#;
    let sources = [missing, &super::config(&from(&url), "")].concat();
    let here = Deployment::start("").await.with(&sources);
    let intake = Intake {
        _manager: here.manager().await,
        producer: here.producer().await,
        here,
    };
    peer.publish_ids(ids(100)).await;
    intake.delivers(100).await;
    let ready = intake.producer.api.get("/readyz").await.expect(200);
    assert!(
        ready.body.contains("source missing unavailable"),
        "{}",
        ready.body
    );
}

#[tokio::test]
async fn a_message_for_a_topic_that_is_not_registered_waits_until_it_is() {
    let Some((url, peer)) = queue().await else {
        return;
    };
    let keys = "topic = \"{header:to}\"\ntopics = [\"elsewhere\"]";
    let intake = Intake::start(&from(&url), keys, "").await;
    let to = [("to", text("elsewhere"))];
    peer.publish(ids(10).map(|id| (properties(&id, &to), id)))
        .await;
    intake.warns("topic elsewhere is not registered").await;
    assert_eq!(intake.counted("refused").await, 0);
    let broker = intake.here.broker().await;
    let producer = lisa_producer::Producer::new(broker);
    let settings = lisa_producer::TopicSettings::default();
    producer.declare("elsewhere", &settings).await.unwrap();
    intake.takes("accepted", 10).await;
    peer.holds(0).await;
}
