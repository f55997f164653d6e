//! Handlers: the code of an application that processes one delivery and returns its [`Outcome`].
//!
//! A handler never calls Redis itself. The consumer renews its lease, applies the retry policy and settles its outcome.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use lisa_core::state::GarbageReason;
use serde::de::DeserializeOwned;

use crate::delivery::{Context, Delivery};
pub use crate::outcome::{IntoOutcome, Outcome};
use crate::target::Target;

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

    /// Returns the target to which this handler reports its answers, or `None`, which is the default. Must always return the
    /// same target.
    ///
    /// While the target is unavailable or fails, the consumer reads only probes.
    fn target(&self) -> Option<&Target> {
        None
    }

    /// Returns how many messages of a shard may be in flight before deliveries that are completed later hold back others.
    /// `None`, the default, means that the handler never returns [`Outcome::Later`] and needs no [token](Context::token). Must
    /// always return the same.
    ///
    /// Such a delivery frees its place under `concurrency`, unless that many messages are in flight; then it keeps its place
    /// until there are fewer.
    fn max_later(&self) -> Option<usize> {
        None
    }

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

    fn target(&self) -> Option<&Target> {
        (**self).target()
    }

    fn max_later(&self) -> Option<usize> {
        (**self).max_later()
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

    fn target(&self) -> Option<&Target> {
        (**self).target()
    }

    fn max_later(&self) -> Option<usize> {
        (**self).max_later()
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
    use crate::delivery::tests::delivery;
    use crate::target::{Away, TargetSettings};

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

    struct Aimed(Target);

    #[async_trait]
    impl Handler for Aimed {
        async fn handle(&self, _: Delivery, _: Context) -> Outcome {
            Outcome::Ack
        }

        fn target(&self) -> Option<&Target> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_handler_has_its_target_also_behind_a_box_and_an_arc() {
        let target = Target::new(TargetSettings::new(Away::Defer));
        let boxed: Box<dyn Handler> = Box::new(Aimed(target));
        let handler: Arc<Box<dyn Handler>> = Arc::new(boxed);
        assert!(Handler::target(&handler).is_some());
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
