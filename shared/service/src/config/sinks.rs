//! The sinks of subscriptions, the built-in handlers of the consumer binary.
//!
//! Checks them without the network, and resolves no names. The sinks themselves are in the consumer.

use std::time::Duration;

use lisa_core::fields::{Any, Field, Reader as _, within};
use lisa_core::names::words;

use super::layers::SinkSecrets;
use super::table::Table;
use crate::brokers::amqp::AmqpSinkSettings;
use crate::brokers::kafka::KafkaSinkSettings;
use crate::brokers::nats::NatsSinkSettings;
use crate::brokers::redis_stream::RedisStreamSinkSettings;
use crate::command::{CommandSinkSettings, MAX_VARIABLES, check_program, check_variable};
use crate::targets::{Away, DEFAULT_MAX_AWAY, TargetSettings};
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
                needs_feature(table, "consumer", "sink-amqp", cfg!(feature = "amqp"));
                AmqpSinkSettings::read(table).map(Self::Amqp)
            }
            SinkType::Nats => {
                needs_feature(table, "consumer", "sink-nats", cfg!(feature = "nats"));
                NatsSinkSettings::read(table).map(Self::Nats)
            }
            SinkType::Kafka => {
                needs_feature(table, "consumer", "sink-kafka", cfg!(feature = "kafka"));
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

/// Warns that this program, and so perhaps the process of this role, was built without a feature that a sink or source needs.
pub(super) fn needs_feature(
    table: &mut Table<'_>,
    role: &str,
    feature: &'static str,
    is_there: bool,
) {
    if !is_there && table.secrets() == SinkSecrets::Checked {
        let refused = format!("a {role} built without it does not start");
        table.warning(
            "type",
            format!("built without the feature `{feature}`; {refused}"),
        );
    }
}

/// Reads the rule of a webhook whose server is unavailable.
pub(crate) fn retried(table: &mut Table<'_>, _: &str) -> Option<TargetSettings> {
    Some(target(table, Away::Retry))
}

/// Reads the rule of a message broker that is unavailable.
pub(crate) fn deferred(table: &mut Table<'_>, _: &str) -> Option<TargetSettings> {
    Some(target(table, Away::Defer))
}

fn target(table: &mut Table<'_>, away: Away) -> TargetSettings {
    let away = Field::new(
        "away",
        away,
        "The outcome of a delivery whose target is unavailable. `defer` counts no attempt, `retry` does.",
    );
    let max_away = Field::new(
        "max_away",
        DEFAULT_MAX_AWAY,
        "With `away = \"defer\"`: the duration of an outage after which deliveries count as attempts.",
    );
    let year = Duration::from_hours(365 * 24);
    TargetSettings {
        away: table.read(away, Any),
        max_away: table.read(max_away, within(Duration::from_secs(1)..=year)),
    }
}

pub(crate) fn check_command(command: &[String]) -> Result<(), &'static str> {
    match command.first() {
        Some(program) if !program.is_empty() => Ok(()),
        _ => Err("must be a list whose first item is a program"),
    }
}

/// Warns if this machine has no such program. A consumer elsewhere may have it.
pub(crate) fn look_for_program(settings: &CommandSinkSettings, table: &mut Table<'_>) {
    if let Some(program) = settings.command.first().filter(|name| !name.is_empty())
        && table.secrets() == SinkSecrets::Checked
        && let Err(why) = check_program(program)
    {
        let refused = "a consumer on this machine would not start";
        table.warning(
            "command",
            format!("cannot run {program:?}: {why}; {refused}"),
        );
    }
}

pub(crate) fn check_environment(names: &[String]) -> Result<(), String> {
    if names.len() > MAX_VARIABLES {
        return Err(format!("must have at most {MAX_VARIABLES} names"));
    }
    names
        .iter()
        .try_for_each(|name| check_variable(name))
        .map_err(str::to_owned)
}
