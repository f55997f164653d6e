//! The input of a handler: one [`Delivery`] of a message, and the [`Context`] of its run.
//!
//! Neither calls Redis. The consumer renews the lease until the deadline of the context.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lisa_core::message::{EntryId, Headers, MessageId};
use lisa_core::sync::Mutex;
use lisa_core::time::UnixMs;
use lisa_core::topic::{Group, Topic};
use lisa_service::spans::{Delivered, TRACE_HEADERS, Trace};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::worker::lease::Held;

/// The furthest that [`Context::extend`] can move the deadline of a handler, counted from its start: 7 days, which is also
/// the maximum of a topic's `handler_timeout`.
pub const MAX_RUN: Duration = Duration::from_secs(7 * 24 * 3600);

/// The prefix of the headers with the trace context of a message, where those of a run take their place.
const ORIGIN: &str = "lisa-origin-";

/// One delivery of one message to a handler, or to its garbage hook, [`Handler::on_garbage`](crate::Handler::on_garbage).
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
    /// The time at which this attempt was due, however often it is delivered. For a garbage hook: the time at which the
    /// message went to garbage.
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

    /// Returns what spans record of it.
    #[doc(hidden)]
    pub fn for_spans(&self) -> Delivered<'_> {
        Delivered {
            id: &self.id,
            attempt: self.attempt,
            due_at: self.due_at,
            lateness: self.lateness(),
            headers: &self.headers,
        }
    }

    /// Returns a number that grows with each delivery of the message to the group: a fencing token. A receiver that keeps the
    /// largest number it has seen of a message can refuse the work of an earlier attempt that was delayed.
    ///
    /// It is the id of the stream entry: ms × 2²⁰ + sequence number, below 2⁶³ and always 19 digits, so that texts compare as
    /// numbers do. Redis never reuses the id of an entry. After a topic was resharded to another server whose clock is behind,
    /// the number may be smaller than before.
    pub fn fence(&self) -> u64 {
        const SEQ_BITS: u32 = 20;
        let seq = self.entry.seq().min((1 << SEQ_BITS) - 1);
        let ms = self.entry.ms().min((1 << (63 - SEQ_BITS)) - 1);
        (ms << SEQ_BITS) | seq
    }

    /// Parses the payload as JSON.
    ///
    /// # Errors
    /// The payload is not valid JSON, or not a `T`.
    pub fn json<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.payload)
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
    shutdown: Arc<CancellationToken>,
    lease: Arc<Held>,
    token: Option<String>,
    trace: Option<Trace>,
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
        let now = Instant::now();
        let lease = Held::new(lease_lost, now);
        Self::starting(
            delivery,
            now,
            deadline,
            Arc::new(shutdown),
            lease,
            None,
            None,
        )
    }

    /// Creates the context of a delivery whose handler starts at `now`.
    pub(crate) fn starting(
        delivery: &Delivery,
        now: Instant,
        deadline: Instant,
        shutdown: Arc<CancellationToken>,
        lease: Arc<Held>,
        token: Option<String>,
        trace: Option<Trace>,
    ) -> Self {
        let inner = Surroundings {
            topic: delivery.topic.clone(),
            group: delivery.group.clone(),
            id: delivery.id.clone(),
            headers: delivery.headers.clone(),
            attempt: delivery.attempt,
            max_attempts: delivery.max_attempts,
            deadline: Mutex::new(deadline),
            latest: now + MAX_RUN,
            shutdown,
            lease,
            token,
            trace,
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

    /// Returns the headers of the message for another system that it is passed on to. With [`Spans`](crate::Spans), `traceparent`
    /// and `tracestate` are those of this run, and those of the message are `lisa-origin-traceparent` and
    /// `lisa-origin-tracestate`.
    pub fn headers_to_pass_on<'d>(
        &self,
        delivery: &'d Delivery,
    ) -> impl Iterator<Item = (Cow<'d, str>, Cow<'d, str>)> + use<'d> {
        let of_run = self.inner.trace.as_ref().map(Trace::headers);
        let is_replaced = of_run.is_some();
        let own = delivery.headers.iter().map(move |(name, value)| {
            let name = match is_replaced && TRACE_HEADERS.contains(&name) {
                true => Cow::Owned(format!("{ORIGIN}{name}")),
                false => Cow::Borrowed(name),
            };
            (name, Cow::Borrowed(value))
        });
        let of_run = of_run.into_iter().flatten();
        own.chain(of_run.map(|(name, value)| (Cow::Borrowed(name), Cow::Owned(value))))
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

    /// Returns the token with which a gateway settles this delivery, for work that is [completed later](crate::Outcome::Later).
    /// `None` unless the handler has [`max_later`](crate::Handler::max_later), and the crate has the feature `gateway` or
    /// `sink-http`.
    ///
    /// A token is a secret: anybody with it can settle the delivery.
    pub fn token(&self) -> Option<&str> {
        self.inner.token.as_deref()
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
        if self.inner.lease.lost.is_cancelled() {
            return Err(LeaseLost);
        }
        let wanted = Instant::now() + time.min(MAX_RUN);
        let mut deadline = self.inner.deadline.lock();
        *deadline = wanted.min(self.inner.latest).max(*deadline);
        Ok(*deadline)
    }

    /// Returns a token that is cancelled when a shutdown begins. Then finish soon, or return [`Outcome::Defer`](crate::Outcome::Defer): at the
    /// end of the grace period the handler is dropped, and its delivery is handed back without counting as an attempt.
    pub fn shutdown(&self) -> &CancellationToken {
        &self.inner.shutdown
    }

    /// Returns a token that is cancelled when the lease is lost: the message is, or will be, delivered again, and the
    /// outcome of this run is ignored. The consumer asks Redis every third of a lease.
    pub fn lease_lost(&self) -> &CancellationToken {
        &self.inner.lease.lost
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn delivery() -> Delivery {
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
    fn with_a_span_the_headers_for_others_carry_its_context_and_keep_that_of_the_message() {
        use lisa_service::spans::{CommonAttributes, SpanOptions, Spans};

        let mut delivery = delivery();
        let headers = Arc::make_mut(&mut delivery.headers);
        let origin = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let given = [
            ("color", "red"),
            ("traceparent", origin),
            ("tracestate", "a=1"),
        ];
        for (name, value) in given {
            headers.insert(name, value).unwrap();
        }
        let pairs = |context: &Context| -> Vec<(String, String)> {
            let all = context.headers_to_pass_on(&delivery);
            all.map(|(name, value)| (name.into_owned(), value.into_owned()))
                .collect()
        };
        let owned = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            let each = pairs.iter();
            each.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect()
        };
        let (now, lost) = (Instant::now(), CancellationToken::new());
        assert_eq!(
            pairs(&Context::new(
                &delivery,
                now,
                CancellationToken::new(),
                lost.clone()
            )),
            owned(&given)
        );

        let provider = opentelemetry_sdk::trace::SdkTracerProvider::default();
        let spans = Spans::new(&provider, SpanOptions::default());
        let common = CommonAttributes {
            topic: &delivery.topic,
            group: Some(&delivery.group),
            shard: None,
            client: None,
        };
        let span = spans.process(&common, &delivery.for_spans());
        let trace = span.trace();
        let own = trace.as_ref().map(Trace::headers).unwrap();
        let [("traceparent", own)] = &*own else {
            panic!("{own:?}");
        };
        let held = Held::new(lost, now);
        let context = Context::starting(&delivery, now, now, Arc::default(), held, None, trace);
        let expected = [
            ("color", "red"),
            ("lisa-origin-traceparent", origin),
            ("lisa-origin-tracestate", "a=1"),
            ("traceparent", own),
        ];
        assert_eq!(pairs(&context), owned(&expected));
        assert_ne!(own, origin);
    }

    #[test]
    fn a_fence_grows_with_the_entry_and_stays_below_two_to_the_63() {
        let fence = |ms, seq| {
            let entry = EntryId::new(ms, seq);
            Delivery {
                entry,
                ..delivery()
            }
            .fence()
        };
        assert_eq!(fence(5, 3), (5 << 20) + 3);
        assert!(fence(5, 3) < fence(5, 4) && fence(5, u64::MAX) < fence(6, 0));
        assert_eq!(fence(u64::MAX, u64::MAX), i64::MAX as u64);
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
}
