//! A message as its sender describes it, and the checks that need no Redis.

use std::time::Duration;

use bytes::Bytes;
use lisa_shared::durability::Durability;
use lisa_shared::message::{Expiry, Headers, MergeKey, MessageId, NewMessage};
use lisa_shared::retry::RetryPolicy;
use lisa_shared::time::{LONGEST_DELAY, UnixMs, When, format_duration};
use lisa_shared::topic::{MergeBy, TopicSettings};
use serde::Serialize;

use crate::error::{Invalid, SendError};

/// The most attempts that a message may ask for.
pub(crate) const MAX_ATTEMPTS: u32 = 1000;

/// A message to be sent. Due now, with a fresh id, unless it says otherwise.
///
/// Values that are not allowed are reported by the send, so that descriptions need no error handling.
#[derive(Clone, Debug)]
pub struct Outgoing {
    message: NewMessage,
    durability: Option<Durability>,
    problem: Option<Invalid>,
}

impl Outgoing {
    /// Describes a message with these bytes. Empty is allowed.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self {
            message: NewMessage::new(payload),
            durability: None,
            problem: None,
        }
    }

    /// Describes a message with a value as JSON.
    ///
    /// # Errors
    /// [`SendError::Encode`].
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, SendError> {
        serde_json::to_vec(value)
            .map(Self::new)
            .map_err(SendError::Encode)
    }

    /// Delivers it this long after Redis accepts it, in whole milliseconds. Replaces an earlier due time.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        self.at(delay)
    }

    /// Delivers it at an instant; one in the past means now. Replaces an earlier due time.
    #[must_use]
    pub fn at(mut self, when: impl Into<When>) -> Self {
        self.message.when = when.into();
        self
    }

    /// Gives it an id of the caller's own, `[A-Za-z0-9_:-]{1,64}`: sending it again is then harmless, until the topic's
    /// `dedup_window` after its end.
    #[must_use]
    pub fn id(mut self, id: impl AsRef<str>) -> Self {
        match id.as_ref().parse() {
            Ok(id) => {
                self.message.id = id;
                self.message.record.caller_id = true;
            }
            Err(error) => self.blame("id", error),
        }
        self
    }

    /// Bounds its deliveries, 1 to 1000, instead of the topic's `max_attempts`.
    #[must_use]
    pub fn max_attempts(mut self, max_attempts: u32) -> Self {
        if (1..=MAX_ATTEMPTS).contains(&max_attempts) {
            self.message.record.max_attempts = Some(max_attempts);
        } else {
            self.blame(
                "max_attempts",
                format!("{max_attempts}: allowed is 1 to {MAX_ATTEMPTS}"),
            );
        }
        self
    }

    /// Puts it in line with the messages of its key, 1 to 256 bytes of UTF-8 without control characters: in each group
    /// they are delivered one at a time, by due time, then arrival.
    #[must_use]
    pub fn key(mut self, key: impl AsRef<str>) -> Self {
        match key.as_ref().parse() {
            Ok(key) => {
                self.message.options.key = Some(key);
                self.reroute();
            }
            Err(error) => self.blame("key", error),
        }
        self
    }

    /// Merges it with a message of the same ordering key and merge key that was not delivered yet, as the topic's `merge`
    /// says. 1 to 256 bytes of UTF-8 without control characters.
    #[must_use]
    pub fn merge(mut self, key: impl AsRef<str>) -> Self {
        match key.as_ref().parse() {
            Ok(key) => {
                self.message.options.merge_key = Some(key);
                self.reroute();
            }
            Err(error) => self.blame("merge_key", error),
        }
        self
    }

    /// Lets it go before messages of a lower priority, of those that are due. 0 unless said otherwise.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.message.options.priority = priority;
        self
    }

    /// Makes it worthless this long after its due time, in whole milliseconds, 1 ms to 3653 d, instead of the topic's
    /// `ttl`. Replaces an earlier expiry.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        match check_ttl(ttl) {
            Ok(()) => self.message.options.expiry = Some(Expiry::After(ttl)),
            Err(error) => self.blame("ttl", error),
        }
        self
    }

    /// Makes it worthless from an instant on, whatever its due time. Replaces an earlier expiry.
    #[must_use]
    pub fn expires_at(mut self, at: impl Into<UnixMs>) -> Self {
        self.message.options.expiry = Some(Expiry::At(at.into()));
        self
    }

    /// Gives it a retry policy of its own instead of the topic's.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        match policy.check() {
            Ok(()) => self.message.record.retry = Some(policy),
            Err(problems) => {
                let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
                self.blame("retry", texts.join("; "));
            }
        }
        self
    }

    /// Cancels the message of this id in the same step as this one is stored; if it cannot be cancelled, nothing is
    /// stored: [`SendError::Unreplaced`]. Both must be on one shard: with a key, give the one that the other has.
    #[must_use]
    pub fn replace(mut self, id: impl AsRef<str>) -> Self {
        match id.as_ref().parse() {
            Ok(id) => {
                self.message.options.replace = Some(id);
                self.reroute();
            }
            Err(error) => self.blame("replace", error),
        }
        self
    }

    /// Sends it although a message of its id was cancelled, which is remembered for the topic's `dedup_window`. While that
    /// message is stored, or if it ended otherwise, the send is a duplicate all the same. A repeat of this send undoes a
    /// cancel that came between.
    #[must_use]
    pub fn even_if_cancelled(mut self) -> Self {
        self.message.options.even_if_cancelled = true;
        self
    }

    /// Lets the send wait until the message is this safe, instead of the topic's `durability`.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// Sets a header; names are kept in lower case. At most 64.
    #[must_use]
    pub fn header(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        let headers = &mut self.message.record.headers;
        if let Err(error) = headers.insert(name.as_ref(), value.as_ref()) {
            self.blame("headers", error);
        }
        self
    }

    /// Sets all headers at once.
    #[must_use]
    pub fn headers(mut self, headers: Headers) -> Self {
        self.message.record.headers = headers;
        self
    }

    /// Gives the id under which it will be sent; known before the first try, so that a repeat can name it. One that Lisa
    /// makes has the route of the keys, so ask when they are set; on a topic that merges by payload the send still gives
    /// it the payload's.
    pub fn message_id(&self) -> &MessageId {
        &self.message.id
    }

    /// Gives it these bytes, when they come after all the rest.
    #[must_use]
    pub(crate) fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.message.record.payload = payload.into();
        self
    }

    /// Gives an id of our own the route on which the message goes, so that the id alone finds its shard.
    fn reroute(&mut self) {
        let route = self.message.route();
        if !self.message.record.caller_id && self.message.id.route() != route {
            self.message.id = MessageId::generate_on(route);
        }
    }

    /// Keeps the first problem.
    fn blame(&mut self, field: &'static str, why: impl ToString) {
        self.problem.get_or_insert_with(|| Invalid::new(field, why));
    }

    /// Checks it against its topic, at `now` on Redis's clock, and gives it the merge key of its payload where the topic
    /// merges by that.
    pub(crate) fn check(
        mut self,
        topic: &TopicSettings,
        now: UnixMs,
    ) -> Result<NewMessage, SendError> {
        if let Some(problem) = self.problem {
            return Err(problem.into());
        }
        let size = self.message.record.payload.len() as u64;
        if size > topic.max_payload {
            let limit = topic.max_payload;
            return Err(SendError::TooLarge { size, limit });
        }
        let far = self.message.when.check(now, topic.max_delay);
        far.map_err(|error| Invalid::new("due", error))?;
        let options = &self.message.options;
        if options.replace.as_ref() == Some(&self.message.id) {
            return Err(Invalid::new("replace", REPLACES_ITSELF).into());
        }
        // The end of a delay moves, and a late repeat must not be refused: only a message with an id of the caller's own
        // can be one.
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
            return Err(Invalid::new("expires_at", why).into());
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

/// What is said of a message that shall replace itself.
pub(crate) const REPLACES_ITSELF: &str = "allowed is the id of another message";

/// Checks how long a message is worth delivering.
///
/// # Errors
/// What is allowed.
pub(crate) fn check_ttl(ttl: Duration) -> Result<(), String> {
    if (Duration::from_millis(1)..=LONGEST_DELAY).contains(&ttl) {
        return Ok(());
    }
    Err(format!("{}: allowed is 1ms to 3653d", format_duration(ttl)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(outgoing: Outgoing) -> Result<NewMessage, SendError> {
        let topic = TopicSettings {
            max_payload: 4,
            max_delay: Duration::from_secs(10),
            ..TopicSettings::default()
        };
        outgoing.check(&topic, UnixMs::new(1_000_000))
    }

    #[test]
    fn a_message_of_the_largest_size_and_delay_is_taken() {
        let outgoing = Outgoing::new("1234").delay(Duration::from_secs(10));
        assert!(check(outgoing.max_attempts(1000).id("a:b_c-1")).is_ok());
        assert!(check(Outgoing::new("")).is_ok());
        assert!(check(Outgoing::new("").at(UnixMs::new(5))).is_ok());
        let asking = Outgoing::new("")
            .key("k".repeat(256))
            .merge("ä")
            .priority(i32::MIN)
            .ttl(Duration::from_millis(1))
            .retry(RetryPolicy::default());
        assert!(check(asking.replace("other")).is_ok());
    }

    #[test]
    fn an_id_that_is_made_finds_the_shard_of_the_key_in_whatever_order_they_come() {
        let on_route = |outgoing: Outgoing| {
            let id = outgoing.message_id().clone();
            let message = check(outgoing).unwrap();
            assert_eq!(message.id, id);
            assert_eq!(message.id.route(), message.route());
            message.route()
        };
        let route = lisa_shared::message::route_of_key;
        assert_eq!(on_route(Outgoing::new("").key("k").merge("m")), route("k"));
        assert_eq!(on_route(Outgoing::new("").merge("m").key("k")), route("k"));
        assert_eq!(on_route(Outgoing::new("").merge("m")), route("m"));
        let old = Outgoing::new("").key("k").message_id().clone();
        assert_eq!(on_route(Outgoing::new("").replace(&old)), route("k"));
        let own = Outgoing::new("").id("mine").key("k").merge("m");
        assert_eq!(own.message_id().as_str(), "mine");
        assert_eq!(check(own).unwrap().route(), route("k"));
    }

    #[test]
    fn a_topic_that_merges_by_payload_gives_the_merge_key_unless_there_is_one() {
        let topic = TopicSettings {
            merge_by: MergeBy::Payload,
            ..TopicSettings::default()
        };
        let check = |outgoing: Outgoing| outgoing.check(&topic, UnixMs::new(0)).unwrap();
        let message = check(Outgoing::new("abc"));
        assert_eq!(
            message.options.merge_key,
            Some(MergeKey::of_payload(b"abc"))
        );
        assert_eq!(message.id.route(), message.route());
        let named = check(Outgoing::new("abc").merge("m"));
        assert_eq!(named.options.merge_key, "m".parse().ok());
        let own = check(Outgoing::new("abc").id("mine"));
        assert_eq!(own.id.as_str(), "mine");
    }

    #[test]
    fn each_value_out_of_bounds_is_named() {
        let invalid = |outgoing| match check(outgoing) {
            Err(SendError::Invalid(invalid)) => invalid.field,
            other => panic!("{other:?}"),
        };
        assert_eq!(invalid(Outgoing::new("").id("a.b")), "id");
        assert_eq!(invalid(Outgoing::new("").max_attempts(0)), "max_attempts");
        assert_eq!(
            invalid(Outgoing::new("").max_attempts(1001)),
            "max_attempts"
        );
        assert_eq!(invalid(Outgoing::new("").header("a b", "c")), "headers");
        assert_eq!(invalid(Outgoing::new("").header("a", "ä")), "headers");
        assert_eq!(
            invalid(Outgoing::new("").delay(Duration::from_millis(10_001))),
            "due"
        );
        assert_eq!(invalid(Outgoing::new("").key("")), "key");
        assert_eq!(invalid(Outgoing::new("").key("a\nb")), "key");
        assert_eq!(
            invalid(Outgoing::new("").merge("x".repeat(257))),
            "merge_key"
        );
        assert_eq!(invalid(Outgoing::new("").ttl(Duration::ZERO)), "ttl");
        let long = LONGEST_DELAY + Duration::from_millis(1);
        assert_eq!(invalid(Outgoing::new("").ttl(long)), "ttl");
        let late = Outgoing::new("")
            .at(UnixMs::new(7))
            .expires_at(UnixMs::new(7));
        assert_eq!(invalid(late), "expires_at");
        let policy = RetryPolicy::Fixed {
            delay: long,
            jitter: 0.0,
        };
        assert_eq!(invalid(Outgoing::new("").retry(policy)), "retry");
        assert_eq!(invalid(Outgoing::new("").replace("a.b")), "replace");
        assert_eq!(invalid(Outgoing::new("").replace("a").id("a")), "replace");
        assert_eq!(
            invalid(Outgoing::new("").id("").header("", "")),
            "id",
            "the first one"
        );
        let large = check(Outgoing::new("12345"));
        assert!(matches!(
            large,
            Err(SendError::TooLarge { size: 5, limit: 4 })
        ));
    }
}
