//! The producer as a library: sends, cancels, reschedules, gets.
//!
//! It checks values against the topic's settings, and generates ids before the first try. The broker talks to Redis, and
//! [`crate::batcher`] combines sends into few calls. It does not deliver.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use lisa_core::broker::{Broker, BrokerError, Declare, TopicHandle};
use lisa_core::connect::{ConnectError, ConnectOptions};
use lisa_core::durability::Durability;
use lisa_core::message::{MessageId, MessageOptions, OrderingKey, PreparedMessage};
use lisa_core::retry::RetryPolicy;
use lisa_core::state::RescheduleOutcome;
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::{Shard, Topic, TopicOf, TopicSettings};
use lisa_service::metrics::Metrics;
use lisa_service::spans::Spans;
use serde::Serialize;

use crate::admission::{Admission, Share};
use crate::batcher::{Batch, SendBatcher, held_by};
use crate::error::{Failure, InvalidField, SendError};
use crate::message::NewMessage;
use crate::message_ref::MessageRef;
use crate::receipt::Receipt;
use crate::spans;
use crate::stored::{CancelOutcome, GetOutcome};

/// Shards of a batch that are sent to concurrently.
const SHARDS_AT_A_TIME: usize = 4;

/// Accepts messages for later delivery. Cheap to clone; clones share the connection and the batches.
#[derive(Clone, Debug)]
pub struct Producer {
    inner: Arc<Inner>,
}

struct Inner {
    broker: Broker,
    batcher: SendBatcher,
    admission: Admission,
    options: ProducerOptions,
}

/// The options of a producer.
#[derive(Clone, Debug, Default)]
pub struct ProducerOptions {
    /// Topics that their first send declares if they do not exist yet.
    pub topics: BTreeMap<Topic, TopicSettings>,
    /// Settings with which the first send declares any other topic. For development only: a misspelled name creates a topic.
    pub auto_create: Option<TopicSettings>,
    /// The metrics that count sends.
    pub metrics: Option<Metrics>,
    /// The maker of spans that record sends. Always `None` without the feature `otel-api`.
    pub spans: Option<Spans>,
}

impl Producer {
    /// Connects to Redis at `url`, such as `redis://host:6379`; see [`ConnectOptions::new`]. The namespace is `lisa`; for
    /// another one, use [`ConnectOptions`] and [`Producer::new`].
    ///
    /// # Errors
    /// [`ConnectError`]: `url` is not an address, or Redis refuses the connection or does not answer within 5 s.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Ok(Self::new(ConnectOptions::new(url)?.connect().await?))
    }

    /// Creates a producer over a broker. Redis need not be available yet.
    pub fn new(broker: Broker) -> Self {
        Self::with_options(broker, ProducerOptions::default())
    }

    /// Creates a producer over a broker, with options.
    pub fn with_options(broker: Broker, options: ProducerOptions) -> Self {
        Self {
            inner: Arc::new(Inner {
                batcher: SendBatcher::new(broker.clone()),
                admission: Admission::new(),
                broker,
                options,
            }),
        }
    }

    /// Returns a producer with the same broker and options, and batches of its own.
    #[cfg(any(
        feature = "source-amqp",
        feature = "source-nats",
        feature = "source-kafka"
    ))]
    pub(crate) fn sibling(&self) -> Self {
        Self::with_options(self.inner.broker.clone(), self.inner.options.clone())
    }

    /// Declares a topic with these settings unless it exists. The settings of an existing topic do not change.
    ///
    /// # Errors
    /// [`SendError::Invalid`] for a name or a setting that is not allowed; other [`SendError`]s.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the declaration. Calling again is safe.
    pub async fn declare(
        &self,
        topic: impl AsRef<str>,
        settings: &TopicSettings,
    ) -> Result<(), SendError> {
        let topic = parse_topic(topic.as_ref())?;
        if let Err(problems) = settings.check() {
            let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
            return Err(InvalidField::new("settings", all.join("; ")).into());
        }
        let broker = &self.inner.broker;
        let declared = broker.declare(&topic, settings, Declare::Create).await;
        declared.map_err(|error| SendError::of_call(Arc::new(error)))?;
        Ok(())
    }

    /// Begins a message with a value as its JSON payload; await it to send.
    ///
    /// # Examples
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use lisa_producer::{Producer, SendError};
    ///
    /// async fn remind(producer: &Producer, order: u64) -> Result<(), SendError> {
    ///     let receipt = producer
    ///         .send("reminders", &order)
    ///         .delay(Duration::from_secs(30 * 60))
    ///         .id(format!("order-{order}-reminder"))
    ///         .await?;
    ///     println!("{}: {}", receipt.id, receipt.outcome);
    ///     Ok(())
    /// }
    /// ```
    pub fn send<T: Serialize + ?Sized>(&self, topic: impl AsRef<str>, value: &T) -> SendBuilder {
        self.begin(topic, NewMessage::json(value))
    }

    /// Begins a message for a topic that is tied to a payload type; await it to send.
    pub fn send_to<T: Serialize>(&self, topic: TopicOf<T>, value: &T) -> SendBuilder {
        self.send(topic.name(), value)
    }

    /// Begins a message with these bytes as its payload; await it to send.
    pub fn send_bytes(&self, topic: impl AsRef<str>, payload: impl Into<Bytes>) -> SendBuilder {
        self.begin(topic, Ok(NewMessage::new(payload)))
    }

    fn begin(&self, topic: impl AsRef<str>, message: Result<NewMessage, SendError>) -> SendBuilder {
        SendBuilder {
            producer: self.clone(),
            topic: topic.as_ref().to_owned(),
            message,
        }
    }

    /// Sends one message.
    ///
    /// # Errors
    /// [`SendError`]; after [`SendError::Indeterminate`], send it again with the same id.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the send: the message may still be sent.
    pub async fn send_message(
        &self,
        topic: impl AsRef<str>,
        message: NewMessage,
    ) -> Result<Receipt, SendError> {
        let topic = self.topic_for_send(&parse_topic(topic)?).await?;
        let now = self.inner.broker.now();
        let checked = message.check(topic.settings(), now);
        let admitted = match checked {
            Ok(message) => self.admit(message).await,
            Err(error) => Err(error),
        };
        let receipt = match admitted {
            Ok((mut message, _share)) => {
                let options = &self.inner.options;
                let span = spans::start(options, now, &topic, &mut [&mut message], false);
                let (replace, durability) = (message.options.replace.clone(), message.durability);
                let sent = self.inner.batcher.send(topic.clone(), message).await;
                let receipt = sent.and_then(|accepted| Receipt::new(accepted, durability, replace));
                spans::end(span, [&receipt]);
                receipt
            }
            Err(error) => Err(error),
        };
        self.count(&topic, [&receipt]);
        receipt
    }

    /// Waits until the client whose request is being answered may send a message.
    async fn admit(
        &self,
        message: PreparedMessage,
    ) -> Result<(PreparedMessage, Option<Share>), SendError> {
        Admission::count()?;
        let share = self.inner.admission.share(held_by(&message)).await?;
        Ok((message, share))
    }

    /// Sends many messages, up to 100 per call, and returns one result for each, in their order. Some may fail. Messages of
    /// one shard are stored in their order, so a message may replace an earlier one.
    ///
    /// # Errors
    /// [`SendError`] if the topic is unknown or cannot be read, or a client over HTTP has too many sends under way; nothing
    /// was sent.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo completed sends; the remaining messages are not sent.
    pub async fn send_batch(
        &self,
        topic: impl AsRef<str>,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Result<Receipt, SendError>>, SendError> {
        let topic = self.topic_for_send(&parse_topic(topic)?).await?;
        let now = self.inner.broker.now();
        let mut results: Vec<Option<Result<Receipt, SendError>>> =
            Vec::with_capacity(messages.len());
        let mut shards: BTreeMap<Shard, Vec<(usize, PreparedMessage)>> = BTreeMap::new();
        for (index, message) in messages.into_iter().enumerate() {
            let checked = message.check(topic.settings(), now);
            let counted = checked.and_then(|message| Admission::count().map(|()| message));
            results.push(counted.map_or_else(
                |error| Some(Err(error)),
                |message| {
                    let shard = topic.shard_of_message(&message);
                    shards.entry(shard).or_default().push((index, message));
                    None
                },
            ));
        }
        let admitted = shards.values().flatten();
        let bytes = admitted.map(|(_, message)| held_by(message)).sum();
        let _share = self.inner.admission.share(bytes).await?;
        let span = match self.inner.options.spans {
            Some(_) => {
                let messages = shards.values_mut().flatten();
                let mut messages: Vec<_> = messages.map(|(_, message)| message).collect();
                spans::start(&self.inner.options, now, &topic, &mut messages, true)
            }
            None => None,
        };
        let sends = shards
            .into_iter()
            .map(|(shard, messages)| self.send_to_shard(&topic, shard, messages));
        let mut sends = stream::iter(sends).buffer_unordered(SHARDS_AT_A_TIME);
        while let Some(answers) = sends.next().await {
            for (index, answer) in answers {
                results[index] = Some(answer);
            }
        }
        let results: Vec<_> = results
            .into_iter()
            .map(|result| result.expect("each message was refused or sent"))
            .collect();
        spans::end(span, &results);
        self.count(&topic, &results);
        Ok(results)
    }

    /// Sends the messages of one shard, one call after another.
    async fn send_to_shard(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        messages: Vec<(usize, PreparedMessage)>,
    ) -> Vec<(usize, Result<Receipt, SendError>)> {
        let mut answers = Vec::with_capacity(messages.len());
        let mut messages = messages.into_iter().peekable();
        let mut outage: Option<Failure> = None;
        while messages.peek().is_some() {
            let mut batch = Batch::default();
            let next = std::iter::from_fn(|| messages.next_if(|(_, m)| batch.admits(m)));
            let (indices, chunk): (Vec<usize>, Vec<PreparedMessage>) = next.unzip();
            // Redis was unavailable for a whole call timeout: the rest must not wait for another.
            let sent = match &outage {
                Some(failure) => Err(failure.of_those_behind()),
                None => self
                    .inner
                    .broker
                    .send(topic, shard, &chunk)
                    .await
                    .map_err(Failure::from),
            };
            outage = sent
                .as_ref()
                .err()
                .filter(|failure| failure.is_outage())
                .cloned();
            let mut sent = sent.map(Vec::into_iter);
            let mut answer = |index: usize, message: PreparedMessage| {
                let answer = match &mut sent {
                    Ok(accepted) => Ok(accepted.next().expect("an outcome for each message")),
                    Err(failure) => failure.of_index(index),
                };
                match answer {
                    Ok(accepted) => {
                        Receipt::new(accepted, message.durability, message.options.replace)
                    }
                    Err(failure) => Err(SendError::of_message(failure, &message.id)),
                }
            };
            let chunk = chunk.into_iter().enumerate();
            let chunk = chunk.map(|(index, message)| answer(index, message));
            answers.extend(indices.into_iter().zip(chunk));
        }
        answers
    }

    /// Cancels a message that is not ready, in flight or in garbage. Safe to repeat. `message` is its id, or a
    /// [`MessageRef`] with its key.
    ///
    /// # Errors
    /// [`SendError`]; after [`SendError::Indeterminate`], cancel again.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the call: it may still take effect.
    pub async fn cancel(
        &self,
        topic: impl AsRef<str>,
        message: impl Into<MessageRef>,
    ) -> Result<CancelOutcome, SendError> {
        let (topic, id, key) = self.existing(topic, message.into()).await?;
        let outcome = self.inner.broker.cancel(&topic, &id, key.as_ref()).await;
        let outcome = outcome.map_err(|error| SendError::of_message(error.into(), &id))?;
        Ok(CancelOutcome::try_from(outcome)?)
    }

    /// Sets a new due time for a message that is not ready, in flight or in garbage. Safe to repeat. `message` is its id,
    /// or a [`MessageRef`] with its key.
    ///
    /// # Errors
    /// [`SendError`]; after [`SendError::Indeterminate`], reschedule again.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the call: it may still take effect.
    pub async fn reschedule(
        &self,
        topic: impl AsRef<str>,
        message: impl Into<MessageRef>,
        when: impl Into<When>,
    ) -> Result<RescheduleOutcome, SendError> {
        let (topic, id, key) = self.existing(topic, message.into()).await?;
        let when = when.into();
        when.check(self.inner.broker.now(), topic.settings().max_delay)
            .map_err(|error| InvalidField::new("due", error))?;
        let broker = &self.inner.broker;
        let outcome = broker.reschedule(&topic, &id, key.as_ref(), when).await;
        outcome.map_err(|error| SendError::of_message(error.into(), &id))
    }

    /// Makes a message that is not ready, in flight or in garbage due now: [`Producer::reschedule`] without a delay.
    ///
    /// # Errors
    /// [`SendError`]; after [`SendError::Indeterminate`], repeat the call.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the call: it may still take effect.
    pub async fn deliver_now(
        &self,
        topic: impl AsRef<str>,
        message: impl Into<MessageRef>,
    ) -> Result<RescheduleOutcome, SendError> {
        self.reschedule(topic, message, When::NOW).await
    }

    /// Returns a stored message with its state. `message` is its id, or a [`MessageRef`] with its key.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn get(
        &self,
        topic: impl AsRef<str>,
        message: impl Into<MessageRef>,
    ) -> Result<GetOutcome, SendError> {
        let (topic, id, key) = self.existing(topic, message.into()).await?;
        let found = self.inner.broker.lookup(&topic, &id, key.as_ref()).await;
        let found = found.map_err(|error| SendError::of_call(Arc::new(error)))?;
        Ok(GetOutcome::read(&topic, found)?)
    }

    /// Returns true if a call about this message may ask several shards. False for an invalid reference, which asks none.
    #[cfg(feature = "http")]
    pub(crate) async fn searches(&self, topic: &str, message: &MessageRef) -> bool {
        let found = self.existing(topic, message.clone()).await;
        found.is_ok_and(|(topic, id, key)| topic.shards_of(&id, key.as_ref()).len() > 1)
    }

    /// Waits until no send is in progress, including sends whose future was dropped. Call it before a process exits.
    pub async fn flush(&self) {
        self.inner.batcher.idle().await;
    }

    /// Returns the largest payload, in bytes, that the topic allows, as a limit for reading one from a stream.
    #[cfg(feature = "http")]
    pub(crate) async fn max_payload(&self, topic: impl AsRef<str>) -> Result<u64, SendError> {
        let topic = self.topic_for_send(&parse_topic(topic)?).await?;
        Ok(topic.settings().max_payload.get())
    }

    /// Returns the broker.
    pub(crate) fn broker(&self) -> &Broker {
        &self.inner.broker
    }

    /// Finds a topic, or declares it if the options say so.
    async fn topic_for_send(&self, topic: &Topic) -> Result<Arc<TopicHandle>, SendError> {
        self.refresh_now_and_then();
        let broker = &self.inner.broker;
        let found = match broker.topic(topic).await {
            Err(error @ (BrokerError::UnknownTopic(_) | BrokerError::Undeclared(_))) => {
                let ProducerOptions {
                    topics,
                    auto_create,
                    ..
                } = &self.inner.options;
                match topics.get(topic).or(auto_create.as_ref()) {
                    Some(settings) => broker.declare(topic, settings, Declare::Create).await,
                    None => Err(error),
                }
            }
            found => found,
        };
        found.map_err(|error| SendError::of_call(Arc::new(error)))
    }

    /// Parses the arguments of a call about an existing message. Never declares the topic.
    async fn existing(
        &self,
        topic: impl AsRef<str>,
        message: MessageRef,
    ) -> Result<(Arc<TopicHandle>, MessageId, Option<OrderingKey>), SendError> {
        let topic = parse_topic(topic)?;
        let id = message.id.parse();
        let id = id.map_err(|error| InvalidField::new("id", error))?;
        let key = message.key.map(OrderingKey::try_from).transpose();
        let key = key.map_err(|error| InvalidField::new("key", error))?;
        let topic = self.inner.broker.topic(&topic).await;
        let topic = topic.map_err(|error| SendError::of_call(Arc::new(error)))?;
        Ok((topic, id, key))
    }

    /// Follows the registry without a loop of its own: at most every 5 s, a send starts a read of it without waiting.
    fn refresh_now_and_then(&self) {
        let inner = &self.inner;
        if inner.broker.claim_refresh() {
            let broker = inner.broker.clone();
            inner.batcher.track(async move {
                if let Err(error) = broker.refresh().await {
                    tracing::debug!(%error, "cannot read the registry");
                }
            });
        }
    }

    fn count<'a>(
        &self,
        topic: &TopicHandle,
        results: impl IntoIterator<Item = &'a Result<Receipt, SendError>>,
    ) {
        let Some(metrics) = &self.inner.options.metrics else {
            return;
        };
        // Its series were removed with it.
        if self.inner.broker.known(topic.name()).is_none() {
            return;
        }
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for result in results {
            let word = result
                .as_ref()
                .map_or_else(SendError::word, |r| r.outcome.as_str());
            *counts.entry(word).or_default() += 1;
        }
        for (word, count) in counts {
            metrics.sent(topic.name().as_str(), word, count);
        }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("broker", &self.broker)
            .finish_non_exhaustive()
    }
}

pub(crate) fn parse_topic(topic: impl AsRef<str>) -> Result<Topic, SendError> {
    let topic = topic.as_ref().parse();
    topic.map_err(|error| InvalidField::new("topic", error).into())
}

/// A message to send: set its options, then await it.
///
/// Dropping the future does not undo the send: the message may still be sent.
#[must_use = "a message is sent when this is awaited"]
#[derive(Debug)]
pub struct SendBuilder {
    producer: Producer,
    topic: String,
    message: Result<NewMessage, SendError>,
}

/// Defines methods of [`SendBuilder`] that call those of [`NewMessage`].
macro_rules! delegate {
    ($($(#[$doc:meta])+ $method:ident($($argument:ident: $type:ty),*);)+) => {
        $(
            $(#[$doc])+
            pub fn $method(self, $($argument: $type),*) -> Self {
                self.map(|message| message.$method($($argument),*))
            }
        )+
    };
}

impl SendBuilder {
    delegate! {
        /// Delivers it this long after Redis accepts it. See [`NewMessage::delay`].
        delay(delay: Duration);
        /// Delivers it at this time; a past time means now. See [`NewMessage::at`].
        at(when: impl Into<When>);
        /// Sets its id, which is its idempotency key. See [`NewMessage::id`].
        id(id: impl AsRef<str>);
        /// Limits its delivery attempts, 1 to 1000. See [`NewMessage::max_attempts`].
        max_attempts(max_attempts: u32);
        /// Sets its ordering key. See [`NewMessage::key`].
        key(key: impl AsRef<str>);
        /// Merges it with an undelivered message of the same merge key. See [`NewMessage::merge_key`].
        merge_key(key: impl AsRef<str>);
        /// Sets its priority: due messages of a higher priority are delivered first. See [`NewMessage::priority`].
        priority(priority: i32);
        /// Expires it this long after its due time. See [`NewMessage::ttl`].
        ttl(ttl: Duration);
        /// Expires it at this time. See [`NewMessage::expires_at`].
        expires_at(at: impl Into<UnixMs>);
        /// Sets its own retry policy. See [`NewMessage::retry`].
        retry(policy: RetryPolicy);
        /// Cancels another message atomically with the send. See [`NewMessage::replace`].
        replace(id: impl AsRef<str>);
        /// Sends it even if a message with its id was cancelled. See [`NewMessage::even_if_cancelled`].
        even_if_cancelled();
        /// Makes the send wait for this durability. See [`NewMessage::durability`].
        durability(durability: Durability);
        /// Sets several options. See [`NewMessage::options`].
        options(options: MessageOptions);
        /// Sets a header. See [`NewMessage::header`].
        header(name: impl AsRef<str>, value: impl AsRef<str>);
    }

    fn map(self, change: impl FnOnce(NewMessage) -> NewMessage) -> Self {
        Self {
            message: self.message.map(change),
            ..self
        }
    }
}

impl IntoFuture for SendBuilder {
    type Output = Result<Receipt, SendError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.producer.send_message(self.topic, self.message?).await })
    }
}
