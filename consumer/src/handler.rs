//! What an application writes: a handler that takes a delivery and says how it ended.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lisa_shared::message::{EntryId, Headers, MessageId};
use lisa_shared::time::{UnixMs, When};
use lisa_shared::topic::{Group, Topic};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// One delivery of one message to one handler.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The topic it was sent to.
    pub topic: Topic,
    /// The group it is delivered to.
    pub group: Group,
    /// The message's identity, the same in every attempt.
    pub id: MessageId,
    /// The delivery's identity; another attempt has another.
    pub entry: EntryId,
    /// Counts from 1. Defers and hand-backs are not counted.
    pub attempt: u32,
    /// The attempt after which the message goes to garbage.
    pub max_attempts: u32,
    /// When it was due.
    pub due_at: UnixMs,
    /// When the handler started, on Redis's clock.
    pub delivered_at: UnixMs,
    /// The sender's headers.
    pub headers: Headers,
    /// The sender's bytes.
    pub payload: Bytes,
}

impl Delivery {
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
    deadline: Instant,
    shutdown: CancellationToken,
    lease_lost: CancellationToken,
}

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
            deadline,
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
        self.inner.deadline
    }

    /// Cancelled when the process is told to stop: finish soon, or return [`Outcome::Defer`].
    pub fn shutdown(&self) -> &CancellationToken {
        &self.inner.shutdown
    }

    /// Cancelled when the lease was lost: the message is, or will be, delivered again, and this
    /// run's outcome will be ignored.
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
}

/// Makes a handler of an async function over a JSON payload:
/// `handler_fn(|order: Order, context| async move { … })`.
///
/// A payload that is not of the type is rejected.
pub fn handler_fn<T, F, R>(function: F) -> impl Handler
where
    T: DeserializeOwned + Send + 'static,
    F: Fn(T, Context) -> R + Send + Sync + 'static,
    R: Future<Output: IntoOutcome> + Send + 'static,
{
    JsonHandler {
        function,
        payload: PhantomData::<fn(T)>,
    }
}

struct JsonHandler<F, P> {
    function: F,
    payload: PhantomData<P>,
}

#[async_trait]
impl<T, F, R> Handler for JsonHandler<F, fn(T)>
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
}

/// Makes a handler of an async function over the whole delivery.
pub fn delivery_fn<F, R>(function: F) -> impl Handler
where
    F: Fn(Delivery, Context) -> R + Send + Sync + 'static,
    R: Future<Output: IntoOutcome> + Send + 'static,
{
    DeliveryHandler { function }
}

struct DeliveryHandler<F> {
    function: F,
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
}

#[async_trait]
impl Handler for Box<dyn Handler> {
    async fn handle(&self, delivery: Delivery, context: Context) -> Outcome {
        (**self).handle(delivery, context).await
    }
}

#[async_trait]
impl<H: Handler + ?Sized> Handler for Arc<H> {
    async fn handle(&self, delivery: Delivery, context: Context) -> Outcome {
        (**self).handle(delivery, context).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
