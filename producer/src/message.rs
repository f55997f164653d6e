//! The description of a message to send, and the checks that need no Redis.

use std::time::Duration;

use bytes::Bytes;
use lisa_core::durability::Durability;
use lisa_core::fields::{refusal, within};
use lisa_core::message::{
    ATTEMPTS, Expiry, Headers, MergeKey, MessageId, MessageOptions, NewId, PreparedMessage,
    REPLACES_ITSELF, TTLS,
};
use lisa_core::retry::RetryPolicy;
use lisa_core::time::{UnixMs, When, format_duration};
use lisa_core::topic::{MergeBy, TopicSettings};
use serde::Serialize;

use crate::error::{InvalidField, SendError};

/// A message to send: its payload and its options. By default it is due now and has a generated id.
///
/// The methods never fail. The send reports the first value that is not allowed, as [`SendError::Invalid`].
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use lisa_producer::NewMessage;
///
/// # fn main() -> Result<(), lisa_producer::SendError> {
/// let message = NewMessage::json(&7)?
///     .delay(Duration::from_secs(30 * 60))
///     .id("order-7-reminder")
///     .header("source", "checkout");
/// assert_eq!(message.message_id().as_str(), "order-7-reminder");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct NewMessage {
    message: PreparedMessage,
    durability: Option<Durability>,
    problem: Option<InvalidField>,
}

impl NewMessage {
    /// Creates a message with these bytes as its payload, which may be empty.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        let mut message = PreparedMessage::new(payload);
        message.new_id = NewId::generated();
        Self {
            message,
            durability: None,
            problem: None,
        }
    }

    /// Creates a message with a value as its JSON payload.
    ///
    /// # Errors
    /// [`SendError::Encode`] if the value cannot be encoded as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, SendError> {
        serde_json::to_vec(value)
            .map(Self::new)
            .map_err(SendError::Encode)
    }

    /// Delivers it this long after Redis accepts it, rounded down to milliseconds; at most the topic's `max_delay`. Replaces
    /// any due time set before.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        self.at(delay)
    }

    /// Delivers it at this time; a past time means now. At most the topic's `max_delay` from now. Accepts [`UnixMs`],
    /// [`SystemTime`](std::time::SystemTime), `jiff::Timestamp`, or a [`Duration`] as a delay. Replaces any due time set
    /// before.
    #[must_use]
    pub fn at(mut self, when: impl Into<When>) -> Self {
        self.message.when = when.into();
        self
    }

    /// Sets its id, which is its idempotency key: `[A-Za-z0-9_:-]{1,64}`. Sending the same id again stores nothing,
    /// until the topic's `dedup_window` after the end of the message. The default is a generated id.
    ///
    /// An id of `success:` or `garbage:` and 32 hexadecimal digits is refused, because callbacks have such ids.
    #[must_use]
    pub fn id(mut self, id: impl AsRef<str>) -> Self {
        match id.as_ref().parse::<MessageId>() {
            Ok(id) if id.is_derived() => {
                self.reject("id", format!("{id}: only Lisa makes ids of this form"));
            }
            Ok(id) => {
                self.message.id = id;
                self.message.new_id = NewId::default();
                self.message.record.caller_id = true;
            }
            Err(error) => self.reject("id", error),
        }
        self
    }

    /// Limits its delivery attempts: 1 to 1000. After the last one fails, it goes to garbage (dead letters). The default is
    /// the topic's `max_attempts`.
    #[must_use]
    pub fn max_attempts(mut self, max_attempts: u32) -> Self {
        match refusal(&max_attempts, &within(ATTEMPTS)) {
            None => self.message.record.max_attempts = Some(max_attempts),
            Some(why) => self.reject("max_attempts", format!("{max_attempts}: {why}")),
        }
        self
    }

    /// Sets its ordering key: 1 to 256 bytes of UTF-8 without control characters. In each group, messages with the same key
    /// are delivered one at a time, by due time, then arrival.
    #[must_use]
    pub fn key(mut self, key: impl AsRef<str>) -> Self {
        match key.as_ref().parse() {
            Ok(key) => {
                self.message.options.key = Some(key);
                self.reroute();
            }
            Err(error) => self.reject("key", error),
        }
        self
    }

    /// Sets its merge key: 1 to 256 bytes of UTF-8 without control characters. It merges with an undelivered message
    /// that has the same merge key and the same ordering key (or none), per the topic's `merge` policy.
    #[must_use]
    pub fn merge_key(mut self, key: impl AsRef<str>) -> Self {
        match key.as_ref().parse() {
            Ok(key) => {
                self.message.options.merge_key = Some(key);
                self.reroute();
            }
            Err(error) => self.reject("merge_key", error),
        }
        self
    }

    /// Sets its priority: of the due messages, those with the higher number are delivered first. The default is 0.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.message.options.priority = priority;
        self
    }

    /// Expires it this long after its due time: 1 ms to 3653 d, rounded down to milliseconds. The default is the topic's
    /// `ttl`. Replaces any expiry set before.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        match refusal(&ttl, &within(TTLS)) {
            None => self.message.options.expiry = Some(Expiry::After(ttl)),
            Some(why) => self.reject("ttl", format!("{}: {why}", format_duration(ttl))),
        }
        self
    }

    /// Expires it at this time, regardless of its due time. Replaces any expiry set before.
    ///
    /// A time that is not after the due time is refused. The exception is a message with a delay and an id of your own: it
    /// may be a late repeat.
    #[must_use]
    pub fn expires_at(mut self, at: impl Into<UnixMs>) -> Self {
        self.message.options.expiry = Some(Expiry::At(at.into()));
        self
    }

    /// Sets its retry policy. The default is the topic's `retry`.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        match policy.check() {
            Ok(()) => self.message.record.retry = Some(policy),
            Err(problems) => {
                let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
                self.reject("retry", texts.join("; "));
            }
        }
        self
    }

    /// Cancels the message with this id atomically with the send. If it cannot be cancelled, nothing is stored:
    /// [`SendError::ReplaceConflict`]. Both messages must be on one shard: if the old message has a key, use the same one.
    #[must_use]
    pub fn replace(mut self, id: impl AsRef<str>) -> Self {
        match id.as_ref().parse() {
            Ok(id) => {
                self.message.options.replace = Some(id);
                self.reroute();
            }
            Err(error) => self.reject("replace", error),
        }
        self
    }

    /// Sends it even if a message with its id was cancelled, which is remembered for the topic's `dedup_window`.
    ///
    /// The send is still a duplicate while that message is stored, or if it ended in another way. A repeat of this send
    /// undoes a cancel that came in between.
    #[must_use]
    pub fn even_if_cancelled(mut self) -> Self {
        self.message.options.even_if_cancelled = true;
        self
    }

    /// Makes the send wait for this durability. The default is the topic's `durability`.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// Sets the options that are set in `options`; the others stay as they are.
    #[must_use]
    pub fn options(mut self, options: MessageOptions) -> Self {
        let MessageOptions {
            delay,
            deliver_at,
            id,
            max_attempts,
            key,
            merge_key,
            priority,
            ttl,
            expires_at,
            retry,
            replace,
            even_if_cancelled,
            durability,
        } = options;
        macro_rules! set {
            ($($value:ident: $method:ident),+) => {
                $(if let Some(value) = $value { self = self.$method(value); })+
            };
        }
        set!(
            delay: delay, deliver_at: at, id: id, max_attempts: max_attempts, key: key, merge_key: merge_key, ttl: ttl,
            expires_at: expires_at, retry: retry, replace: replace, durability: durability
        );
        if priority != 0 {
            self = self.priority(priority);
        }
        if even_if_cancelled {
            self = self.even_if_cancelled();
        }
        self
    }

    /// Sets a header, and replaces any value set before. Names are stored in lower case, and must not start with `lisa-`. A
    /// message has at most 64 headers.
    #[must_use]
    pub fn header(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        let headers = &mut self.message.record.headers;
        if let Err(error) = headers.insert(name.as_ref(), value.as_ref()) {
            self.reject("headers", error);
        }
        self
    }

    /// Replaces all headers. Names that start with `lisa-`, as the headers of a delivery may have, are refused.
    #[must_use]
    pub fn headers(mut self, headers: Headers) -> Self {
        self.message.record.headers = Headers::default();
        for (name, value) in headers.iter() {
            self = self.header(name, value);
        }
        self
    }

    /// Returns the id that it is sent with. The id is known before the first send, so that a repeat can use it again.
    ///
    /// A generated id contains the route of the keys and of the message to replace, so set those first. On a topic that
    /// merges by payload, the send may still change a generated id, to one with the route of the payload.
    pub fn message_id(&self) -> &MessageId {
        // Another message may now be sent with this id.
        self.message.new_id.take();
        &self.message.id
    }

    /// Returns its id, for callers that disclose it only after the send.
    #[cfg(feature = "http")]
    pub(crate) fn id_to_send(&self) -> &MessageId {
        &self.message.id
    }

    /// Sets the payload, for parsers that read it after the other values.
    #[must_use]
    #[cfg(feature = "http")]
    pub(crate) fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.message.record.payload = payload.into();
        self
    }

    /// Replaces a generated id that has another route than the message, so that the id alone finds its shard.
    fn reroute(&mut self) {
        let route = self.message.route();
        if !self.message.record.caller_id && self.message.id.route() != route {
            self.message.id = MessageId::generate_on(route);
        }
    }

    /// Records a problem. Only the first one is kept.
    fn reject(&mut self, field: &'static str, why: impl ToString) {
        self.problem
            .get_or_insert_with(|| InvalidField::new(field, why));
    }

    /// Checks it against the settings of its topic, at `now` on Redis's clock. If the topic merges by payload and the
    /// message has no merge key, sets the hash of its payload as its merge key.
    pub(crate) fn check(
        mut self,
        topic: &TopicSettings,
        now: UnixMs,
    ) -> Result<PreparedMessage, SendError> {
        if let Some(problem) = self.problem {
            return Err(problem.into());
        }
        let size = self.message.record.payload.len() as u64;
        let limit = topic.max_payload.get();
        if size > limit {
            return Err(SendError::TooLarge { size, limit });
        }
        let far = self.message.when.check(now, topic.max_delay);
        far.map_err(|error| InvalidField::new("due", error))?;
        let options = &self.message.options;
        if options.replace.as_ref() == Some(&self.message.id) {
            return Err(InvalidField::new("replace", REPLACES_ITSELF).into());
        }
        // A delay ends later for each repeat, and a late repeat must not be refused. Only a message with a caller's id can
        // be a repeat.
        let is_fixed = matches!(self.message.when, When::At(_)) || !self.message.record.caller_id;
        let due = match self.message.when {
            When::At(due) => due,
            delay => delay.due(now),
        };
        if let Some(Expiry::At(end)) = options.expiry
            && end <= due
            && is_fixed
        {
            let why = format!("{end} is not after the due time, {due}");
            return Err(InvalidField::new("expires_at", why).into());
        }
        if topic.merge_by == MergeBy::Payload && self.message.options.merge_key.is_none() {
            let key = MergeKey::of_payload(&self.message.record.payload);
            self.message.options.merge_key = Some(key);
            self.reroute();
        }
        self.message.durability = self.durability.unwrap_or(topic.durability);
        Ok(self.message)
    }
}

#[cfg(test)]
mod tests {
    use lisa_core::time::LONGEST_DELAY;
    use lisa_core::topic::Size;

    use super::*;

    fn check(message: NewMessage) -> Result<PreparedMessage, SendError> {
        let topic = TopicSettings {
            max_payload: Size::new(4),
            max_delay: Duration::from_secs(10),
            ..TopicSettings::default()
        };
        message.check(&topic, UnixMs::new(1_000_000))
    }

    #[test]
    fn a_message_of_the_largest_size_and_delay_is_accepted() {
        let message = NewMessage::new("1234").delay(Duration::from_secs(10));
        assert!(check(message.max_attempts(1000).id("a:b_c-1")).is_ok());
        assert!(check(NewMessage::new("")).is_ok());
        assert!(check(NewMessage::new("").at(UnixMs::new(5))).is_ok());
        let asking = NewMessage::new("")
            .key("k".repeat(256))
            .merge_key("ä")
            .priority(i32::MIN)
            .ttl(Duration::from_millis(1))
            .retry(RetryPolicy::default());
        assert!(check(asking.replace("other")).is_ok());
    }

    #[test]
    fn a_generated_id_finds_the_shard_of_the_key_in_any_order_of_calls() {
        let on_route = |message: NewMessage| {
            let id = message.message_id().clone();
            let message = check(message).unwrap();
            assert_eq!(message.id, id);
            assert_eq!(message.id.route(), message.route());
            message.route()
        };
        let route = lisa_core::message::route_of_key;
        assert_eq!(
            on_route(NewMessage::new("").key("k").merge_key("m")),
            route("k")
        );
        assert_eq!(
            on_route(NewMessage::new("").merge_key("m").key("k")),
            route("k")
        );
        assert_eq!(on_route(NewMessage::new("").merge_key("m")), route("m"));
        let old = NewMessage::new("").key("k").message_id().clone();
        assert_eq!(on_route(NewMessage::new("").replace(&old)), route("k"));
        let own = NewMessage::new("").id("mine").key("k").merge_key("m");
        assert_eq!(own.message_id().as_str(), "mine");
        assert_eq!(check(own).unwrap().route(), route("k"));
    }

    #[test]
    fn a_topic_that_merges_by_payload_sets_the_merge_key_unless_there_is_one() {
        let topic = TopicSettings {
            merge_by: MergeBy::Payload,
            ..TopicSettings::default()
        };
        let check = |message: NewMessage| message.check(&topic, UnixMs::new(0)).unwrap();
        let message = check(NewMessage::new("abc"));
        assert_eq!(
            message.options.merge_key,
            Some(MergeKey::of_payload(b"abc"))
        );
        assert_eq!(message.id.route(), message.route());
        let named = check(NewMessage::new("abc").merge_key("m"));
        assert_eq!(named.options.merge_key, "m".parse().ok());
        let own = check(NewMessage::new("abc").id("mine"));
        assert_eq!(own.id.as_str(), "mine");
    }

    #[test]
    fn each_value_out_of_bounds_is_named() {
        let invalid = |message| match check(message) {
            Err(SendError::Invalid(invalid)) => invalid.field,
            other => panic!("{other:?}"),
        };
        assert_eq!(invalid(NewMessage::new("").id("a.b")), "id");
        assert_eq!(invalid(NewMessage::new("").max_attempts(0)), "max_attempts");
        assert_eq!(
            invalid(NewMessage::new("").max_attempts(1001)),
            "max_attempts"
        );
        assert_eq!(invalid(NewMessage::new("").header("a b", "c")), "headers");
        assert_eq!(invalid(NewMessage::new("").header("a", "ä")), "headers");
        let facts = NewMessage::new("").header("Lisa-Callback-Hops", "8");
        assert_eq!(invalid(facts), "headers");
        let mut of_a_callback = Headers::default();
        of_a_callback.insert_any("lisa-callback-hops", "8").unwrap();
        let forwarded = NewMessage::new("").headers(of_a_callback);
        assert_eq!(invalid(forwarded), "headers");
        let callback = format!("success:{}", "0f".repeat(16));
        assert_eq!(invalid(NewMessage::new("").id(callback)), "id");
        assert_eq!(
            invalid(NewMessage::new("").delay(Duration::from_millis(10_001))),
            "due"
        );
        assert_eq!(invalid(NewMessage::new("").key("")), "key");
        assert_eq!(invalid(NewMessage::new("").key("a\nb")), "key");
        assert_eq!(
            invalid(NewMessage::new("").merge_key("x".repeat(257))),
            "merge_key"
        );
        assert_eq!(invalid(NewMessage::new("").ttl(Duration::ZERO)), "ttl");
        let long = LONGEST_DELAY + Duration::from_millis(1);
        assert_eq!(invalid(NewMessage::new("").ttl(long)), "ttl");
        let late = NewMessage::new("")
            .at(UnixMs::new(7))
            .expires_at(UnixMs::new(7));
        assert_eq!(invalid(late), "expires_at");
        let policy = RetryPolicy::Fixed {
            delay: long,
            jitter: 0.0,
        };
        assert_eq!(invalid(NewMessage::new("").retry(policy)), "retry");
        assert_eq!(invalid(NewMessage::new("").replace("a.b")), "replace");
        assert_eq!(invalid(NewMessage::new("").replace("a").id("a")), "replace");
        assert_eq!(
            invalid(NewMessage::new("").id("").header("", "")),
            "id",
            "the first one"
        );
        let large = check(NewMessage::new("12345"));
        assert!(matches!(
            large,
            Err(SendError::TooLarge { size: 5, limit: 4 })
        ));
    }
}
