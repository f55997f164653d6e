//! The `nats` sink: publishes each delivery to a NATS JetStream stream, and waits for the acknowledgment.
//!
//! An ack means that a quorum of the stream's servers has stored the message. With one server, it is on disk only after the
//! server's `sync_interval`. If the acknowledgment is lost, the message is published again with the same `Nats-Msg-Id`. The
//! stream still has it once if that happens within the stream's `duplicate_window`.
//!
//! `Nats-Msg-Id` is `topic:group:id`. The headers are those of the message, except for names that start with `nats-`, and
//! `lisa-id`, `lisa-topic`, `lisa-group`, `lisa-attempt`, `lisa-due-at`, and `lisa-late: true` if it is late.
//!
//! | NATS | the delivery |
//! |---|---|
//! | acknowledges the message as stored, or as a duplicate | is acknowledged |
//! | has no stream for the subject, or the stream refuses the message | is retried, counted |
//! | does not acknowledge within `ack_timeout` | is retried, counted |
//! | refuses the size of the message | is rejected |
//! | cannot be reached, or refuses the login | is deferred, or retried, as `away` says |

use lisa_core::causes::with_causes;
use std::fmt;

use async_nats::Client;
use async_nats::connection::State;
use async_nats::header::{HeaderMap, HeaderName, HeaderValue, NATS_MESSAGE_ID};
use async_nats::jetstream::Context as JetStream;
use async_nats::jetstream::context::{ContextBuilder, PublishError, PublishErrorKind};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use lisa_consumer_core::target::{Answer, Target};
use lisa_consumer_core::{Context, Delivery, Handler, Outcome};
use lisa_service::brokers::nats::{ClientLimits, NatsSinkSettings, check_subject, connect};

use super::batches::{Batch, Batches};
use super::destination;
use super::link::Link;

/// The number of messages that may wait for an acknowledgment: more than the largest concurrency.
const IN_FLIGHT: usize = 20_000;
/// The limits of acknowledgments.
const LIMITS: ClientLimits = ClientLimits {
    max_message: 64 * 1024,
    waiting: 1024,
};

/// A sink that publishes each delivery to NATS JetStream. It has one connection, opened by the first delivery.
pub struct NatsSink {
    settings: NatsSinkSettings,
    target: Target,
    link: Link<JetStream>,
    batches: Batches<Message, Answer>,
}

/// A message to publish.
struct Message {
    subject: String,
    headers: HeaderMap,
    payload: Bytes,
}

/// Shows no URL, which may hold a password.
impl fmt::Debug for NatsSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSink").finish_non_exhaustive()
    }
}

impl NatsSink {
    /// Creates the sink. Does not connect yet.
    pub fn new(settings: NatsSinkSettings) -> Self {
        Self {
            target: Target::new(settings.target),
            settings,
            link: Link::default(),
            batches: Batches::default(),
        }
    }

    /// Returns an outcome in place of an answer for a delivery that is not sent.
    async fn publish(&self, delivery: &Delivery, context: &Context) -> Result<Answer, Outcome> {
        let subject = destination(&self.settings.subject, delivery).map_err(Outcome::reject)?;
        check_subject(&subject).map_err(Outcome::reject)?;
        let message = Message {
            subject: subject.into_owned(),
            headers: headers(delivery, context).map_err(Outcome::reject)?,
            payload: delivery.payload.clone(),
        };
        let stream = match self.link.get(|_| true, async || self.connect().await).await {
            Ok(stream) => stream,
            Err(error) => return Ok(Answer::Away(error)),
        };
        let publish = async move |batch: Batch<_, _>| {
            let each = batch.into_iter();
            join_all(
                each.map(async |(message, reply)| reply.send(publish(&stream, message).await)),
            )
            .await;
        };
        let answer = self.batches.request(message, publish).await;
        Ok(answer
            .unwrap_or_else(|| Answer::Failed(Outcome::retry("the publish ended without a reply"))))
    }

    async fn connect(&self) -> Result<JetStream, String> {
        let client = connect(&self.settings.connection, "lisa-consumer", LIMITS).await?;
        Ok(ContextBuilder::new()
            .timeout(self.settings.ack_timeout)
            .max_ack_inflight(IN_FLIGHT)
            .build(client))
    }
}

/// # Cancel safety
/// If the future is dropped, the stream may or may not have the message.
#[async_trait]
impl Handler for NatsSink {
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

async fn publish(stream: &JetStream, message: Message) -> Answer {
    let client = stream.client();
    if client.connection_state() != State::Connected {
        // A publish would wait in the client's memory.
        return Answer::Away("no connection to NATS; reconnecting".to_owned());
    }
    let connects = connects(&client);
    let Message {
        subject,
        headers,
        payload,
    } = message;
    let published = stream.publish_with_headers(subject, headers, payload);
    let acknowledged = async { published.await?.await };
    let error = match acknowledged.await {
        Ok(_) => return Answer::Accepted,
        Err(error) => error,
    };
    let was_cut =
        client.connection_state() != State::Connected || self::connects(&client) != connects;
    answer(&error, was_cut)
}

/// Returns the number of times that the client has connected.
fn connects(client: &Client) -> u64 {
    client
        .statistics()
        .connects
        .load(std::sync::atomic::Ordering::Relaxed)
}

/// Returns the answer for an error. `was_cut` is true if the connection was lost after the publish began.
fn answer(error: &PublishError, was_cut: bool) -> Answer {
    let text = with_causes(error);
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => Answer::Refused(Outcome::reject(text)),
        PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe | PublishErrorKind::Other
            if was_cut =>
        {
            Answer::Away(format!("connection lost before the acknowledgment: {text}"))
        }
        PublishErrorKind::BrokenPipe => Answer::Away(text),
        PublishErrorKind::TimedOut => Answer::Overloaded(Outcome::retry(text)),
        PublishErrorKind::StreamNotFound
        | PublishErrorKind::WrongLastMessageId
        | PublishErrorKind::WrongLastSequence
        | PublishErrorKind::MaxAckPending
        | PublishErrorKind::Other => Answer::Failed(Outcome::retry(text)),
    }
}

fn headers(delivery: &Delivery, context: &Context) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let mut insert = |name: &str, value: &str| {
        let refused =
            |what| format!("cannot publish the header {name:?}: its {what} is not allowed");
        let value: HeaderValue = value.parse().map_err(|_| refused("value"))?;
        let name: HeaderName = name.parse().map_err(|_| refused("name"))?;
        headers.insert(name, value);
        Ok::<(), String>(())
    };
    for (name, value) in super::headers(delivery, context) {
        // NATS interprets headers with this prefix.
        if !name.starts_with("nats-") {
            insert(&name, &value)?;
        }
    }
    let (topic, group, id) = (&delivery.topic, &delivery.group, &delivery.id);
    headers.insert(NATS_MESSAGE_ID, format!("{topic}:{group}:{id}"));
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tests::{context, delivery};

    #[test]
    fn the_message_id_is_the_same_in_every_attempt_and_the_headers_of_the_sink_win() {
        let mut delivery = delivery("x");
        let mut own = lisa_core::message::Headers::default();
        own.insert_any("lisa-topic", "forged").unwrap();
        own.insert("nats-msg-id", "forged").unwrap();
        own.insert("nats-expected-last-sequence", "7").unwrap();
        own.insert("traceparent", "00-1-2-01").unwrap();
        delivery.headers = Arc::new(own);
        for attempt in [1, 2] {
            delivery.attempt = attempt;
            let headers = headers(&delivery, &context()).unwrap();
            let value = |name: &str| headers.get(name).map(|value| value.as_str().to_owned());
            assert_eq!(
                value("Nats-Msg-Id").as_deref(),
                Some("orders:billing:order-7")
            );
            assert_eq!(value("lisa-topic").as_deref(), Some("orders"));
            assert_eq!(value("lisa-attempt"), Some(attempt.to_string()));
            assert_eq!(value("traceparent").as_deref(), Some("00-1-2-01"));
            assert_eq!(value("nats-expected-last-sequence"), None);
            assert_eq!(value("nats-msg-id"), None);
        }
    }

    #[test]
    fn a_timeout_counts_unless_the_connection_was_lost() {
        let timed_out = PublishError::new(PublishErrorKind::TimedOut);
        assert!(matches!(
            answer(&timed_out, false),
            Answer::Overloaded(Outcome::Retry { .. })
        ));
        assert!(matches!(answer(&timed_out, true), Answer::Away(_)));
        let missing = PublishError::new(PublishErrorKind::StreamNotFound);
        assert!(matches!(
            answer(&missing, true),
            Answer::Failed(Outcome::Retry { .. })
        ));
        let large = PublishError::new(PublishErrorKind::MaxPayloadExceeded);
        assert!(matches!(
            answer(&large, false),
            Answer::Refused(Outcome::Reject { .. })
        ));
    }
}
