//! Sends callbacks: messages that report the outcome of other messages.
//!
//! A callback is an ordinary message. It has the payload and the headers of the message that it reports, and headers that
//! describe the outcome. Its id is derived from that message, its group and its outcome, so a repeated callback is a
//! duplicate. The callback for a success is sent before the ack, and the one for garbage (dead letters) before the garbage
//! hook of the handler. So neither is lost, and either may be repeated.

use std::time::Duration;

use bytes::Bytes;
use lisa_core::broker::BrokerError;
use lisa_core::message::{
    CallbackOutcome, Headers, MessageId, NewId, Options, OrderingKey, PreparedMessage, Record,
    visible_ascii,
};
use lisa_core::state::{GarbageReason, SendOutcome};
use lisa_core::time::When;
use lisa_core::topic::Topic;
use tokio::time::{Instant, sleep_until};

use crate::callbacks::PREFIX;
use crate::delivery::Delivery;
use crate::worker::state::ShardWorker;

/// The maximum length of a chain of callbacks, each of which reports the one before it.
const MAX_HOPS: u32 = 8;

/// The reason why a callback was not sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallbackError {
    #[error("topic {0} has reached its max_messages or max_bytes")]
    Full(Topic),
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// The report of one outcome.
pub(crate) struct Callback {
    /// The delivery that succeeded, or that of the garbage hook.
    delivery: Delivery,
    /// The reason, if the message is in garbage.
    garbage: Option<GarbageReason>,
}

impl Callback {
    /// Creates the callback for a delivery whose handler has succeeded.
    pub(crate) fn success(delivery: Delivery) -> Self {
        Self {
            delivery,
            garbage: None,
        }
    }

    /// Creates the callback for a message in garbage; `delivery` is that of the garbage hook.
    pub(crate) fn garbage(delivery: Delivery, reason: GarbageReason) -> Self {
        Self {
            delivery,
            garbage: Some(reason),
        }
    }

    fn outcome(&self) -> CallbackOutcome {
        match self.garbage {
            None => CallbackOutcome::Success,
            Some(_) => CallbackOutcome::Garbage,
        }
    }

    /// Sends the callback. Retries for up to `limit` while the topic is full or unavailable, but not during a shutdown.
    ///
    /// # Errors
    /// Returns the reason if the callback was not sent.
    ///
    /// # Cancel safety
    /// If the future is dropped, the callback may have been sent. If it is sent again, it is a duplicate.
    pub(crate) async fn send(
        &self,
        worker: &ShardWorker,
        to: &Topic,
        limit: Duration,
    ) -> Result<(), CallbackError> {
        let callbacks = worker.subscription.callbacks();
        let (id, hops) = (&self.delivery.id, hops(&self.delivery));
        if hops >= MAX_HOPS {
            self.count(worker, "too_many_hops");
            if callbacks.is_time_to_log() {
                tracing::warn!(subscription = %worker.subscription, %id, hops, topic = %to, "callback not sent: its chain of callbacks is too long");
            }
            return Ok(());
        }
        let end = Instant::now() + limit;
        loop {
            let error = match self.try_send(worker, to).await {
                Ok(result) => {
                    self.count(worker, result);
                    callbacks.works(to);
                    return Ok(());
                }
                Err(error) => error,
            };
            let is_full = matches!(error, CallbackError::Full(_));
            self.count(worker, if is_full { "full" } else { "failed" });
            callbacks.failed(to, &worker.subscription, &error);
            tokio::select! {
                biased;
                () = worker.draining().cancelled() => return Err(error),
                () = sleep_until(end) => return Err(error),
                () = callbacks.turn(to) => {}
            }
        }
    }

    /// Sends the callback once. Returns the result for the metric.
    async fn try_send(
        &self,
        worker: &ShardWorker,
        to: &Topic,
    ) -> Result<&'static str, CallbackError> {
        let (broker, id, of) = (&worker.process.broker, &self.delivery.id, worker.topic());
        let ids = std::slice::from_ref(id);
        let key = broker.ordering_keys(&of, worker.shard, ids).await?.pop();
        let key = key.flatten();
        let to = broker.topic(to).await?;
        let settings = to.settings();
        let mut message = self.message(key.clone(), settings.max_payload.get());
        let max_bytes = settings
            .max_bytes
            .map(|bytes| settings.per_shard(bytes.get()));
        if max_bytes.is_some_and(|most| message.record.encoded_len() as u64 > most) {
            // The payload would not fit even if the topic were empty.
            message = self.message(key, 0);
        }
        message.durability = settings.durability;
        let shard = to.shard_of_message(&message);
        let sent = broker.send(&to, shard, &[message]).await?;
        match sent.first().map(|accepted| accepted.outcome) {
            Some(SendOutcome::Full) => Err(CallbackError::Full(to.name().clone())),
            Some(SendOutcome::Duplicate) => Ok("duplicate"),
            _ => Ok("sent"),
        }
    }

    /// Creates the message, without its payload if that has more than `max_payload` bytes.
    fn message(&self, key: Option<OrderingKey>, max_payload: u64) -> PreparedMessage {
        let Delivery {
            topic,
            group,
            id,
            attempt,
            due_at,
            last_error,
            payload,
            ..
        } = &self.delivery;
        let mut headers = Headers::default();
        let mut set = |name: &str, value: &str| {
            let set = headers.insert_any(&format!("{PREFIX}{name}"), value);
            debug_assert!(set.is_ok(), "{name}: {value}");
        };
        set("outcome", self.outcome().as_str());
        set("topic", topic.as_str());
        set("group", group.as_str());
        set("id", id.as_str());
        set("attempts", &attempt.to_string());
        set("hops", &(hops(&self.delivery) + 1).to_string());
        if let Some(reason) = self.garbage {
            set("reason", reason.as_str());
        }
        if let Some(error) = last_error {
            set("error", &visible_ascii(error));
        }
        let is_too_large = payload.len() as u64 > max_payload;
        if is_too_large {
            set("omitted-payload-bytes", &payload.len().to_string());
        }
        let of_message = self.delivery.headers.iter();
        for (name, value) in of_message.filter(|(name, _)| !name.starts_with(PREFIX)) {
            // Headers that exceed the maximum number are omitted.
            let _ = headers.insert_any(name, value);
        }
        let garbage_time = self.garbage.map(|_| *due_at);
        PreparedMessage {
            id: MessageId::of_callback(self.outcome(), topic, group, id, garbage_time),
            new_id: NewId::default(),
            when: When::NOW,
            options: Options {
                key,
                ..Options::default()
            },
            record: Record {
                caller_id: true,
                headers,
                payload: match is_too_large {
                    true => Bytes::new(),
                    false => payload.clone(),
                },
                ..Record::default()
            },
            durability: Default::default(),
        }
    }

    fn count(&self, worker: &ShardWorker, result: &str) {
        if let Some(metrics) = &worker.process.metrics {
            let (topic, group) = (worker.subscription.topic(), worker.subscription.group());
            let outcome = self.outcome().as_str();
            metrics.callback(topic.as_str(), group.as_str(), outcome, result);
        }
    }
}

/// Returns the number of callbacks that led to a message: 0 for one that is not a callback, whatever its headers say.
fn hops(delivery: &Delivery) -> u32 {
    if !delivery.id.is_of_callback() {
        return 0;
    }
    let hops = delivery.headers.get(&format!("{PREFIX}hops"));
    hops.and_then(|hops| hops.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::tests::delivery;

    fn facts(message: &PreparedMessage) -> Vec<(&str, &str)> {
        let headers = message.record.headers.iter();
        let facts = headers.filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value)));
        facts.collect()
    }

    #[test]
    fn a_callback_has_the_payload_the_headers_and_the_facts() {
        let mut of = delivery();
        of.payload = "paid".into();
        let mut headers = Headers::default();
        headers.insert("tenant", "x").unwrap();
        headers
            .insert_any("lisa-callback-error", "of another callback")
            .unwrap();
        headers.insert_any("lisa-callback-hops", "2").unwrap();
        of.headers = headers.into();
        let message = Callback::success(of.clone()).message("k".parse().ok(), 4);
        assert_eq!(message.record.headers.get("tenant"), Some("x"));
        assert_eq!(&message.record.payload[..], b"paid");
        assert_eq!(message.options.key, "k".parse().ok());
        assert!(message.record.caller_id);
        let (topic, group) = (of.topic.clone(), of.group.clone());
        let attempts = of.attempt.to_string();
        let mut expected = vec![
            ("attempts", attempts.as_str()),
            ("group", group.as_str()),
            ("hops", "1"),
            ("id", "order-7"),
            ("outcome", "success"),
            ("topic", topic.as_str()),
        ];
        assert_eq!(facts(&message), expected);

        let (topic, group) = (of.topic.clone(), of.group.clone());
        let reported = of.id.clone();
        of.id = MessageId::of_callback(CallbackOutcome::Success, &topic, &group, &reported, None);
        let message = Callback::success(of.clone()).message(None, 4);
        assert!(facts(&message).contains(&("hops", "3")));
        of.id = reported;
        of.last_error = Some("kaputt: ä\n".to_owned());
        let message = Callback::garbage(of, GarbageReason::Rejected).message(None, 3);
        assert!(message.record.payload.is_empty());
        expected[4] = ("omitted-payload-bytes", "4");
        expected.insert(1, ("error", "kaputt: ?"));
        expected.extend([("reason", "rejected"), ("topic", topic.as_str())]);
        expected[6] = ("outcome", "garbage");
        assert_eq!(facts(&message), expected);
    }

    #[test]
    fn the_facts_have_priority_over_the_headers_of_the_message() {
        let mut of = delivery();
        let mut headers = Headers::default();
        for n in 0..64 {
            headers.insert(&format!("x-{n:02}"), "x").unwrap();
        }
        of.headers = headers.into();
        let message = Callback::success(of).message(None, 1000);
        assert_eq!(message.record.headers.iter().len(), 64);
        assert_eq!(facts(&message).len(), 6);
        assert_eq!(message.record.headers.get("x-57"), Some("x"));
        assert_eq!(message.record.headers.get("x-58"), None);
    }

    #[test]
    fn an_error_becomes_a_header() {
        assert_eq!(visible_ascii(" a\tb ü \n"), "a?b ?");
        let longest = visible_ascii(&"x".repeat(1024));
        assert!(Headers::default().insert("x", &longest).is_ok());
    }
}
