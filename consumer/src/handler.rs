//! Handlers: the code of an application that processes one delivery and returns its [`Outcome`].
//!
//! A handler never calls Redis itself. The consumer renews its lease, applies the retry policy and settles its outcome.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lisa_core::message::{EntryId, Headers, MessageId};
use lisa_core::state::GarbageReason;
use lisa_core::sync::Mutex;
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::{Group, Topic};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The furthest that [`Context::extend`] can move the deadline of a handler, counted from its start: 7 days, which is also
/// the maximum of a topic's `handler_timeout`.
pub const MAX_RUN: Duration = Duration::from_secs(7 * 24 * 3600);

/// One delivery of one message to a handler, or to its garbage hook, [`Handler::on_garbage`].
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The topic of the message.
    pub topic: Topic,
    /// The group that the message is delivered to.
    pub group: Group,
    /// The id of the message, which is the same in every attempt: an idempotency key.
    pub id: MessageId,
    /// The id of the stream entry, which is different for each delivery. For a garbage hook: the time at which the message
    /// went to garbage, with sequence number 0.
    pub entry: EntryId,
    /// The number of this attempt, from 1. Defers and hand-backs are not counted. For a garbage hook: the number of attempts
    /// made.
    pub attempt: u32,
    /// The number of the last attempt. If it fails, the message goes to garbage (dead letters).
    pub max_attempts: u32,
    /// The time at which this attempt was due. For a garbage hook: the time at which the message went to garbage.
    pub due_at: UnixMs,
    /// The time at which the handler started, on Redis's clock.
    pub delivered_at: UnixMs,
    /// True if the handler started later than the topic's `max_lateness` allows, on a topic that delivers late messages
    /// anyway.
    pub late: bool,
    /// The last error of a message in garbage, if it has one. Always `None` outside a garbage hook.
    pub last_error: Option<String>,
    /// The headers of the message, shared with its [`Context`].
    pub headers: Arc<Headers>,
    /// The payload of the message, byte for byte as it was sent.
    pub payload: Bytes,
}

impl Delivery {
    /// Returns true if a failure of this attempt moves the message to garbage (dead letters).
    pub fn is_last_attempt(&self) -> bool {
        self.attempt >= self.max_attempts
    }

    /// Returns how long after [`due_at`](Delivery::due_at) the handler started.
    pub fn lateness(&self) -> Duration {
        self.delivered_at.since(self.due_at)
    }

    /// Parses the payload as JSON.
    ///
    /// # Errors
    /// The payload is not valid JSON, or not a `T`.
    pub fn json<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.payload)
    }
}

/// The outcome of one run of a handler.
///
/// No outcome delays a message by more than the topic's `max_delay`; a longer delay is shortened to it. An error text is
/// cut to 1 KiB, and its control characters become spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The work is done: the message is removed.
    Ack,
    /// The attempt failed: the message is delivered again, or moves to garbage (dead letters) if this was the last attempt.
    Retry {
        /// The time until the next attempt. `None` means the delay of the retry policy.
        after: Option<Duration>,
        /// The reason, which is stored as the last error of the message.
        error: String,
    },
    /// It is too early: the message is delivered again later. Does not count as an attempt.
    Defer {
        /// The time of the next delivery.
        until: When,
    },
    /// The work can never succeed: the message moves to garbage (dead letters) immediately. Counts as an attempt.
    Reject {
        /// The reason, which is stored as the last error of the message.
        error: String,
    },
}

impl Outcome {
    /// Retries after the delay of the message's retry policy, or else the topic's. Counts as an attempt.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self::Retry {
            after: None,
            error: error.to_string(),
        }
    }

    /// Retries after this delay, regardless of the retry policy. Counts as an attempt.
    pub fn retry_after(after: Duration, error: impl fmt::Display) -> Self {
        Self::Retry {
            after: Some(after),
            error: error.to_string(),
        }
    }

    /// Delivers the message again after a [`Duration`] or at a time. Does not count as an attempt.
    pub fn defer(until: impl Into<When>) -> Self {
        Self::Defer {
            until: until.into(),
        }
    }

    /// Moves the message to garbage (dead letters) immediately.
    pub fn reject(error: impl fmt::Display) -> Self {
        Self::Reject {
            error: error.to_string(),
        }
    }
}

/// Converts the return value of a handler into an [`Outcome`].
///
/// | value | outcome |
/// |---|---|
/// | `()` | [`Outcome::Ack`] |
/// | [`Outcome`], also as the `Ok` or `Err` of a `Result` | itself |
/// | `Ok(())` | [`Outcome::Ack`] |
/// | `Err` with any other error that implements [`Display`](fmt::Display) | [`Outcome::retry`] |
pub trait IntoOutcome {
    /// Returns the outcome that this value stands for.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Ack
    }
}

impl<T: IntoOutcome> IntoOutcome for Result<T, Outcome> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(value) => value.into_outcome(),
            Err(outcome) => outcome,
        }
    }
}

/// Retries after any error that implements [`Display`](fmt::Display): a string, `anyhow::Error`, `Box<dyn Error>` or an
/// error type of your own. The error is formatted with `{:#}`.
impl<T: IntoOutcome, E: fmt::Display> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(value) => value.into_outcome(),
            // The alternate form of anyhow and similar types contains the causes.
            Err(error) => Outcome::retry(format_args!("{error:#}")),
        }
    }
}

/// Lets a handler that returns `Result<_, Outcome>` use `?` on any error: the outcome is [`Outcome::retry`]. The text
/// contains the causes of the error.
impl<E: std::error::Error> From<E> for Outcome {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        Self::retry(text)
    }
}

/// The context of one run of a handler: the message, the deadline, and the tokens that announce a shutdown or a lost lease.
///
/// Cheap to clone. Clones share the deadline.
#[derive(Clone, Debug)]
pub struct Context {
    inner: Arc<Surroundings>,
}

#[derive(Debug)]
struct Surroundings {
    topic: Topic,
    group: Group,
    id: MessageId,
    headers: Arc<Headers>,
    attempt: u32,
    max_attempts: u32,
    /// It only ever moves later.
    deadline: Mutex<Instant>,
    latest: Instant,
    shutdown: CancellationToken,
    lease_lost: CancellationToken,
}

/// The error of a handler whose lease was lost: its message is, or will be, delivered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("lease lost: the message is delivered again")]
pub struct LeaseLost;

impl Context {
    /// Creates the context of a delivery whose handler starts now. For the consumer, and for unit tests of handlers.
    ///
    /// Cancelling `shutdown` announces a shutdown, and cancelling `lease_lost` a lost lease.
    pub fn new(
        delivery: &Delivery,
        deadline: Instant,
        shutdown: CancellationToken,
        lease_lost: CancellationToken,
    ) -> Self {
        let inner = Surroundings {
            topic: delivery.topic.clone(),
            group: delivery.group.clone(),
            id: delivery.id.clone(),
            headers: delivery.headers.clone(),
            attempt: delivery.attempt,
            max_attempts: delivery.max_attempts,
            deadline: Mutex::new(deadline),
            latest: Instant::now() + MAX_RUN,
            shutdown,
            lease_lost,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Returns the topic of the message.
    pub fn topic(&self) -> &Topic {
        &self.inner.topic
    }

    /// Returns the group that the message is delivered to.
    pub fn group(&self) -> &Group {
        &self.inner.group
    }

    /// Returns the id of the message, which is the same in every attempt: an idempotency key.
    pub fn id(&self) -> &MessageId {
        &self.inner.id
    }

    /// Returns the headers of the message.
    pub fn headers(&self) -> &Headers {
        &self.inner.headers
    }

    /// Returns the number of this attempt, from 1. Defers and hand-backs are not counted.
    pub fn attempt(&self) -> u32 {
        self.inner.attempt
    }

    /// Returns the number of the last attempt. If it fails, the message goes to garbage (dead letters).
    pub fn max_attempts(&self) -> u32 {
        self.inner.max_attempts
    }

    /// Returns true if a failure of this attempt moves the message to garbage (dead letters).
    pub fn is_last_attempt(&self) -> bool {
        self.attempt() >= self.max_attempts()
    }

    /// Returns the time at which the handler times out: it is dropped at its next `.await`, and its message is retried.
    pub fn deadline(&self) -> Instant {
        *self.inner.deadline.lock()
    }

    /// Moves the [deadline](Context::deadline) to `time` from now, and returns the deadline in effect.
    ///
    /// The deadline never moves earlier, and never past [`MAX_RUN`] (7 days) after the start of the handler. The lease
    /// (visibility timeout) is renewed until the deadline, so nothing else is needed. The grace period of a shutdown is not
    /// extended.
    ///
    /// This method does not call Redis and does not block.
    ///
    /// # Errors
    /// [`LeaseLost`] if the consumer already knows that the lease is lost. Another run repeats the work of this one.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use lisa_consumer::{Context, LeaseLost};
    ///
    /// async fn convert(pages: Vec<String>, context: Context) -> Result<(), LeaseLost> {
    ///     for page in pages {
    ///         context.extend(Duration::from_secs(60))?;
    ///         println!("{}", page.to_uppercase());
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn extend(&self, time: Duration) -> Result<Instant, LeaseLost> {
        if self.inner.lease_lost.is_cancelled() {
            return Err(LeaseLost);
        }
        let wanted = Instant::now() + time.min(MAX_RUN);
        let mut deadline = self.inner.deadline.lock();
        *deadline = wanted.min(self.inner.latest).max(*deadline);
        Ok(*deadline)
    }

    /// Returns a token that is cancelled when a shutdown begins. Then finish soon, or return [`Outcome::Defer`]: at the
    /// end of the grace period the handler is dropped, and its delivery is handed back without counting as an attempt.
    pub fn shutdown(&self) -> &CancellationToken {
        &self.inner.shutdown
    }

    /// Returns a token that is cancelled when the lease is lost: the message is, or will be, delivered again, and the
    /// outcome of this run is ignored. The consumer asks Redis every third of a lease.
    pub fn lease_lost(&self) -> &CancellationToken {
        &self.inner.lease_lost
    }
}

/// Handles the messages of a subscription. Up to `concurrency` calls run at a time.
///
/// For most handlers an async function is enough: see [`handler_fn`] and [`delivery_fn`].
///
/// Delivery is at least once. A handler that must not repeat its work can use [`Delivery::id`] as its idempotency key.
///
/// # Cancel safety
/// The future is dropped at the handler timeout, and its message is retried. It is also dropped at the end of a shutdown's
/// grace period, and its delivery is handed back without counting as an attempt. A panic is a retry.
///
/// # Examples
/// ```
/// use lisa_consumer::{Context, Delivery, Handler, Outcome, async_trait};
///
/// struct Greeter {
///     greeting: String,
/// }
///
/// #[async_trait]
/// impl Handler for Greeter {
///     async fn handle(&self, delivery: Delivery, _: Context) -> Outcome {
///         match delivery.json::<String>() {
///             Ok(name) => println!("{}, {name}", self.greeting),
///             Err(error) => return Outcome::reject(error),
///         }
///         Outcome::Ack
///     }
/// }
/// ```
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Handles one delivery.
    async fn handle(&self, delivery: Delivery, context: Context) -> Outcome;

    /// Returns true if [`Handler::on_garbage`] should run. The default is false. Read only when the consumer starts to
    /// work on a shard.
    fn wants_garbage(&self) -> bool {
        false
    }

    /// Runs once a message of the group is safely in garbage (dead letters), no matter which process moved it there: the
    /// garbage hook. Runs only if [`Handler::wants_garbage`] returns true.
    ///
    /// Runs at least once for each message that goes to garbage after the first consumer with such a handler has
    /// started, and again after a crash. Up to `concurrency` hooks run at a time, in addition to the handlers, each
    /// within the handler timeout. Two runs for one message overlap only if the topic's lease expired in between, or if
    /// the message was requeued and went to garbage again. If a message is requeued or purged first, the hook does not
    /// run.
    ///
    /// [`Outcome::Ack`] and [`Outcome::Reject`] end the hook: the message stays in garbage, and the hook does not run for it
    /// again. Any other outcome, a panic and a timeout are logged, and the hook runs again when the topic's lease is over.
    ///
    /// # Cancel safety
    /// The future is dropped at the handler timeout and at the end of a shutdown's grace period. The hook runs again after
    /// the lease.
    async fn on_garbage(&self, _delivery: Delivery, _reason: GarbageReason) -> Outcome {
        Outcome::Ack
    }
}

/// The function that runs for a message in garbage.
type Hook = Arc<dyn Fn(Delivery, GarbageReason) -> HookRun + Send + Sync>;
type HookRun = Pin<Box<dyn Future<Output = Outcome> + Send>>;

fn hook<F, R>(function: F) -> Hook
where
    F: Fn(Delivery, GarbageReason) -> R + Send + Sync + 'static,
    R: Future<Output: IntoOutcome> + Send + 'static,
{
    Arc::new(move |delivery, reason| {
        let run = function(delivery, reason);
        Box::pin(async move { run.await.into_outcome() })
    })
}

async fn run_hook(hook: Option<&Hook>, delivery: Delivery, reason: GarbageReason) -> Outcome {
    match hook {
        Some(hook) => hook(delivery, reason).await,
        None => Outcome::Ack,
    }
}

/// Creates a handler from an async function of a JSON payload and a [`Context`].
///
/// A payload that is not valid JSON of type `T` is rejected: its message moves to garbage (dead letters).
///
/// # Examples
/// ```
/// use lisa_consumer::{Context, Handler, handler_fn};
///
/// #[derive(serde::Deserialize)]
/// struct Order {
///     id: u64,
///     paid: bool,
/// }
///
/// fn handler() -> impl Handler {
///     handler_fn(|order: Order, _: Context| async move {
///         if !order.paid {
///             // Retried with exponential backoff, by default.
///             return Err(format!("order {} is not paid yet", order.id));
///         }
///         Ok(())
///     })
/// }
/// ```
pub fn handler_fn<T, F, R>(function: F) -> JsonHandler<T, F>
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T, Context) -> R + Send + Sync + 'static,
    R: Future<Output: IntoOutcome> + Send + 'static,
{
    JsonHandler {
        function,
        hook: None,
        payload: PhantomData,
    }
}

/// A handler of JSON payloads, created by [`handler_fn`].
pub struct JsonHandler<T, F> {
    function: F,
    hook: Option<Hook>,
    payload: PhantomData<fn(T)>,
}

impl<T, F> JsonHandler<T, F> {
    /// Adds a garbage hook, which runs as [`Handler::on_garbage`]: `.on_garbage(|delivery, reason| async move { … })`. The
    /// payload of its delivery need not be valid JSON of type `T`.
    #[must_use]
    pub fn on_garbage<G, R>(mut self, function: G) -> Self
    where
        G: Fn(Delivery, GarbageReason) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.hook = Some(hook(function));
        self
    }
}

#[async_trait]
impl<T, F, R> Handler for JsonHandler<T, F>
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T, Context) -> R + Send + Sync + 'static,
    R: Future<Output: IntoOutcome> + Send + 'static,
{
    async fn handle(&self, delivery: Delivery, context: Context) -> Outcome {
        match delivery.json() {
            Ok(payload) => (self.function)(payload, context).await.into_outcome(),
            Err(error) => Outcome::reject(format!("cannot parse the payload: {error}")),
        }
    }

    fn wants_garbage(&self) -> bool {
        self.hook.is_some()
    }

    async fn on_garbage(&self, delivery: Delivery, reason: GarbageReason) -> Outcome {
        run_hook(self.hook.as_ref(), delivery, reason).await
    }
}

/// Creates a handler from an async function of the whole [`Delivery`] and a [`Context`], for payloads that are not JSON.
///
/// # Examples
/// ```
/// use lisa_consumer::{Context, Delivery, Handler, Outcome, delivery_fn};
///
/// fn handler() -> impl Handler {
///     delivery_fn(|delivery: Delivery, _: Context| async move {
///         println!("{} bytes for {}", delivery.payload.len(), delivery.id);
///         Outcome::Ack
///     })
/// }
/// ```
pub fn delivery_fn<F, R>(function: F) -> DeliveryHandler<F>
where
    F: Fn(Delivery, Context) -> R + Send + Sync + 'static,
    R: Future<Output: IntoOutcome> + Send + 'static,
{
    DeliveryHandler {
        function,
        hook: None,
    }
}

/// A handler of whole deliveries, created by [`delivery_fn`].
pub struct DeliveryHandler<F> {
    function: F,
    hook: Option<Hook>,
}

impl<F> DeliveryHandler<F> {
    /// Adds a garbage hook, which runs as [`Handler::on_garbage`]: `.on_garbage(|delivery, reason| async move { … })`.
    #[must_use]
    pub fn on_garbage<G, R>(mut self, function: G) -> Self
    where
        G: Fn(Delivery, GarbageReason) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.hook = Some(hook(function));
        self
    }
}

#[async_trait]
impl<F, R> Handler for DeliveryHandler<F>
where
    F: Fn(Delivery, Context) -> R + Send + Sync + 'static,
    R: Future<Output: IntoOutcome> + Send + 'static,
{
    async fn handle(&self, delivery: Delivery, context: Context) -> Outcome {
        (self.function)(delivery, context).await.into_outcome()
    }

    fn wants_garbage(&self) -> bool {
        self.hook.is_some()
    }

    async fn on_garbage(&self, delivery: Delivery, reason: GarbageReason) -> Outcome {
        run_hook(self.hook.as_ref(), delivery, reason).await
    }
}

#[async_trait]
impl Handler for Box<dyn Handler> {
    async fn handle(&self, delivery: Delivery, context: Context) -> Outcome {
        (**self).handle(delivery, context).await
    }

    fn wants_garbage(&self) -> bool {
        (**self).wants_garbage()
    }

    async fn on_garbage(&self, delivery: Delivery, reason: GarbageReason) -> Outcome {
        (**self).on_garbage(delivery, reason).await
    }
}

#[async_trait]
impl<H: Handler + ?Sized> Handler for Arc<H> {
    async fn handle(&self, delivery: Delivery, context: Context) -> Outcome {
        (**self).handle(delivery, context).await
    }

    fn wants_garbage(&self) -> bool {
        (**self).wants_garbage()
    }

    async fn on_garbage(&self, delivery: Delivery, reason: GarbageReason) -> Outcome {
        (**self).on_garbage(delivery, reason).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery() -> Delivery {
        Delivery {
            topic: "orders".parse().unwrap(),
            group: Group::default(),
            id: "order-7".parse().unwrap(),
            entry: EntryId::new(5, 0),
            attempt: 1,
            max_attempts: 2,
            due_at: UnixMs::new(5),
            delivered_at: UnixMs::new(5),
            late: false,
            last_error: None,
            headers: Arc::default(),
            payload: Bytes::new(),
        }
    }

    fn context(deadline: Instant, lost: &CancellationToken) -> Context {
        Context::new(
            &delivery(),
            deadline,
            CancellationToken::new(),
            lost.clone(),
        )
    }

    #[test]
    fn a_deadline_moves_only_away_and_never_past_the_longest_run() {
        let (start, lost) = (Instant::now(), CancellationToken::new());
        let minutes = |count: u64| Duration::from_secs(60 * count);
        let context = context(start + minutes(5), &lost);
        assert_eq!(context.extend(minutes(1)), Ok(start + minutes(5)));
        let (before, further) = (Instant::now(), context.clone().extend(minutes(9)).unwrap());
        assert!(before + minutes(9) <= further && further <= Instant::now() + minutes(9));
        assert_eq!(context.deadline(), further);
        let most = context.extend(Duration::MAX).unwrap();
        assert!(start + MAX_RUN <= most && most <= Instant::now() + MAX_RUN);
        assert_eq!(context.extend(MAX_RUN + minutes(1)), Ok(most));
        lost.cancel();
        assert_eq!(context.extend(minutes(1)), Err(LeaseLost));
        assert_eq!(context.deadline(), most);
    }

    #[test]
    fn a_run_can_be_extended_to_what_a_topic_may_allow() {
        let settings = |handler_timeout| lisa_core::topic::TopicSettings {
            handler_timeout,
            ..Default::default()
        };
        assert!(settings(MAX_RUN).check().is_ok());
        assert!(
            settings(MAX_RUN + Duration::from_millis(1))
                .check()
                .is_err()
        );
    }

    #[tokio::test]
    async fn a_hook_runs_also_behind_a_box_and_an_arc() {
        let plain = handler_fn(|_: u32, _| async {});
        assert!(!plain.wants_garbage());
        let hooked = plain.on_garbage(|delivery: Delivery, reason| async move {
            Err::<(), _>(format!("{} {reason}", delivery.id))
        });
        let boxed: Box<dyn Handler> = Box::new(hooked);
        let handler: Arc<Box<dyn Handler>> = Arc::new(boxed);
        assert!(handler.wants_garbage());
        let outcome = Handler::on_garbage(&handler, delivery(), GarbageReason::Rejected).await;
        assert_eq!(outcome, Outcome::retry("order-7 rejected"));
    }

    #[test]
    fn what_a_handler_returns_is_an_outcome() {
        fn asks_twice() -> Result<(), Outcome> {
            "x".parse::<u32>()?;
            Ok(())
        }
        let invalid = "invalid digit found in string";
        assert_eq!(().into_outcome(), Outcome::Ack);
        assert_eq!(Ok::<(), String>(()).into_outcome(), Outcome::Ack);
        assert_eq!(asks_twice().into_outcome(), Outcome::retry(invalid));
        let reject = Err::<(), Outcome>(Outcome::reject("no"));
        assert_eq!(reject.into_outcome(), Outcome::reject("no"));
        let text = Err::<(), &str>("later");
        assert_eq!(text.into_outcome(), Outcome::retry("later"));
        let boxed: Result<(), Box<dyn std::error::Error + Send + Sync>> = Err("boxed".into());
        assert_eq!(boxed.into_outcome(), Outcome::retry("boxed"));
        let context = anyhow::Error::msg("cause").context("top");
        let chain = Err::<(), anyhow::Error>(context);
        assert_eq!(chain.into_outcome(), Outcome::retry("top: cause"));
    }
}
