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
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use lisa_consumer_core::target::{Answer, Target};
use lisa_consumer_core::{Context, Delivery, Handler, Outcome};
use lisa_core::sync::Mutex;
use lisa_service::brokers::kafka::{
    Context as Connections, KafkaSinkSettings, check_topic, client,
};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::util::Timeout;

use super::{SinkError, destination};

type Producer = FutureProducer<Connections>;

/// A sink that publishes each delivery to Kafka. It has one producer, which connects when it is created.
/// A producer that has failed for good is replaced.
pub struct KafkaSink {
    settings: KafkaSinkSettings,
    target: Target,
    connections: Connections,
    producer: Mutex<Arc<Producer>>,
}

/// Shows no settings of the client, which may hold a password.
impl fmt::Debug for KafkaSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSink").finish_non_exhaustive()
    }
}

impl KafkaSink {
    /// Creates the sink, which connects in the background.
    ///
    /// # Errors
    /// A setting of the client is unknown or malformed, or needs a feature that it was built without.
    pub fn new(settings: KafkaSinkSettings) -> Result<Self, SinkError> {
        let connections = Connections::default();
        let producer = create(&settings, &connections);
        Ok(Self {
            producer: Mutex::new(producer.map_err(|error| SinkError::Kafka(error.to_string()))?),
            target: Target::new(settings.target),
            settings,
            connections,
        })
    }

    /// Returns an outcome in place of an answer for a delivery that is not sent.
    async fn publish(&self, delivery: &Delivery, context: &Context) -> Result<Answer, Outcome> {
        let topic = destination(&self.settings.topic, delivery).map_err(Outcome::reject)?;
        check_topic(&topic).map_err(Outcome::reject)?;
        let key = destination(&self.settings.key, delivery).map_err(Outcome::reject)?;
        let producer = self.producer.lock().clone();
        let due_at = i64::try_from(delivery.due_at.get()).unwrap_or(i64::MAX);
        let record = FutureRecord::to(&topic)
            .key(&*key)
            .payload(&*delivery.payload)
            .timestamp(due_at)
            .headers(headers(delivery, context));
        let started = Instant::now();
        // The time limit for room in the client's queue is the same as for the delivery itself.
        let limit = Timeout::After(self.settings.delivery_timeout);
        let error = match producer.send(record, limit).await {
            Ok(_) => return Ok(Answer::Accepted),
            Err((error, _)) => error,
        };
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
            self.replace(&producer);
        }
        Ok(answer(&error, self.connections.down_since(started)))
    }

    /// Replaces a producer that works no more, unless another delivery has done so.
    fn replace(&self, broken: &Arc<Producer>) {
        let mut current = self.producer.lock();
        if Arc::ptr_eq(&current, broken) {
            match create(&self.settings, &self.connections) {
                Ok(producer) => *current = producer,
                Err(error) => tracing::warn!(%error, "cannot replace the client"),
            }
        }
    }
}

/// # Cancel safety
/// If the future is dropped, Kafka may or may not have the record.
#[async_trait]
impl Handler for KafkaSink {
    async fn handle(&self, delivery: Delivery, context: Context) -> Outcome {
        match self.publish(&delivery, &context).await {
            Ok(answer) => self.target.outcome(answer),
            Err(outcome) => outcome,
        }
    }

    fn target(&self) -> Option<&Target> {
        Some(&self.target)
    }
}

/// The librdkafka setting for the largest reply of a broker, and its value in bytes. librdkafka's default is 100 MB.
const LONGEST_REPLY: (&str, &str) = ("receive.message.max.bytes", "4194304");

fn create(settings: &KafkaSinkSettings, connections: &Connections) -> KafkaResult<Arc<Producer>> {
    let limit = settings.delivery_timeout.as_millis().to_string();
    let mut config = client(&settings.connection, "lisa-consumer");
    if config.get(LONGEST_REPLY.0).is_none() {
        config.set(LONGEST_REPLY.0, LONGEST_REPLY.1);
    }
    let producer: Producer = config
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("message.timeout.ms", limit)
        .create_with_context(connections.clone())?;
    Ok(Arc::new(producer))
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
        Some(
            Code::AllBrokersDown
            | Code::BrokerTransportFailure
            | Code::Authentication
            // Of the client, not of the message.
            | Code::Fatal,
        ) => Answer::Away(text),
        Some(Code::MessageTimedOut | Code::RequestTimedOut | Code::QueueFull) => {
            Answer::Overloaded(Outcome::retry(text))
        }
        _ => Answer::Failed(Outcome::retry(text)),
    }
}

fn headers(delivery: &Delivery, context: &Context) -> OwnedHeaders {
    super::headers(delivery, context).fold(OwnedHeaders::new(), |headers, (key, value)| {
        headers.insert(Header {
            key: &key,
            value: Some(&*value),
        })
    })
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
