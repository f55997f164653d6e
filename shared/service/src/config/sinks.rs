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

/// Reports that this program was built without a feature that a key needs: a problem if its own start is checked, else a warning,
/// because the process of that role may be another program.
pub(super) fn needs_feature(
    table: &mut Table<'_>,
    key: &'static str,
    role: &str,
    feature: &'static str,
    is_there: bool,
) {
    if is_there {
        return;
    }
    if table.role() == Some(role) {
        table.reject(
            key,
            format!("built without the feature `{feature}`; requires a lisa-{role} built with it"),
        );
    } else if table.secrets() == SinkSecrets::Checked {
        let refused = format!("a {role} built without it does not start");
        table.warning(
            key,
            format!("built without the feature `{feature}`; {refused}"),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::findings::Findings;
    use super::super::layers::{Layers, LoadOptions, Secrets};
    use super::*;

    /// Reads a key of consumers that needs a missing feature, where the start of `role` is checked. Returns the problems and the
    /// warnings.
    fn without_feature(role: Option<&'static str>, secrets: SinkSecrets) -> [Vec<String>; 2] {
        let options = LoadOptions {
            overrides: [("namespace".to_owned(), "shop".to_owned())].into(),
            role,
            ..LoadOptions::default()
        };
        let secrets = Secrets {
            sinks: secrets,
            sources: secrets,
            tokens: secrets,
            listeners: secrets,
        };
        let findings = Findings::new(Arc::new(Layers::merge(options).unwrap()), secrets);
        let mut table = findings.root();
        let _: Option<String> = table.optional("namespace", "The key.");
        needs_feature(&mut table, "namespace", "consumer", "sink-x", false);
        table.finish();
        let found = findings.finish();
        [found.problems, found.warnings].map(|all| all.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_check_refuses_what_the_start_of_its_role_refuses_and_only_warns_of_others() {
        let [problems, warnings] = without_feature(Some("consumer"), SinkSecrets::Checked);
        let refused = "namespace = \"shop\": built without the feature `sink-x`; requires a lisa-consumer built with it";
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains(refused), "{problems:?}");
        assert_eq!(warnings, [""; 0]);
        let [problems, warnings] = without_feature(Some("manager"), SinkSecrets::Checked);
        assert_eq!(
            (problems.len(), warnings.len()),
            (0, 1),
            "{problems:?} {warnings:?}"
        );
        let unused = without_feature(None, SinkSecrets::Unused);
        assert_eq!(unused, [vec![], Vec::<String>::new()]);
    }
}
