//! Cancels and reschedules all messages of an ordering key, on topics with `key_index`.

use std::collections::BTreeSet;
use std::sync::Arc;

use lisa_core::broker::{BrokerError, TopicHandle};
use lisa_core::message::{MessageId, OrderingKey};
use lisa_core::state::{CancelOutcome as Cancelled, RescheduleOutcome};
use lisa_core::time::When;
use lisa_core::topic::Group;

use crate::error::{InvalidField, SendError};
use crate::producer::{Producer, parse_topic};

/// Messages read per call.
const PAGE: usize = 200;

/// The number of messages of an ordering key that a call changed, and of those it could not change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyOutcome {
    /// Messages that were cancelled, or have the new due time.
    pub changed: u64,
    /// Messages on the stream, ready or in flight: too late to change.
    pub in_flight: u64,
    /// Messages in garbage (dead letters).
    pub garbage: u64,
    /// The groups that had moved some of the cancelled messages to garbage: these copies stay there.
    pub in_garbage: BTreeSet<Group>,
}

/// The change made to each message.
#[derive(Clone, Copy, Debug)]
enum Change {
    Cancel,
    Reschedule(When),
}

/// The result for one message.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Done,
    InFlight,
    Garbage,
    /// It has ended in the meantime.
    Gone,
}

impl KeyOutcome {
    fn count(&mut self, fate: Fate) {
        match fate {
            Fate::Done => self.changed += 1,
            Fate::InFlight => self.in_flight += 1,
            Fate::Garbage => self.garbage += 1,
            Fate::Gone => {}
        }
    }
}

impl Producer {
    /// Cancels all messages of an ordering key that are not ready, in flight or in garbage, one after the other. Requires
    /// the topic's `key_index`, and finds the messages sent since it was set. Safe to repeat.
    ///
    /// # Errors
    /// [`SendError::Invalid`] without `key_index`; other [`SendError`]s, after which some may be cancelled.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the remaining messages unchanged.
    pub async fn cancel_key(
        &self,
        topic: impl AsRef<str>,
        key: impl AsRef<str>,
    ) -> Result<KeyOutcome, SendError> {
        let (topic, key) = self.named(topic, key).await?;
        self.change(&topic, &key, Change::Cancel).await
    }

    /// Reschedules all messages of an ordering key that are not ready, in flight or in garbage, in the order of their ids:
    /// for generated ids, the order of sending. Requires the topic's `key_index`, and finds the messages sent since it was
    /// set. Safe to repeat.
    ///
    /// # Errors
    /// [`SendError::Invalid`] without `key_index`; other [`SendError`]s, after which some may be rescheduled.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the remaining messages unchanged.
    pub async fn reschedule_key(
        &self,
        topic: impl AsRef<str>,
        key: impl AsRef<str>,
        when: impl Into<When>,
    ) -> Result<KeyOutcome, SendError> {
        let (topic, key) = self.named(topic, key).await?;
        let when = when.into();
        when.check(self.broker().now(), topic.settings().max_delay)
            .map_err(|error| InvalidField::new("due", error))?;
        self.change(&topic, &key, Change::Reschedule(when)).await
    }

    /// Finds a topic, and parses an ordering key.
    async fn named(
        &self,
        topic: impl AsRef<str>,
        key: impl AsRef<str>,
    ) -> Result<(Arc<TopicHandle>, OrderingKey), SendError> {
        let key = key.as_ref().parse();
        let key = key.map_err(|error| InvalidField::new("key", error))?;
        let topic = self.broker().topic(&parse_topic(topic)?).await;
        let topic = topic.map_err(|error| SendError::of_call(Arc::new(error)))?;
        Ok((topic, key))
    }

    /// Changes each message of a key, page by page.
    async fn change(
        &self,
        topic: &TopicHandle,
        key: &OrderingKey,
        change: Change,
    ) -> Result<KeyOutcome, SendError> {
        let mut outcome = KeyOutcome::default();
        let mut cursor = None;
        loop {
            let page = self.broker().of_key(topic, key, cursor, PAGE).await;
            let page = page.map_err(|error| SendError::of_call(Arc::new(error)))?;
            for id in &page.ids {
                let fate = self
                    .change_one(topic, key, id, change, &mut outcome)
                    .await?;
                outcome.count(fate);
            }
            cursor = page.next;
            if cursor.is_none() {
                return Ok(outcome);
            }
        }
    }

    async fn change_one(
        &self,
        topic: &TopicHandle,
        key: &OrderingKey,
        id: &MessageId,
        change: Change,
        outcome: &mut KeyOutcome,
    ) -> Result<Fate, SendError> {
        let (broker, key) = (self.broker(), Some(key));
        let failed = |error: BrokerError| SendError::of_message(error.into(), id);
        Ok(match change {
            Change::Cancel => match broker.cancel(topic, id, key).await.map_err(failed)? {
                Cancelled::Cancelled { record, in_garbage } => {
                    outcome.in_garbage.extend(in_garbage);
                    // Without a record, another call has cancelled it.
                    record.map_or(Fate::Gone, |_| Fate::Done)
                }
                Cancelled::InFlight => Fate::InFlight,
                Cancelled::Garbage => Fate::Garbage,
                Cancelled::Unknown { .. } => Fate::Gone,
            },
            Change::Reschedule(when) => {
                let moved = broker.reschedule(topic, id, key, when).await;
                match moved.map_err(failed)? {
                    RescheduleOutcome::Rescheduled { .. } => Fate::Done,
                    RescheduleOutcome::InFlight => Fate::InFlight,
                    RescheduleOutcome::Garbage => Fate::Garbage,
                    RescheduleOutcome::Unknown { .. } => Fate::Gone,
                }
            }
        })
    }
}
