//! The identity of messages that Lisa makes of others: a callback, which reports the outcome of a message in one group, and what is
//! forwarded from garbage or moved back.

use crate::message::{EntryId, MessageId};
use crate::names::{Group, Topic, words};
use crate::time::UnixMs;

words!(
    /// The outcome of a message that a callback reports.
    CallbackOutcome, "callback outcome", {
        /// Its handler has succeeded.
        Success = "success",
        /// It was moved to garbage.
        Garbage = "garbage",
    }
);

/// The words of ids of messages that are forwarded from garbage, or moved to another topic.
const FORWARD: &str = "forward";
const MOVE: &str = "move";
/// The number of hexadecimal digits of a hash in an id.
const DIGITS: usize = 32;

impl MessageId {
    /// Returns the id of the callback for a message of a topic in a group, such as
    /// `success:c5f6c0d3ef6f8bfa1f6ff0d32d2b3b0e`. It is the same in every process, so a repeated callback is a duplicate.
    ///
    /// `garbage_time` is the time at which the message went to garbage. If it is requeued and goes there again, that is
    /// another callback.
    pub fn of_callback(
        outcome: CallbackOutcome,
        topic: &Topic,
        group: &Group,
        message: &Self,
        garbage_time: Option<UnixMs>,
    ) -> Self {
        let time = garbage_time.map_or(String::new(), |time| time.get().to_string());
        Self::derived(
            outcome.as_str(),
            [topic.as_str(), group.as_str(), message.as_str(), &time],
        )
    }

    /// Returns the id of a message that is forwarded from the garbage of a group to another topic, such as
    /// `forward:c5f6c0d3ef6f8bfa1f6ff0d32d2b3b0e`. It is the same in every process, and another one each time that the message
    /// goes to garbage.
    pub fn of_forward(topic: &Topic, group: &Group, message: &Self, garbage_time: UnixMs) -> Self {
        let time = garbage_time.get().to_string();
        Self::derived(
            FORWARD,
            [topic.as_str(), group.as_str(), message.as_str(), &time],
        )
    }

    /// Returns the id of a message that is moved from a topic to another one, for a delivery of it.
    pub fn of_move(topic: &Topic, group: &Group, message: &Self, entry: EntryId) -> Self {
        let entry = entry.to_string();
        Self::derived(
            MOVE,
            [topic.as_str(), group.as_str(), message.as_str(), &entry],
        )
    }

    /// Makes an id of texts without NULs.
    fn derived(word: &str, parts: [&str; 4]) -> Self {
        let hash = ring::digest::digest(&ring::digest::SHA256, parts.join("\0").as_bytes());
        let digits = hash.as_ref()[..DIGITS / 2]
            .iter()
            .map(|byte| format!("{byte:02x}"));
        let id = format!("{word}:{}", digits.collect::<String>());
        id.parse().expect("a word, a colon and 32 digits")
    }

    /// Returns true for an id of the form that only Lisa makes. No sender may choose one, because its message would make that
    /// of Lisa a duplicate.
    pub fn is_derived(&self) -> bool {
        let words = [FORWARD, MOVE];
        let is_known =
            |word: &str| words.contains(&word) || word.parse::<CallbackOutcome>().is_ok();
        self.word().is_some_and(is_known)
    }

    /// Returns the word before the digits of a derived id.
    fn word(&self) -> Option<&str> {
        let (word, digits) = self.as_str().split_once(':')?;
        let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (digits.len() == DIGITS && digits.bytes().all(is_digit)).then_some(word)
    }

    /// Returns true for an id of the form that callbacks have.
    pub fn is_of_callback(&self) -> bool {
        self.word()
            .is_some_and(|word| word.parse::<CallbackOutcome>().is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_callback_is_the_same_for_the_same_outcome_only() {
        let topic: Topic = "orders".parse().unwrap();
        let group: Group = "billing".parse().unwrap();
        let message: MessageId = "order-7".parse().unwrap();
        let at = |ms| Some(UnixMs::new(ms));
        let id = |outcome, group: &Group, time| {
            MessageId::of_callback(outcome, &topic, group, &message, time)
        };
        let (success, garbage) = (CallbackOutcome::Success, CallbackOutcome::Garbage);
        let all = [
            id(success, &group, None),
            id(success, &"audit".parse().unwrap(), None),
            id(garbage, &group, at(5)),
            id(garbage, &group, at(6)),
        ];
        assert_eq!(all[0], id(success, &group, None));
        assert!(all[0].as_str().starts_with("success:"), "{}", all[0]);
        assert_eq!(all[2], id(garbage, &group, at(5)));
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one), "{one}");
            assert!(one.is_of_callback(), "{one}");
        }
        let hash = &all[0].as_str()["success:".len()..];
        let capitals = hash.to_ascii_uppercase();
        for other in [
            format!("failure:{hash}"),
            format!("success:{}", &hash[1..]),
            format!("success:{hash}0"),
            format!("success:g{}", &hash[1..]),
            format!("success:A{}", &capitals[1..]),
            hash.to_owned(),
        ] {
            let id: MessageId = other.parse().unwrap();
            assert!(!id.is_of_callback(), "{other}");
        }
    }
}
