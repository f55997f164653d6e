//! Tests of the harness: each fault of a message broker does what other tests rely on.

use super::SOON;
use async_nats::jetstream;
use async_nats::jetstream::context::PublishAckFuture;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use lisa_tests::{Kafka, Nats, RabbitMq, eventually};
use rdkafka::Message;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use std::time::Duration;
use tokio::time::timeout;

/// Opens a channel with confirms and declares a durable queue.
async fn channel(connection: &Connection, queue: &str) -> Channel {
    let channel = connection.create_channel().await.unwrap();
    let confirms = channel.confirm_select(ConfirmSelectOptions::default());
    confirms.await.unwrap();
    declare(&channel, queue).await;
    channel
}

/// Declares the queue, and returns the number of its messages.
async fn declare(channel: &Channel, queue: &str) -> u32 {
    let options = QueueDeclareOptions::durable();
    let declared = channel.queue_declare(queue.into(), options, FieldTable::default());
    declared.await.unwrap().message_count()
}

/// Publishes a persistent message to a queue and waits for its confirm.
async fn publish(channel: &Channel, queue: &str) -> lapin::Result<Confirmation> {
    let (options, persistent) = (
        BasicPublishOptions::default(),
        BasicProperties::default().with_delivery_mode(2),
    );
    let sent = channel.basic_publish("".into(), queue.into(), options, b"text", persistent);
    sent.await?.await
}

#[tokio::test]
async fn rabbitmq_keeps_what_it_confirmed_over_kill_9() {
    let Some(mut rabbit) = RabbitMq::start().await else {
        return;
    };
    let first = rabbit.connection().await;
    let before = channel(&first, "kept").await;
    for _ in 0..10 {
        assert!(publish(&before, "kept").await.unwrap().is_ack());
    }
    rabbit.kill();
    eventually(SOON, async || match publish(&before, "kept").await {
        Err(_) => Ok(()),
        Ok(confirmation) => Err(format!("a killed server said {confirmation:?}")),
    })
    .await;
    rabbit.restart().await;
    let again = rabbit.connection().await;
    let after = again.create_channel().await.unwrap();
    let kept = declare(&after, "kept").await;
    assert_eq!(kept, 10, "{}", rabbit.log());
}

#[tokio::test]
async fn a_memory_alarm_blocks_publishers_until_it_ends() {
    let Some(rabbit) = RabbitMq::start().await else {
        return;
    };
    let connection = rabbit.connection().await;
    let channel = channel(&connection, "blocked").await;
    rabbit.memory_alarm(true).await;
    let mut waiting = std::pin::pin!(publish(&channel, "blocked"));
    let early = timeout(Duration::from_millis(500), &mut waiting).await;
    assert!(early.is_err(), "a blocked server answered {early:?}");
    rabbit.memory_alarm(false).await;
    assert!(timeout(SOON, waiting).await.unwrap().unwrap().is_ack());
}

#[tokio::test]
async fn a_paused_rabbitmq_answers_after_it_is_resumed() {
    let Some(mut rabbit) = RabbitMq::start().await else {
        return;
    };
    let connection = rabbit.connection().await;
    let channel = channel(&connection, "paused").await;
    rabbit.pause();
    let mut waiting = std::pin::pin!(publish(&channel, "paused"));
    let early = timeout(Duration::from_millis(500), &mut waiting).await;
    assert!(early.is_err(), "a paused server answered {early:?}");
    rabbit.resume();
    assert!(timeout(SOON, waiting).await.unwrap().unwrap().is_ack());
}

#[tokio::test]
async fn the_shared_rabbitmq_lends_different_virtual_hosts() {
    let Some(rabbit) = RabbitMq::shared().await else {
        return;
    };
    let same = RabbitMq::shared().await.unwrap();
    assert_eq!(rabbit.port(), same.port());
    let (one, other) = (rabbit.vhost().await, same.vhost().await);
    for (url, expected) in [(&one, 0), (&other, 0), (&one, 1)] {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(url, properties).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        assert_eq!(declare(&channel, "lent").await, expected, "{url}");
        let confirms = channel.confirm_select(ConfirmSelectOptions::default());
        confirms.await.unwrap();
        assert!(publish(&channel, "lent").await.unwrap().is_ack());
    }
    let listed = rabbit.ctl(&["list_vhosts"]).await;
    assert!(listed.contains("vhost-"), "{listed}");
}

/// Makes the stream of the subject `due`.
async fn stream(nats: &Nats) -> jetstream::Context {
    let jetstream = nats.jetstream().await;
    let stream = jetstream::stream::Config {
        name: "due".to_owned(),
        ..Default::default()
    };
    jetstream.create_stream(stream).await.unwrap();
    jetstream
}

/// Publishes a message with an id to the subject `due`.
async fn publish_to(jetstream: &jetstream::Context, id: &str) -> PublishAckFuture {
    let message = jetstream::message::PublishMessage::build()
        .payload("text".into())
        .message_id(id);
    jetstream.send_publish("due", message).await.unwrap()
}

#[tokio::test]
async fn nats_keeps_what_it_acknowledged_over_kill_9_and_answers_a_duplicate() {
    let Some(mut nats) = Nats::start().await else {
        return;
    };
    let jetstream = stream(&nats).await;
    let first = publish_to(&jetstream, "one").await.await.unwrap();
    let second = publish_to(&jetstream, "one").await.await.unwrap();
    assert_eq!((first.duplicate, second.duplicate), (false, true));
    nats.kill();
    nats.restart().await;
    let after = nats.jetstream().await;
    let again = publish_to(&after, "one").await.await.unwrap();
    let other = publish_to(&after, "two").await.await.unwrap();
    assert_eq!((again.duplicate, other.duplicate), (true, false));
    assert_eq!(other.sequence, 2);
}

#[tokio::test]
async fn a_paused_nats_answers_after_it_is_resumed() {
    let Some(mut nats) = Nats::start().await else {
        return;
    };
    let jetstream = stream(&nats).await;
    nats.pause();
    let mut waiting = std::pin::pin!(publish_to(&jetstream, "one").await.into_future());
    let early = timeout(Duration::from_millis(300), &mut waiting).await;
    assert!(early.is_err(), "a paused server answered {early:?}");
    nats.resume();
    timeout(SOON, waiting).await.unwrap().unwrap();
}

#[tokio::test]
async fn nats_lets_in_only_its_user_or_token_and_bounds_payloads() {
    let secured = [
        Nats::builder().user("alice", "secret"),
        Nats::builder().token("secret"),
    ];
    for builder in secured {
        let Some(nats) = builder.config("max_payload: 1024").start().await else {
            return;
        };
        let stranger = async_nats::connect(nats.url()).await;
        assert!(stranger.is_err(), "a stranger was let in");
        assert_eq!(nats.client().await.server_info().max_payload, 1024);
    }
}

/// Sends one message of a topic's second partition and returns the error if it was not stored.
async fn produce(producer: &FutureProducer, text: &str) -> Result<(), String> {
    let record = FutureRecord::<(), str>::to("due")
        .partition(1)
        .payload(text);
    let sent = producer.send(record, Duration::ZERO).await;
    sent.map(|_| ()).map_err(|(error, _)| error.to_string())
}

#[tokio::test]
async fn kafka_is_unavailable_while_its_brokers_are_down_and_keeps_its_messages() {
    let kafka = Kafka::start(2);
    kafka.create_topic("due", 2);
    let mut config = kafka.client();
    config.set("message.timeout.ms", "2000");
    let producer: FutureProducer = config.create().unwrap();
    produce(&producer, "one").await.unwrap();
    kafka.all_down();
    let error = produce(&producer, "lost").await.unwrap_err();
    assert!(error.contains("timed out"), "{error}");
    kafka.all_up();
    let sent = async || produce(&producer, "two").await;
    eventually(SOON, sent).await;
    let all = kafka.read_all("due").await;
    let texts: Vec<_> = all
        .iter()
        .map(|message| (message.partition(), message.payload().unwrap()))
        .collect();
    assert_eq!(texts, [(1, &b"one"[..]), (1, b"two")]);
}

#[tokio::test]
async fn kafka_answers_the_errors_that_a_test_wants() {
    let kafka = Kafka::start(1);
    kafka.create_topic("due", 2);
    let producer: FutureProducer = kafka.client().create().unwrap();
    let too_large = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    kafka.request_errors(RDKafkaApiKey::Produce, &[too_large]);
    let error = produce(&producer, "one").await.unwrap_err();
    assert!(error.contains("size too large"), "{error}");
    produce(&producer, "two").await.unwrap();
    assert_eq!(kafka.read_all("due").await.len(), 1);
}
