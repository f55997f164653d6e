//! The producer as a library: sends, cancels, reschedules, gets.
//!
//! It checks values against the topic's settings and makes ids before the first try; the broker talks to Redis, and
//! [`crate::lanes`] makes few calls of many sends. It never delivers.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use lisa_shared::broker::{Broker, BrokerError, Declare, TopicHandle};
use lisa_shared::config::Config;
use lisa_shared::durability::Durability;
use lisa_shared::message::{MessageId, NewMessage, OrderingKey};
use lisa_shared::metrics::Metrics;
use lisa_shared::retry::RetryPolicy;
use lisa_shared::role::{self, StartError};
use lisa_shared::state::RescheduleOutcome;
use lisa_shared::time::{UnixMs, When};
use lisa_shared::topic::{Shard, Topic, TopicSettings};
use serde::Serialize;

use crate::error::{Failure, Invalid, SendError};
use crate::lanes::{Batch, Lanes};
use crate::message_ref::MessageRef;
use crate::outgoing::Outgoing;
use crate::receipt::Receipt;
use crate::stored::{CancelOutcome, GetOutcome};

/// How long connecting and each call may take when the producer makes its own link.
const PATIENCE: Duration = Duration::from_secs(5);
/// A sending producer looks this often, in ms, whether settings in the registry have changed.
const REFRESH_MS: u64 = 5_000;
/// Shards of a batch that are sent to at a time.
const SHARDS_AT_A_TIME: usize = 4;

/// Accepts messages for later delivery. Cheap to clone; clones share connection and batches.
#[derive(Clone, Debug)]
pub struct Producer {
    inner: Arc<Inner>,
}

struct Inner {
    broker: Broker,
    lanes: Lanes,
    options: ProducerOptions,
    born: Instant,
    refreshed_ms: AtomicU64,
}

/// What a producer may be told besides its broker.
#[derive(Clone, Debug, Default)]
pub struct ProducerOptions {
    /// Topics to be declared with their first send, if nobody has declared them before.
    pub topics: BTreeMap<Topic, TopicSettings>,
    /// Declares any other topic with its first send. For development: a typing error makes a topic.
    pub auto_create: Option<TopicSettings>,
    /// Where sends are counted.
    pub metrics: Option<Metrics>,
}

impl Producer {
    /// Connects to a Redis, with the default namespace; `url` as in the configuration: `redis://host:6379`.
    ///
    /// # Errors
    /// A bad address, or a Redis that refuses us or does not answer within 5 s.
    pub async fn connect(url: &str) -> Result<Self, StartError> {
        let mut config = Config::default();
        config.redis.url = url
            .parse()
            .map_err(|error| StartError::Refused(format!("{error}")))?;
        Self::from_config(&config).await
    }

    /// Connects as a configuration says. Topics named there are declared with their first send, if nobody has before.
    ///
    /// # Errors
    /// A Redis that refuses us or does not answer within 5 s.
    pub async fn from_config(config: &Config) -> Result<Self, StartError> {
        let broker = role::connect(config, PATIENCE).await?;
        let options = ProducerOptions {
            topics: config.topics.clone(),
            ..ProducerOptions::default()
        };
        Ok(Self::with_options(broker, options))
    }

    /// Makes a producer over a broker, whose Redis need not be there yet.
    pub fn new(broker: Broker) -> Self {
        Self::with_options(broker, ProducerOptions::default())
    }

    /// Makes a producer over a broker.
    pub fn with_options(broker: Broker, options: ProducerOptions) -> Self {
        Self {
            inner: Arc::new(Inner {
                lanes: Lanes::new(broker.clone()),
                broker,
                options,
                born: Instant::now(),
                refreshed_ms: AtomicU64::new(0),
            }),
        }
    }

    /// Begins a message with a value as its JSON payload; await it to send.
    pub fn send<T: Serialize + ?Sized>(&self, topic: impl AsRef<str>, value: &T) -> SendBuilder {
        self.begin(topic, Outgoing::json(value))
    }

    /// Begins a message with these bytes as its payload; await it to send.
    pub fn send_bytes(&self, topic: impl AsRef<str>, payload: impl Into<Bytes>) -> SendBuilder {
        self.begin(topic, Ok(Outgoing::new(payload)))
    }

    fn begin(&self, topic: impl AsRef<str>, outgoing: Result<Outgoing, SendError>) -> SendBuilder {
        SendBuilder {
            producer: self.clone(),
            topic: topic.as_ref().to_owned(),
            outgoing,
        }
    }

    /// Sends a described message.
    ///
    /// # Errors
    /// [`SendError`]; after [`SendError::Indeterminate`] send it again with the same id.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the send: it may happen all the same.
    pub async fn send_message(
        &self,
        topic: impl AsRef<str>,
        outgoing: Outgoing,
    ) -> Result<Receipt, SendError> {
        let topic = self.topic_for_send(&parse_topic(topic)?).await?;
        let receipt = match outgoing.check(topic.settings(), self.inner.broker.now()) {
            Ok(message) => {
                let (replace, durability) = (message.options.replace.clone(), message.durability);
                let sent = self.inner.lanes.send(topic.clone(), message).await;
                sent.and_then(|accepted| Receipt::new(accepted, durability, replace))
            }
            Err(error) => Err(error),
        };
        self.count(&topic, [&receipt]);
        receipt
    }

    /// Sends many messages, 200 a call; gives one result each, in their order. Part of them may fail. Those of one shard
    /// are stored in their order: one may replace another before it.
    ///
    /// # Errors
    /// The topic is unknown or could not be asked for; nothing was sent then.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo what was sent; the rest is not sent.
    pub async fn send_batch(
        &self,
        topic: impl AsRef<str>,
        messages: Vec<Outgoing>,
    ) -> Result<Vec<Result<Receipt, SendError>>, SendError> {
        let topic = self.topic_for_send(&parse_topic(topic)?).await?;
        let now = self.inner.broker.now();
        let mut results: Vec<Option<Result<Receipt, SendError>>> = Vec::new();
        let mut shards: BTreeMap<Shard, Vec<(usize, NewMessage)>> = BTreeMap::new();
        for (index, outgoing) in messages.into_iter().enumerate() {
            let checked = outgoing.check(topic.settings(), now);
            results.push(checked.map_or_else(
                |error| Some(Err(error)),
                |message| {
                    let shard = topic.shard_of_message(&message);
                    shards.entry(shard).or_default().push((index, message));
                    None
                },
            ));
        }
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
        self.count(&topic, &results);
        Ok(results)
    }

    /// Sends the messages of one shard, one call after the other.
    async fn send_to_shard(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        messages: Vec<(usize, NewMessage)>,
    ) -> Vec<(usize, Result<Receipt, SendError>)> {
        let mut answers = Vec::with_capacity(messages.len());
        let mut messages = messages.into_iter().peekable();
        let mut outage: Option<Failure> = None;
        while messages.peek().is_some() {
            let mut batch = Batch::default();
            let next = std::iter::from_fn(|| messages.next_if(|(_, m)| batch.admits(m)));
            let (indices, chunk): (Vec<usize>, Vec<NewMessage>) = next.unzip();
            // Redis was away for the broker's whole patience: what follows is not tried for as long again.
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
            let answer = |place: usize, message: NewMessage| {
                let answer = match &sent {
                    Ok(accepted) => Ok(accepted[place].clone()),
                    Err(failure) => failure.of_place(place),
                };
                match answer {
                    Ok(accepted) => {
                        Receipt::new(accepted, message.durability, message.options.replace)
                    }
                    Err(failure) => Err(SendError::of_message(failure, &message.id)),
                }
            };
            let chunk = chunk.into_iter().enumerate();
            let chunk = chunk.map(|(place, message)| answer(place, message));
            answers.extend(indices.into_iter().zip(chunk));
        }
        answers
    }

    /// Removes a message that is not on the stream and not in garbage. Safe to repeat. `message` is its id, or a
    /// [`MessageRef`] with its key.
    ///
    /// # Errors
    /// [`SendError`]; after [`SendError::Indeterminate`] cancel again.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the call: it may happen all the same.
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

    /// Gives a message that is not on the stream and not in garbage another due time. Safe to repeat. `message` is its id,
    /// or a [`MessageRef`] with its key.
    ///
    /// # Errors
    /// [`SendError`]; after [`SendError::Indeterminate`] reschedule again.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the call: it may happen all the same.
    pub async fn reschedule(
        &self,
        topic: impl AsRef<str>,
        message: impl Into<MessageRef>,
        when: impl Into<When>,
    ) -> Result<RescheduleOutcome, SendError> {
        let (topic, id, key) = self.existing(topic, message.into()).await?;
        let when = when.into();
        when.check(self.inner.broker.now(), topic.settings().max_delay)
            .map_err(|error| Invalid::new("due", error))?;
        let broker = &self.inner.broker;
        let outcome = broker.reschedule(&topic, &id, key.as_ref(), when).await;
        outcome.map_err(|error| SendError::of_message(error.into(), &id))
    }

    /// Makes a message that is not on the stream and not in garbage due now: [`Producer::reschedule`] without a delay.
    ///
    /// # Errors
    /// [`SendError`]; after [`SendError::Indeterminate`] repeat it.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the call: it may happen all the same.
    pub async fn deliver_now(
        &self,
        topic: impl AsRef<str>,
        message: impl Into<MessageRef>,
    ) -> Result<RescheduleOutcome, SendError> {
        self.reschedule(topic, message, When::NOW).await
    }

    /// Finds a message and gives all that is known of it. `message` is its id, or a [`MessageRef`] with its key.
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
        Ok(GetOutcome::try_from(found)?)
    }

    /// Waits until no send is under way, also of callers that have gone: for the end of a process.
    pub async fn flush(&self) {
        self.inner.lanes.idle().await;
    }

    /// Gives the largest payload, in bytes, that a send to this topic may have: for whoever reads it from a stream.
    pub(crate) async fn max_payload(&self, topic: impl AsRef<str>) -> Result<u64, SendError> {
        let topic = self.topic_for_send(&parse_topic(topic)?).await?;
        Ok(topic.settings().max_payload)
    }

    /// What asks Redis.
    pub(crate) fn broker(&self) -> &Broker {
        &self.inner.broker
    }

    /// Finds a topic, or declares it where the options say so.
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

    /// Reads the names of a verb that never creates a topic. Gives the message's key if it is named.
    async fn existing(
        &self,
        topic: impl AsRef<str>,
        message: MessageRef,
    ) -> Result<(Arc<TopicHandle>, MessageId, Option<OrderingKey>), SendError> {
        let topic = parse_topic(topic)?;
        let id = message.id.parse();
        let id = id.map_err(|error| Invalid::new("id", error))?;
        let key = message.key.map(OrderingKey::try_from).transpose();
        let key = key.map_err(|error| Invalid::new("key", error))?;
        let topic = self.inner.broker.topic(&topic).await;
        let topic = topic.map_err(|error| SendError::of_call(Arc::new(error)))?;
        Ok((topic, id, key))
    }

    /// Follows the registry without a loop of its own: now and then a send has it read, and waits for nothing.
    fn refresh_now_and_then(&self) {
        let inner = &self.inner;
        let now = u64::try_from(inner.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        let last = inner.refreshed_ms.load(Ordering::Relaxed);
        let due = now.saturating_sub(last) >= REFRESH_MS;
        let mine = || {
            let order = Ordering::Relaxed;
            inner
                .refreshed_ms
                .compare_exchange(last, now, order, order)
                .is_ok()
        };
        if due && mine() {
            let broker = inner.broker.clone();
            inner.lanes.track(async move {
                if let Err(error) = broker.refresh().await {
                    tracing::debug!(%error, "the registry was not read");
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
    topic.map_err(|error| Invalid::new("topic", error).into())
}

/// A message about to be sent: describe it, then await it.
///
/// Dropping the future does not undo the send: it may happen all the same.
#[must_use = "a message is sent when this is awaited"]
#[derive(Debug)]
pub struct SendBuilder {
    producer: Producer,
    topic: String,
    outgoing: Result<Outgoing, SendError>,
}

impl SendBuilder {
    /// Delivers it this long after Redis accepts it. See [`Outgoing::delay`].
    pub fn delay(self, delay: Duration) -> Self {
        self.map(|outgoing| outgoing.delay(delay))
    }

    /// Delivers it at an instant; one in the past means now. See [`Outgoing::at`].
    pub fn at(self, when: impl Into<When>) -> Self {
        self.map(|outgoing| outgoing.at(when))
    }

    /// Gives it an id of the caller's own. See [`Outgoing::id`].
    pub fn id(self, id: impl AsRef<str>) -> Self {
        self.map(|outgoing| outgoing.id(id))
    }

    /// Bounds its deliveries, 1 to 1000. See [`Outgoing::max_attempts`].
    pub fn max_attempts(self, max_attempts: u32) -> Self {
        self.map(|outgoing| outgoing.max_attempts(max_attempts))
    }

    /// Puts it in line with the messages of its key. See [`Outgoing::key`].
    pub fn key(self, key: impl AsRef<str>) -> Self {
        self.map(|outgoing| outgoing.key(key))
    }

    /// Merges it with a message of the same merge key. See [`Outgoing::merge`].
    pub fn merge(self, key: impl AsRef<str>) -> Self {
        self.map(|outgoing| outgoing.merge(key))
    }

    /// Lets it go before messages of a lower priority. See [`Outgoing::priority`].
    pub fn priority(self, priority: i32) -> Self {
        self.map(|outgoing| outgoing.priority(priority))
    }

    /// Makes it worthless this long after its due time. See [`Outgoing::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        self.map(|outgoing| outgoing.ttl(ttl))
    }

    /// Makes it worthless from an instant on. See [`Outgoing::expires_at`].
    pub fn expires_at(self, at: impl Into<UnixMs>) -> Self {
        self.map(|outgoing| outgoing.expires_at(at))
    }

    /// Gives it a retry policy of its own. See [`Outgoing::retry`].
    pub fn retry(self, policy: RetryPolicy) -> Self {
        self.map(|outgoing| outgoing.retry(policy))
    }

    /// Cancels another message in the same step. See [`Outgoing::replace`].
    pub fn replace(self, id: impl AsRef<str>) -> Self {
        self.map(|outgoing| outgoing.replace(id))
    }

    /// Sends it although a message of its id was cancelled. See [`Outgoing::even_if_cancelled`].
    pub fn even_if_cancelled(self) -> Self {
        self.map(Outgoing::even_if_cancelled)
    }

    /// Lets the send wait until the message is this safe. See [`Outgoing::durability`].
    pub fn durability(self, durability: Durability) -> Self {
        self.map(|outgoing| outgoing.durability(durability))
    }

    /// Sets a header. See [`Outgoing::header`].
    pub fn header(self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        self.map(|outgoing| outgoing.header(name, value))
    }

    fn map(self, change: impl FnOnce(Outgoing) -> Outgoing) -> Self {
        Self {
            outgoing: self.outgoing.map(change),
            ..self
        }
    }
}

impl IntoFuture for SendBuilder {
    type Output = Result<Receipt, SendError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.producer.send_message(self.topic, self.outgoing?).await })
    }
}
