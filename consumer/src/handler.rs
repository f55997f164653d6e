//! What an application writes: a handler that takes a delivery and says how it ended.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lisa_shared::message::{EntryId, Headers, MessageId};
use lisa_shared::state::GarbageReason;
use lisa_shared::time::{UnixMs, When};
use lisa_shared::topic::{Group, Topic};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The longest run of a handler that [`Context::extend`] can reach, from its start: as long as a topic's
/// `handler_timeout` may be.
pub const MAX_RUN: Duration = Duration::from_secs(7 * 24 * 3600);

/// One delivery of one message to one handler, or to its [`Handler::on_garbage`].
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The topic it was sent to.
    pub topic: Topic,
    /// The group it is delivered to.
    pub group: Group,
    /// The message's identity, the same in every attempt.
    pub id: MessageId,
    /// The delivery's identity; another attempt has another. In garbage: the time when it was given up, and 0.
    pub entry: EntryId,
    /// Counts from 1. Defers and hand-backs are not counted. In garbage: the attempts that were made.
    pub attempt: u32,
    /// The attempt after which the message goes to garbage.
    pub max_attempts: u32,
    /// When it was due. In garbage: when it was given up.
    pub due_at: UnixMs,
    /// When the handler started, on Redis's clock.
    pub delivered_at: UnixMs,
    /// Whether the handler started later than the topic's `max_lateness` allows, and the topic delivers all the same.
    pub late: bool,
    /// What went wrong last, of a message in garbage; `None` if nothing did, and for every other delivery.
    pub last_error: Option<String>,
    /// The sender's headers.
    pub headers: Headers,
    /// The sender's bytes.
    pub payload: Bytes,
}

impl Delivery {
    /// Says whether a failure of this attempt puts the message into garbage (dead letters).
    pub fn is_last_attempt(&self) -> bool {
        self.attempt >= self.max_attempts
    }

    /// Gives how long after its due time the message was delivered.
    pub fn lateness(&self) -> Duration {
        self.delivered_at.since(self.due_at)
    }

    /// Reads the payload as JSON.
    ///
    /// # Errors
    /// The payload is not JSON, or not of this type.
    pub fn json<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.payload)
    }
}

/// How a handler ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Done: the message is removed.
    Ack,
    /// Failed: try again, which counts as an attempt.
    Retry {
        /// How long from now; by the topic's policy if not given.
        after: Option<Duration>,
        /// What went wrong; kept as the last error if this was the last attempt.
        error: String,
    },
    /// Not now: deliver again then, which does not count as an attempt.
    Defer {
        /// When.
        until: When,
    },
    /// Never: into garbage at once.
    Reject {
        /// Why.
        error: String,
    },
}

impl Outcome {
    /// Tries again by the topic's policy.
    pub fn retry(error: impl fmt::Display) -> Self {
        Self::Retry {
            after: None,
            error: error.to_string(),
        }
    }

    /// Tries again after this long.
    pub fn retry_after(after: Duration, error: impl fmt::Display) -> Self {
        Self::Retry {
            after: Some(after),
            error: error.to_string(),
        }
    }

    /// Delivers again then, uncounted.
    pub fn defer(until: impl Into<When>) -> Self {
        Self::Defer {
            until: until.into(),
        }
    }

    /// Gives up.
    pub fn reject(error: impl fmt::Display) -> Self {
        Self::Reject {
            error: error.to_string(),
        }
    }
}

/// What a handler's return value means. `()` and `Ok` are an ack, any error is a retry.
pub trait IntoOutcome {
    /// Says how the handler ended.
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

/// Any error that can be shown is a retry: a text, `anyhow::Error`, `Box<dyn Error>`, one's own.
impl<T: IntoOutcome, E: fmt::Display> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(value) => value.into_outcome(),
            // The alternate form shows the causes, where a type has one.
            Err(error) => Outcome::retry(format_args!("{error:#}")),
        }
    }
}

/// `?` on any error inside a handler: try again by the topic's policy.
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

/// What surrounds one run of a handler. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Context {
    inner: Arc<Surroundings>,
}

#[derive(Debug)]
struct Surroundings {
    attempt: u32,
    /// Only ever moved further off.
    deadline: Mutex<Instant>,
    latest: Instant,
    shutdown: CancellationToken,
    lease_lost: CancellationToken,
}

/// The lease of a delivery was lost: its message is, or will be, delivered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease is lost: the message is delivered again")]
pub struct LeaseLost;

impl Context {
    /// Makes a context, for the consumer and for tests of handlers.
    pub fn new(
        attempt: u32,
        deadline: Instant,
        shutdown: CancellationToken,
        lease_lost: CancellationToken,
    ) -> Self {
        let inner = Surroundings {
            attempt,
            deadline: Mutex::new(deadline),
            latest: Instant::now() + MAX_RUN,
            shutdown,
            lease_lost,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Which attempt this is, from 1; the same as [`Delivery::attempt`].
    pub fn attempt(&self) -> u32 {
        self.inner.attempt
    }

    /// When the handler is given up and its message retried.
    pub fn deadline(&self) -> Instant {
        *self.lock()
    }

    /// Asks for more time: moves the [deadline](Context::deadline) to `time` from now, and gives the one that holds then.
    ///
    /// It is never moved nearer, and never further than [`MAX_RUN`] (7 d) after the start of the handler. The lease is
    /// renewed until the deadline, so that nothing else is needed. The grace at shutdown is not extended.
    ///
    /// It asks nobody and awaits nothing, so that there is nothing to be cancelled.
    ///
    /// # Errors
    /// [`LeaseLost`] if that is known already: what this run does is done again by another one.
    pub fn extend(&self, time: Duration) -> Result<Instant, LeaseLost> {
        if self.inner.lease_lost.is_cancelled() {
            return Err(LeaseLost);
        }
        let wanted = Instant::now() + time.min(MAX_RUN);
        let mut deadline = self.lock();
        *deadline = wanted.min(self.inner.latest).max(*deadline);
        Ok(*deadline)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Instant> {
        let deadline = self.inner.deadline.lock();
        deadline.unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancelled when the process is told to stop: finish soon, or return [`Outcome::Defer`].
    pub fn shutdown(&self) -> &CancellationToken {
        &self.inner.shutdown
    }

    /// Cancelled when the lease was lost: the message is, or will be, delivered again, and this
    /// run's outcome will be ignored. Redis is asked each third of a lease.
    pub fn lease_lost(&self) -> &CancellationToken {
        &self.inner.lease_lost
    }
}

/// Handles the messages of a subscription. Runs up to `concurrency` times at once.
///
/// # Cancel safety
/// The future is dropped at the handler time-out; its message is then retried. A panic is a retry.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Handles one delivery.
    async fn handle(&self, delivery: Delivery, context: Context) -> Outcome;

    /// Says whether [`Handler::on_garbage`] is to run. Asked once, when a consumer starts.
    fn wants_garbage(&self) -> bool {
        false
    }

    /// The final retry: is told of a message of the group that was given up and is safely in garbage, whoever put it there.
    ///
    /// Runs at least once for each message that is given up after the first consumer with such a handler has started,
    /// and again after a crash; up to `concurrency` times at once, beside the handlers, each within the handler time-out.
    /// Two runs for one message overlap only if the topic's lease ran out in between, or if the message was requeued and
    /// given up again. One that is requeued or purged before its turn is left out.
    ///
    /// [`Outcome::Ack`] and [`Outcome::Reject`] end it: the message stays in garbage, and is not told of again. Anything
    /// else, a panic or the time-out included, is logged, and tried again when the topic's lease is over.
    ///
    /// # Cancel safety
    /// The future is dropped at the handler time-out and at the end of the shutdown's grace; it runs again then.
    async fn on_garbage(&self, _delivery: Delivery, _reason: GarbageReason) -> Outcome {
        Outcome::Ack
    }
}

/// What runs for a message in garbage.
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

/// Makes a handler of an async function over a JSON payload:
/// `handler_fn(|order: Order, context| async move { … })`.
///
/// A payload that is not of the type is rejected.
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

/// An async function over a JSON payload as a handler; made by [`handler_fn`].
pub struct JsonHandler<T, F> {
    function: F,
    hook: Option<Hook>,
    payload: PhantomData<fn(T)>,
}

impl<T, F> JsonHandler<T, F> {
    /// Runs this as [`Handler::on_garbage`]: `.on_garbage(|delivery, reason| async move { … })`. Its payload may be one
    /// that is not of the type.
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
            Err(error) => Outcome::reject(format!("the payload is not as expected: {error}")),
        }
    }

    fn wants_garbage(&self) -> bool {
        self.hook.is_some()
    }

    async fn on_garbage(&self, delivery: Delivery, reason: GarbageReason) -> Outcome {
        run_hook(self.hook.as_ref(), delivery, reason).await
    }
}

/// Makes a handler of an async function over the whole delivery.
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

/// An async function over the whole delivery as a handler; made by [`delivery_fn`].
pub struct DeliveryHandler<F> {
    function: F,
    hook: Option<Hook>,
}

impl<F> DeliveryHandler<F> {
    /// Runs this as [`Handler::on_garbage`]: `.on_garbage(|delivery, reason| async move { … })`.
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

/// The examples of the documentation, which must compile.
#[cfg(doctest)]
#[doc = include_str!("../../shared/docs/handlers.md")]
#[doc = include_str!("../../shared/docs/groups.md")]
struct Documentation;

#[cfg(test)]
mod tests {
    use super::*;

    fn context(deadline: Instant, lost: &CancellationToken) -> Context {
        Context::new(1, deadline, CancellationToken::new(), lost.clone())
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
        let settings = |handler_timeout| lisa_shared::topic::TopicSettings {
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
        let told = "order-7 rejected";
        let boxed: Box<dyn Handler> = Box::new(hooked);
        let handler: Arc<Box<dyn Handler>> = Arc::new(boxed);
        assert!(handler.wants_garbage());
        let delivery = crate::sinks::tests::delivery("not a number");
        let outcome = Handler::on_garbage(&handler, delivery, GarbageReason::Rejected).await;
        assert_eq!(outcome, Outcome::retry(told));
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
