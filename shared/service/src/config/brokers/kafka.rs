//! The keys of a connection to Kafka.

use lisa_core::secret::Secret;

use crate::brokers::kafka::{KafkaConnection, OWN_SETTINGS};
use crate::config::secret_file;
use crate::config::table::Table;

/// Reads a connection. Returns `None` if it is unusable; the problem is then recorded.
pub(in crate::config) fn read(table: &mut Table<'_>) -> Option<KafkaConnection> {
    let brokers: Option<Vec<String>> = table.required(
        "brokers",
        "With type `kafka`: the addresses of one or more brokers of the cluster, as `host:9092`.",
    );
    if let Some(brokers) = &brokers {
        let is_address = |text: &String| match text.rsplit_once(':') {
            Some((host, port)) => {
                !host.is_empty() && !host.contains(',') && port.parse::<u16>().is_ok()
            }
            None => false,
        };
        if brokers.is_empty() || !brokers.iter().all(is_address) {
            table.reject(
                "brokers",
                "expected a list of addresses, like [\"host:9092\"]",
            );
        }
    }
    let username: Option<String> =
        table.optional("username", "With type `kafka`: the user name, for SASL.");
    let password = secret_file::password(table);
    let client = table.texts::<Secret>(
        "client",
        "With type `kafka`: additional settings of librdkafka, such as `\"security.protocol\" = \"SASL_PLAINTEXT\"`.",
    );
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
    Some(KafkaConnection {
        brokers: brokers?,
        username,
        password,
        client,
    })
}
