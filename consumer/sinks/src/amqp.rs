//! The `amqp` sink: publishes each delivery to RabbitMQ or another AMQP 0-9-1 server, and waits for the confirm.
//!
//! An ack means that the server has confirmed the message. Unless `mandatory` is false, it is in at least one queue: on disk
//! if the queue is durable, on a majority of the nodes if it is a quorum queue. If the confirm is lost, the message is
//! published again, so it can be in a queue twice, with the same `message_id`.
//!
//! Each message is persistent. Its properties are `message_id` (the message id, the same in every attempt), `content_type`
//! and `timestamp` (the due time, in seconds). Its headers are those of the message, and `lisa-topic`, `lisa-group`,
//! `lisa-attempt`, `lisa-due-at`, and `lisa-late: true` if it is late.
//!
//! | the server | the delivery |
//! |---|---|
//! | confirms the message | is acknowledged |
//! | returns the message, because it reaches no queue (`mandatory`) | is retried, counted |
//! | closes the channel because of this message: no such exchange, no permission | is retried, counted |
//! | closes the channel while several messages are in flight | is deferred, and published alone the next time |
//! | sends a nack, or no confirm within `confirm_timeout` | is retried, counted |
//! | refuses the size of the message, or its headers are larger than the server's `frame_max` | is rejected |
//! | cannot be reached, refuses the login, or blocks publishers (memory or disk alarm) | is deferred, or retried, as `away` says |

mod publisher;
mod suspects;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lisa_consumer_core::target::{Answer, Target};
use lisa_consumer_core::{Context, Delivery, Handler, Outcome};
use lisa_service::brokers::amqp::{AmqpSinkSettings, connect};
use tokio::time::timeout;

use self::publisher::{Message, Publisher, Reply};
use self::suspects::Suspects;
use super::destination;
use super::link::Link;

/// The pause of a delivery that is published again, because another message made its result unknown.
const IN_DOUBT: Duration = Duration::from_secs(1);

/// A sink that publishes each delivery to RabbitMQ. It has one connection, opened by the first delivery.
pub struct AmqpSink {
    settings: AmqpSinkSettings,
    target: Target,
    link: Link<Publisher>,
    suspects: Suspects,
    /// True once a message reached no queue: that is logged once.
    returned: AtomicBool,
}

/// Shows no URL, which may hold a password.
impl fmt::Debug for AmqpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpSink").finish_non_exhaustive()
    }
}

impl AmqpSink {
    /// Creates the sink. Does not connect yet.
    pub fn new(settings: AmqpSinkSettings) -> Self {
        Self {
            target: Target::new(settings.target),
            settings,
            link: Link::default(),
            suspects: Suspects::default(),
            returned: AtomicBool::new(false),
        }
    }

    /// Returns the server's answer, or the outcome of a delivery that has none.
    async fn publish(&self, delivery: &Delivery, context: &Context) -> Result<Answer, Outcome> {
        let message = self.message(delivery, context).map_err(Outcome::reject)?;
        let limit = self.settings.confirm_timeout;
        let turn = timeout(limit, self.suspects.turn(&delivery.id)).await;
        let _turn = turn.map_err(|_| Outcome::defer(IN_DOUBT))?;
        let opened = self
            .link
            .get(Publisher::is_open, async || self.open().await);
        let publisher = match opened.await {
            Ok(publisher) => publisher,
            Err(error) => return Ok(Answer::Away(error)),
        };
        publisher.check(&message).map_err(Outcome::reject)?;
        let Ok(reply) = timeout(limit, publisher.publish(message)).await else {
            self.link.drop_silent(&publisher).await;
            let outcome = Outcome::retry(format!("no confirm within {limit:?}"));
            return Ok(Answer::Overloaded(outcome));
        };
        match &reply {
            Reply::Suspect | Reply::ChannelClosed(_) => self.suspects.add(&delivery.id),
            _ => self.suspects.remove(&delivery.id),
        }
        if let Reply::Returned(reason) = &reply
            && !self.returned.swap(true, Ordering::Relaxed)
        {
            let (topic, routing_key) = (&delivery.topic, &self.settings.routing_key);
            tracing::warn!(%topic, %routing_key, reason, "a message reaches no queue; it is retried");
        }
        answer(reply)
    }

    fn message(&self, delivery: &Delivery, context: &Context) -> Result<Message, String> {
        let routing_key = destination(&self.settings.routing_key, delivery)?;
        Ok(Message {
            exchange: short("exchange", &self.settings.exchange)?,
            routing_key: short("routing key", &routing_key)?,
            mandatory: self.settings.mandatory,
            properties: properties(delivery, context)?,
            payload: delivery.payload.clone(),
        })
    }

    async fn open(&self) -> Result<Publisher, String> {
        let client = connect(&self.settings.connection, "lisa-consumer").await?;
        let opening = Publisher::open(client);
        match timeout(self.settings.connection.connect_timeout, opening).await {
            Ok(opened) => opened.map_err(|error| format!("cannot open a channel: {error}")),
            Err(_) => Err("cannot open a channel within connect_timeout".to_owned()),
        }
    }
}

/// # Cancel safety
/// If the future is dropped, the server may or may not have the message.
#[async_trait]
impl Handler for AmqpSink {
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

/// Returns the answer for a reply, or the outcome of a delivery whose result is unknown.
fn answer(reply: Reply) -> Result<Answer, Outcome> {
    Ok(match reply {
        Reply::Confirmed => Answer::Accepted,
        Reply::Returned(reason) => Answer::Refused(Outcome::retry(reason)),
        Reply::Refused => Answer::Failed(Outcome::retry("the server refused the message (nack)")),
        Reply::InDoubt | Reply::Suspect => return Err(Outcome::defer(IN_DOUBT)),
        // RabbitMQ: "message size 2048 is larger than configured max size 1024"
        Reply::ChannelClosed(reason) if reason.contains("is larger than configured max size") => {
            Answer::Refused(Outcome::reject(reason))
        }
        Reply::ChannelClosed(reason) => Answer::Failed(Outcome::retry(reason)),
        Reply::Blocked(reason) => {
            Answer::Away(format!("the server blocks all publishers: {reason}"))
        }
        Reply::Lost(error) => Answer::Away(format!("connection lost before the confirm: {error}")),
    })
}

fn properties(delivery: &Delivery, context: &Context) -> Result<BasicProperties, String> {
    let mut headers = FieldTable::default();
    let mut properties = BasicProperties::default()
        .with_delivery_mode(2)
        .with_message_id(short("message id", delivery.id.as_str())?)
        .with_timestamp(delivery.due_at.get() / 1000);
    for (name, value) in super::headers(delivery, context) {
        if name == "content-type" {
            properties = properties.with_content_type(short("content type", &value)?);
        } else {
            headers.insert(short("header name", &name)?, text(&value));
        }
    }
    Ok(properties.with_headers(headers))
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

/// Converts a text into an AMQP short string, which has at most 255 bytes. `what` names the text in the error.
fn short(what: &str, text: &str) -> Result<ShortString, String> {
    ShortString::try_new(text)
        .map_err(|_| format!("cannot publish a {what} of more than 255 bytes"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tests::{context, delivery};

    #[test]
    fn a_message_that_is_too_large_is_rejected_and_a_doubt_is_no_answer() {
        let reason =
            "PRECONDITION_FAILED - message size 2048 is larger than configured max size 1024";
        let closed = |reason: &str| answer(Reply::ChannelClosed(reason.to_owned()));
        let rejected = Answer::Refused(Outcome::reject(reason));
        assert_eq!(closed(reason), Ok(rejected));
        let reason = "NOT_FOUND - no exchange 'due' in vhost '/'";
        assert_eq!(closed(reason), Ok(Answer::Failed(Outcome::retry(reason))));
        for reply in [Reply::InDoubt, Reply::Suspect] {
            assert_eq!(answer(reply), Err(Outcome::defer(IN_DOUBT)));
        }
    }

    #[test]
    fn what_does_not_fit_into_the_protocol_is_refused_before_it_is_sent() {
        let mut delivery = delivery("x");
        assert!(properties(&delivery, &context()).is_ok());
        let mut headers = lisa_core::message::Headers::default();
        headers.insert("content-type", &"x".repeat(256)).unwrap();
        delivery.headers = Arc::new(headers);
        let error = properties(&delivery, &context()).unwrap_err();
        assert_eq!(
            error,
            "cannot publish a content type of more than 255 bytes"
        );
    }

    #[test]
    fn the_headers_of_the_sink_win() {
        let mut delivery = delivery("x");
        let mut headers = lisa_core::message::Headers::default();
        headers.insert_any("lisa-topic", "forged").unwrap();
        headers.insert("traceparent", "00-1-2-01").unwrap();
        delivery.headers = Arc::new(headers);
        let properties = properties(&delivery, &context()).unwrap();
        let headers = properties.headers().as_ref().unwrap().inner();
        assert_eq!(headers.get("lisa-topic"), Some(&text("orders")));
        assert_eq!(headers.get("traceparent"), Some(&text("00-1-2-01")));
        assert_eq!(
            properties.message_id().as_ref().unwrap().as_str(),
            "order-7"
        );
    }
}
