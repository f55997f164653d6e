//! The `kafka` sink: publishes each delivery to a Kafka topic, and waits until all in-sync replicas have it.
//!
//! An ack means that all in-sync replicas have the record. The producer is idempotent, so its own retries write a record
//! only once. If Kafka does not confirm within `delivery_timeout`, or this process dies, the record is published again. It
//! can then be in the topic twice, with the same header `lisa-id`.
//!
//! The headers are those of the message, and `lisa-id`, `lisa-topic`, `lisa-group`, `lisa-attempt`, `lisa-due-at`, and
//! `lisa-late: true` if it is late. The timestamp of the record is the due time, in milliseconds.
//!
//! | Kafka | the delivery |
//! |---|---|
//! | has the record in all in-sync replicas | is acknowledged |
//! | does not confirm within `delivery_timeout`, although some broker is connected | is retried, counted |
//! | has no such topic, or denies access to it | is retried, counted |
//! | refuses the size of the record, or the name of the topic | is rejected |
//! | cannot be reached (no broker is connected), or refuses the login | is deferred, or retried, as `away` says |

use std::fmt;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lisa_service::brokers::kafka::{Context as Connections, KafkaSinkSettings, client};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::util::Timeout;

use super::destination;
use super::link::Link;
use crate::delivery::{Context, Delivery};
use crate::handler::{Handler, Outcome};
use crate::target::{Answer, Target};

/// A sink that publishes each delivery to Kafka. It has one producer, created by the first delivery.
pub struct KafkaSink {
    settings: KafkaSinkSettings,
    target: Target,
    connections: Connections,
    link: Link<FutureProducer<Connections>>,
}

/// Shows no settings of the client, which may hold a password.
impl fmt::Debug for KafkaSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSink").finish_non_exhaustive()
    }
}

impl KafkaSink {
    /// Creates the sink. Does not connect yet.
    pub fn new(settings: KafkaSinkSettings) -> Self {
        Self {
            target: Target::new(settings.target),
            settings,
            connections: Connections::default(),
            link: Link::default(),
        }
    }

    async fn publish(&self, delivery: &Delivery) -> Answer {
        let rejected = |error: String| Answer::Refused(Outcome::reject(error));
        let (topic, key) = match (
            destination(&self.settings.topic, delivery),
            destination(&self.settings.key, delivery),
        ) {
            (Ok(topic), Ok(key)) => (topic, key),
            (Err(error), _) | (_, Err(error)) => return rejected(error),
        };
        let producer = match self.link.get(|_| true, async || self.producer()).await {
            Ok(producer) => producer,
            Err(error) => return Answer::Away(error),
        };
        let due_at = i64::try_from(delivery.due_at.get()).unwrap_or(i64::MAX);
        let record = FutureRecord::to(&topic)
            .key(&*key)
            .payload(&*delivery.payload)
            .timestamp(due_at)
            .headers(headers(delivery));
        let started = Instant::now();
        // The time limit for room in the client's queue is the same as for the delivery itself.
        let limit = Timeout::After(self.settings.delivery_timeout);
        match producer.send(record, limit).await {
            Ok(_) => Answer::Accepted,
            Err((error, _)) => answer(&error, self.connections.down_since(started)),
        }
    }

    fn producer(&self) -> Result<FutureProducer<Connections>, String> {
        let millis = |time: Duration| time.as_millis().to_string();
        let mut client = client(&self.settings.connection, "lisa-consumer");
        client
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", millis(self.settings.delivery_timeout));
        let created = client.create_with_context(self.connections.clone());
        created.map_err(|error| format!("cannot create the client: {error}"))
    }
}

/// # Cancel safety
/// If the future is dropped, Kafka may or may not have the record.
#[async_trait]
impl Handler for KafkaSink {
    async fn handle(&self, delivery: Delivery, _: Context) -> Outcome {
        self.target.outcome(self.publish(&delivery).await)
    }

    fn target(&self) -> Option<&Target> {
        Some(&self.target)
    }
}

/// Returns the answer for an error. `down` is the last connection error, if no broker was connected at some time.
fn answer(error: &KafkaError, down: Option<String>) -> Answer {
    use RDKafkaErrorCode as Code;
    if let Some(reason) = down {
        return Answer::Away(format!("no broker was connected: {reason}"));
    }
    let text = error.to_string();
    match error.rdkafka_error_code() {
        Some(Code::MessageSizeTooLarge | Code::InvalidTopic | Code::InvalidMessageSize) => {
            Answer::Refused(Outcome::reject(text))
        }
        Some(Code::AllBrokersDown | Code::BrokerTransportFailure | Code::Authentication) => {
            Answer::Away(text)
        }
        Some(Code::MessageTimedOut | Code::RequestTimedOut | Code::QueueFull) => {
            Answer::Overloaded(Outcome::retry(text))
        }
        _ => Answer::Failed(Outcome::retry(text)),
    }
}

fn headers(delivery: &Delivery) -> OwnedHeaders {
    let (attempt, due_at) = (delivery.attempt.to_string(), delivery.due_at.to_string());
    let own = [
        ("lisa-id", delivery.id.as_str()),
        ("lisa-topic", delivery.topic.as_str()),
        ("lisa-group", delivery.group.as_str()),
        ("lisa-attempt", &attempt),
        ("lisa-due-at", &due_at),
    ];
    let late = delivery.late.then_some(("lisa-late", "true"));
    let is_own = |name: &str| own.iter().any(|(known, _)| *known == name) || name == "lisa-late";
    let theirs = delivery.headers.iter().filter(|(name, _)| !is_own(name));
    let all = theirs.chain(own).chain(late);
    let insert = |headers: OwnedHeaders, (key, value)| {
        headers.insert(Header {
            key,
            value: Some(value),
        })
    };
    all.fold(OwnedHeaders::new(), insert)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(code: RDKafkaErrorCode) -> KafkaError {
        KafkaError::MessageProduction(code)
    }

    #[test]
    fn a_timeout_counts_if_some_broker_is_connected() {
        let timed_out = failed(RDKafkaErrorCode::MessageTimedOut);
        assert!(matches!(
            answer(&timed_out, None),
            Answer::Overloaded(Outcome::Retry { .. })
        ));
        let down = answer(&timed_out, Some("connection refused".to_owned()));
        assert_eq!(
            down,
            Answer::Away("no broker was connected: connection refused".to_owned())
        );
        let large = failed(RDKafkaErrorCode::MessageSizeTooLarge);
        assert!(matches!(
            answer(&large, None),
            Answer::Refused(Outcome::Reject { .. })
        ));
        let unknown = failed(RDKafkaErrorCode::UnknownTopicOrPartition);
        assert!(matches!(
            answer(&unknown, None),
            Answer::Failed(Outcome::Retry { .. })
        ));
    }
}
