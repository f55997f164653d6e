//! A message as its sender describes it, and the checks that need no Redis.

use std::time::Duration;

use bytes::Bytes;
use lisa_shared::message::{Headers, MessageId, NewMessage};
use lisa_shared::time::{UnixMs, When};
use lisa_shared::topic::TopicSettings;
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
    problem: Option<Invalid>,
}

impl Outgoing {
    /// Describes a message with these bytes. Empty is allowed.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self {
            message: NewMessage::new(payload),
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

    /// Gives the id under which it will be sent; known before the first try, so that a repeat can name it.
    pub fn message_id(&self) -> &MessageId {
        &self.message.id
    }

    /// Gives it these bytes, when they come after all the rest.
    #[must_use]
    pub(crate) fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.message.record.payload = payload.into();
        self
    }

    /// Keeps the first problem.
    fn blame(&mut self, field: &'static str, why: impl ToString) {
        self.problem.get_or_insert_with(|| Invalid::new(field, why));
    }

    /// Checks it against its topic, at `now` on Redis's clock.
    pub(crate) fn check(self, topic: &TopicSettings, now: UnixMs) -> Result<NewMessage, SendError> {
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
        Ok(self.message)
    }
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
