//! The sinks of subscriptions, the built-in handlers of the consumer binary.
//!
//! Checks them without the network, and resolves no names. The sinks themselves are in the consumer.

use lisa_core::names::words;

use super::layers::SinkSecrets;
use super::table::Table;
use crate::brokers::amqp::AmqpSinkSettings;
use crate::brokers::kafka::KafkaSinkSettings;
use crate::brokers::nats::NatsSinkSettings;
use crate::brokers::redis_stream::RedisStreamSinkSettings;
use crate::command::CommandSinkSettings;
use crate::settings::Settings as _;
use crate::webhook::HttpSinkSettings;

/// The sink of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkConfig {
    /// One JSON object per line on standard output.
    Stdout,
    /// A webhook.
    Http(HttpSinkSettings),
    /// A program started for each delivery.
    Command(CommandSinkSettings),
    /// A stream of any Redis.
    RedisStream(RedisStreamSinkSettings),
    /// RabbitMQ.
    Amqp(AmqpSinkSettings),
    /// NATS JetStream.
    Nats(NatsSinkSettings),
    /// Kafka.
    Kafka(KafkaSinkSettings),
}

words!(
    SinkType, "type of sink", {
        Stdout = "stdout",
        Http = "http",
        Command = "command",
        RedisStream = "redis-stream",
        Amqp = "amqp",
        Nats = "nats",
        Kafka = "kafka",
    }
);

impl SinkConfig {
    /// Reads a sink. Returns `None` after a problem that leaves no usable sink.
    pub(super) fn read(mut table: Table<'_>) -> Option<Self> {
        let table = &mut table;
        let kind = table.variant(
            "type",
            "The type of sink: standard output, a webhook, a program or a message broker.",
            SinkType::as_str,
        );
        let sink = match kind? {
            SinkType::Stdout => Some(Self::Stdout),
            SinkType::Http => HttpSinkSettings::read(table).map(Self::Http),
            SinkType::Command => CommandSinkSettings::read(table).map(Self::Command),
            SinkType::RedisStream => RedisStreamSinkSettings::read(table).map(Self::RedisStream),
            SinkType::Amqp => {
                needs_feature(
                    table,
                    "type",
                    "consumer",
                    "sink-amqp",
                    cfg!(feature = "amqp"),
                );
                AmqpSinkSettings::read(table).map(Self::Amqp)
            }
            SinkType::Nats => {
                needs_feature(
                    table,
                    "type",
                    "consumer",
                    "sink-nats",
                    cfg!(feature = "nats"),
                );
                NatsSinkSettings::read(table).map(Self::Nats)
            }
            SinkType::Kafka => {
                needs_feature(
                    table,
                    "type",
                    "consumer",
                    "sink-kafka",
                    cfg!(feature = "kafka"),
                );
                KafkaSinkSettings::read(table).map(Self::Kafka)
            }
        };
        table.finish();
        sink
    }

    /// Returns true if a delivery can be completed later, at a gateway.
    pub fn can_be_later(&self) -> bool {
        matches!(self, Self::Http(settings) if settings.complete_url.is_some())
    }
}

/// Warns that this program, and so perhaps the process of this role, was built without a feature that a key needs.
pub(super) fn needs_feature(
    table: &mut Table<'_>,
    key: &'static str,
    role: &str,
    feature: &'static str,
    is_there: bool,
) {
    if !is_there && table.secrets() == SinkSecrets::Checked {
        let refused = format!("a {role} built without it does not start");
        table.warning(
            key,
            format!("built without the feature `{feature}`; {refused}"),
        );
    }
}
