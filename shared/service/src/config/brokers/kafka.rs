//! Reads the keys of Kafka that are more than one value.

use lisa_core::secret::Secret;

use crate::brokers::kafka::{KafkaConnection, KafkaSourceSettings, OWN_SETTINGS, check_topic};
use crate::config::table::Table;
use crate::template::Template;

pub(crate) fn connection(table: &mut Table<'_>, _: &str) -> Option<KafkaConnection> {
    KafkaConnection::read(table)
}

pub(crate) fn check_brokers(brokers: &[String]) -> Result<(), &'static str> {
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
pub(crate) fn client(
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

pub(crate) fn check_fixed(topic: &Template) -> Result<(), String> {
    topic.fixed().map_or(Ok(()), check_topic)
}

pub(crate) fn check_group(group: &str) -> Result<(), &'static str> {
    match group.is_empty() {
        true => Err("must not be empty"),
        false => Ok(()),
    }
}

/// Checks the keys for messages that Lisa refuses.
pub(crate) fn check_refused(settings: &KafkaSourceSettings, table: &mut Table<'_>) {
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
