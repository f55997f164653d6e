//! Connections to Kafka.

use std::time::Duration;

use lisa_core::secret::Secret;
use lisa_core::time::shorten;

use crate::settings::settings;
use crate::targets::TargetSettings;
use crate::template::Template;

/// The default of [`KafkaSinkSettings::delivery_timeout`].
pub const DEFAULT_DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings of librdkafka that Lisa sets itself.
pub const OWN_SETTINGS: &[&str] = &[
    "acks",
    "auto.offset.reset",
    "bootstrap.servers",
    "client.id",
    "delivery.timeout.ms",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "group.id",
    "message.timeout.ms",
    "metadata.broker.list",
    "request.required.acks",
    "sasl.password",
    "sasl.username",
    "statistics.interval.ms",
];

/// Checks the name of a topic.
///
/// # Errors
/// Returns the rule for names.
pub fn check_topic(topic: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let is_name = (1..=249).contains(&topic.len()) && topic.chars().all(is_allowed);
    if is_name && !matches!(topic, "." | "..") {
        return Ok(());
    }
    let topic = shorten(topic);
    Err(format!(
        "{topic:?} is not a topic of Kafka: must match [a-zA-Z0-9._-]{{1,249}}"
    ))
}

settings! {
    /// The settings of a connection.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct KafkaConnection {
        /// The addresses of one or more brokers of the cluster, as `host:9092`.
        required brokers: Vec<String>, check keys::check_brokers;
        /// The user name, for SASL.
        optional username: Option<String>;
        /// The password, for SASL.
        secret password: Option<Secret>;
        /// Additional settings of librdkafka, such as `"security.protocol" = "SASL_PLAINTEXT"`.
        part client: Vec<(String, Secret)>, by keys::client;
    }
}

settings! {
    /// The settings of the `kafka` sink.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct KafkaSinkSettings {
        /// The cluster.
        nested connection: KafkaConnection;
        /// The topic to publish to.
        default topic: Template = Template::constant("due-{topic}"), check keys::check_fixed;
        /// The key of the record, which determines its partition.
        default key: Template = Template::constant("{id}");
        /// The time limit until all in-sync replicas have a record.
        default delivery_timeout: Duration = DEFAULT_DELIVERY_TIMEOUT, in super::DELIVERY_TIMEOUTS;
        /// The rule for a cluster that is unavailable.
        part target: TargetSettings, by crate::targets::deferred;
    }
}

settings! {
    /// The settings of a source of type `kafka`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct KafkaSourceSettings, check = keys::check_refused {
        /// The cluster.
        nested connection: KafkaConnection;
        /// The topic of Kafka to take messages off.
        required topic: String, check check_topic;
        /// The consumer group whose offsets are committed. The default is `lisa-` and the name of the source.
        optional group: Option<String>, check keys::check_group;
        /// The topic of Kafka for messages that Lisa permanently refuses. Without it, the source stops at such a message.
        optional dead_letter_topic: Option<String>, check check_topic;
        /// True to drop messages that Lisa permanently refuses, and so lose them.
        default skip_refused: bool = false;
        /// The maximum number of messages that are taken and not yet accepted or refused.
        default prefetch: u16 = super::DEFAULT_PREFETCH, in super::PREFETCHES;
    }
}

impl KafkaSourceSettings {
    /// Returns the consumer group of a source.
    pub fn group(&self, source: &str) -> String {
        super::name_at_broker(self.group.as_deref(), source)
    }

    /// Returns the action for a message that Lisa refuses permanently.
    pub fn refused(&self) -> Refused {
        match &self.dead_letter_topic {
            Some(topic) => Refused::DeadLetter(topic.clone()),
            None if self.skip_refused => Refused::Skip,
            None => Refused::Block,
        }
    }
}

/// The action of a `kafka` source for a message that Lisa refuses permanently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Blocks the source at the message, and retries it.
    Block,
    /// Publishes the message to this Kafka topic, with the reason in a header, and continues.
    DeadLetter(String),
    /// Drops the message and continues.
    Skip,
}

#[cfg(feature = "process")]
mod keys {
    //! Reads the keys that are more than one value.

    use lisa_core::secret::Secret;

    use super::{KafkaSourceSettings, OWN_SETTINGS, check_topic};
    use crate::config::table::Table;
    use crate::template::Template;

    pub(super) fn check_brokers(brokers: &[String]) -> Result<(), &'static str> {
        let is_address = |text: &String| match text.rsplit_once(':') {
            Some((host, port)) => {
                !host.is_empty() && !host.contains(',') && port.parse::<u16>().is_ok()
            }
            None => false,
        };
        match brokers.is_empty() || !brokers.iter().all(is_address) {
            true => Err("expected a list of addresses, like [\"host:9092\"]"),
            false => Ok(()),
        }
    }

    /// Reads settings of librdkafka.
    pub(super) fn client(
        table: &mut Table<'_>,
        meaning: &'static str,
    ) -> Option<Vec<(String, Secret)>> {
        let client = table.texts::<Secret>("client", meaning);
        for (name, value) in &client {
            if OWN_SETTINGS.contains(&name.as_str()) {
                table.reject_secret("client", name, "Lisa sets this itself".to_owned());
            }
            let needs_tls =
                name == "security.protocol" && value.expose().to_ascii_uppercase().ends_with("SSL");
            if needs_tls && !cfg!(feature = "kafka-tls") {
                let reason = "built without the feature `kafka-tls`".to_owned();
                table.reject_secret("client", name, reason);
            }
        }
        Some(client)
    }

    pub(super) fn check_fixed(topic: &Template) -> Result<(), String> {
        topic.fixed().map_or(Ok(()), check_topic)
    }

    pub(super) fn check_group(group: &str) -> Result<(), &'static str> {
        match group.is_empty() {
            true => Err("must not be empty"),
            false => Ok(()),
        }
    }

    /// Checks the keys for messages that Lisa refuses.
    pub(super) fn check_refused(settings: &KafkaSourceSettings, table: &mut Table<'_>) {
        let Some(dead_letters) = &settings.dead_letter_topic else {
            return;
        };
        if *dead_letters == settings.topic {
            table.reject("dead_letter_topic", "must differ from topic");
        }
        if settings.skip_refused {
            table.reject("skip_refused", "cannot be combined with dead_letter_topic");
        }
    }
}

#[cfg(feature = "kafka")]
pub use client::{Context, client};

#[cfg(feature = "kafka")]
mod client {
    use std::sync::Arc;
    use std::time::Instant;

    use lisa_core::sync::Mutex;
    use rdkafka::config::RDKafkaLogLevel;
    use rdkafka::consumer::ConsumerContext;
    use rdkafka::error::KafkaError;
    use rdkafka::types::RDKafkaErrorCode;
    use rdkafka::{ClientConfig, ClientContext, Statistics};

    use super::KafkaConnection;

    /// Returns the settings of a client, which reports to a [`Context`]. The brokers' logs show `name`.
    pub fn client(settings: &KafkaConnection, name: &str) -> ClientConfig {
        let mut client = ClientConfig::new();
        // With the default of 10 s, each outage would last up to 10 s longer.
        client.set("reconnect.backoff.max.ms", "1000");
        for (name, value) in &settings.client {
            client.set(name, value.expose());
        }
        client
            .set("bootstrap.servers", settings.brokers.join(","))
            .set("client.id", name)
            .set("statistics.interval.ms", "1000")
            .set_log_level(RDKafkaLogLevel::Warning);
        if let Some(username) = &settings.username {
            client.set("sasl.username", username);
        }
        if let Some(password) = &settings.password {
            client.set("sasl.password", password.expose());
        }
        client
    }

    /// The state of a client's connections. Clones share it.
    #[derive(Clone, Debug, Default)]
    pub struct Context(Arc<Mutex<Shared>>);

    #[derive(Debug, Default)]
    struct Shared {
        /// The last time at which no broker was connected.
        down_at: Option<Instant>,
        /// The last error of a connection.
        error: String,
    }

    impl Context {
        /// Returns the last connection error if no broker was connected at some time since `start`. An outage is detected
        /// within a second.
        pub fn down_since(&self, start: Instant) -> Option<String> {
            let shared = self.0.lock();
            let was_down = shared.down_at.is_some_and(|at| at >= start);
            was_down.then(|| shared.error.clone())
        }
    }

    impl ClientContext for Context {
        fn log(&self, level: RDKafkaLogLevel, _: &str, message: &str) {
            // Connection errors are repeated with each attempt; the sink or source logs the first one.
            tracing::debug!(?level, message, "librdkafka");
        }

        fn stats(&self, statistics: Statistics) {
            let brokers = statistics.brokers.values();
            if !brokers.into_iter().any(|broker| broker.state == "UP") {
                self.0.lock().down_at = Some(Instant::now());
            }
        }

        fn error(&self, error: KafkaError, reason: &str) {
            let mut shared = self.0.lock();
            if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown) {
                shared.down_at = Some(Instant::now());
            } else {
                reason.clone_into(&mut shared.error);
            }
        }
    }

    impl ConsumerContext for Context {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_has_a_name_that_kafka_allows() {
        assert_eq!(check_topic("due-orders.7_x"), Ok(()));
        let long = "x".repeat(250);
        for topic in ["", ".", "..", "a/b", "a b", "ä", &long] {
            assert!(check_topic(topic).is_err(), "{topic}");
        }
    }
}
