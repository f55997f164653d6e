//! RabbitMQ: persistent messages to a durable queue.

use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use lisa_consumer::Handler;
use lisa_consumer::sinks::AmqpSink;
use lisa_service::brokers::amqp::{
    AmqpConnection, AmqpSinkSettings, DEFAULT_CONFIRM_TIMEOUT, DEFAULT_CONNECT_TIMEOUT,
};
use lisa_service::targets::{Away, TargetSettings};
use lisa_service::template::Template;
use lisa_tests::RabbitMq;

use super::{DUE_AT, DUE_AT_MS, SIZE, Target};
use crate::lisa::{TOPIC, payload};

pub(super) struct Amqp {
    server: RabbitMq,
    channel: Channel,
    _connection: Connection,
    payload: Vec<u8>,
}

/// Starts a server, and declares the queue that the default exchange routes to; `None` where it cannot be fetched.
pub(super) async fn start() -> Option<Amqp> {
    let server = RabbitMq::start().await?;
    let connection = server.connection().await;
    let channel = connection.create_channel().await.expect("a channel");
    let confirms = channel.confirm_select(ConfirmSelectOptions::default());
    confirms.await.expect("confirms");
    let amqp = Amqp {
        server,
        channel,
        _connection: connection,
        payload: payload(SIZE),
    };
    assert_eq!(amqp.stored().await, 0);
    Some(amqp)
}

impl Target for Amqp {
    const SINK: &str = "amqp";

    async fn clear(&self) {
        let purged = self
            .channel
            .queue_purge(TOPIC.into(), QueuePurgeOptions::default());
        purged.await.expect("an empty queue");
    }

    async fn stored(&self) -> u64 {
        let options = QueueDeclareOptions::durable();
        let declared = self
            .channel
            .queue_declare(TOPIC.into(), options, FieldTable::default());
        declared.await.expect("a queue").message_count().into()
    }

    async fn publish(&self, id: String) {
        let mut headers = FieldTable::default();
        for (name, value) in [
            ("lisa-topic", TOPIC),
            ("lisa-group", "default"),
            ("lisa-attempt", "1"),
            ("lisa-due-at", DUE_AT),
        ] {
            headers.insert(name.into(), AMQPValue::LongString(value.into()));
        }
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(id.into())
            .with_timestamp(DUE_AT_MS / 1000)
            .with_headers(headers);
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let sent =
            self.channel
                .basic_publish("".into(), TOPIC.into(), options, &self.payload, properties);
        let confirmed = sent.await.expect("sent").await.expect("a confirm");
        assert!(
            matches!(confirmed, Confirmation::Ack(None)),
            "{confirmed:?}"
        );
    }

    fn sink(&self) -> impl Handler {
        AmqpSink::new(AmqpSinkSettings {
            connection: AmqpConnection {
                url: self.server.url().into(),
                ca_file: None,
                connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            },
            exchange: String::new(),
            routing_key: Template::parse("{topic}", &["topic"]).expect("a template"),
            mandatory: true,
            confirm_timeout: DEFAULT_CONFIRM_TIMEOUT,
            target: TargetSettings::new(Away::Defer),
        })
    }
}
