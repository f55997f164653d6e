//! The options of a message: as its sender gives them, and as the engine uses them.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::MessageId;
use super::id::{route_of_key, shard_of_route};
use crate::durability::Durability;
use crate::fields;
use crate::fields::{Reader, Value as _};
use crate::names::{Shard, name};
use crate::retry::RetryPolicy;
use crate::time::{LONGEST_DELAY, MILLISECOND, UnixMs};

fn is_key(text: &str) -> bool {
    (1..=256).contains(&text.len()) && !text.chars().any(char::is_control)
}

name!(
    /// The key of messages that are delivered one at a time: 1 to 256 bytes of UTF-8 without control characters.
    OrderingKey, "key", "1 to 256 bytes of UTF-8 without control characters", is_key
);

name!(
    /// The key of messages that are merged, so that one stands for all: 1 to 256 bytes of UTF-8 without control
    /// characters.
    MergeKey, "merge key", "1 to 256 bytes of UTF-8 without control characters", is_key
);

impl OrderingKey {
    /// Returns the route of its messages.
    pub fn route(&self) -> u16 {
        route_of_key(self.as_str())
    }

    /// Returns the shard of its messages among `shards`.
    pub fn shard(&self, shards: u16) -> Shard {
        shard_of_route(self.route(), shards)
    }
}

impl MergeKey {
    /// Returns the merge key of a message that is merged by its payload: the first 16 bytes of the payload's SHA-256,
    /// in hex.
    pub fn of_payload(payload: &[u8]) -> Self {
        let hash = ring::digest::digest(&ring::digest::SHA256, payload);
        let digits: String = hash.as_ref()[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Self(digits.into())
    }

    /// Returns the route of its messages without an ordering key.
    pub fn route(&self) -> u16 {
        route_of_key(self.as_str())
    }
}

/// The allowed numbers of delivery attempts.
pub const ATTEMPTS: RangeInclusive<u32> = 1..=1000;
/// The allowed times to live.
pub const TTLS: RangeInclusive<Duration> = MILLISECOND..=LONGEST_DELAY;

fields! {
    /// The options of a message as its sender gives them, in a header, a field of JSON or an argument each.
    ///
    /// This is where an option is declared. A new one is also a method of the producer's `NewMessage`, and has its effect in
    /// the scripts.
    #[derive(Clone, Debug, PartialEq)]
    pub struct MessageOptions, check = together {
        /// Deliver after this time: 250ms, 30s, 2h, 14d.
        delay: Option<Duration> = None;
        /// Deliver at this time; a past time means now.
        deliver_at: Option<UnixMs> = None;
        /// Id of your own (idempotency key). Sending it again is a duplicate, not an error. By default, an id is generated.
        id: Option<MessageId> = None;
        /// Delivery attempts before the message goes to garbage (dead letters). By default, those of the topic.
        max_attempts: Option<u32> = None, in ATTEMPTS;
        /// Ordering key. Messages of one key are delivered one at a time in each group, by due time, then arrival.
        key: Option<OrderingKey> = None;
        /// Merge key. The message merges with an undelivered one that has the same keys, per the topic's merge policy.
        merge_key: Option<MergeKey> = None;
        /// Priority. Of the due messages, the highest is delivered first.
        priority: i32 = 0;
        /// Expire it this long after its due time. By default, that of the topic.
        ttl: Option<Duration> = None, in TTLS;
        /// Expire it at this time, regardless of its due time.
        expires_at: Option<UnixMs> = None;
        /// Retry policy, with the keys of the configuration. By default, that of the topic.
        retry: Option<RetryPolicy> = None;
        /// Cancel the message with this id atomically with the send. If it cannot be cancelled, nothing is sent.
        replace: Option<MessageId> = None;
        /// Send it even if a message with its id was cancelled.
        even_if_cancelled: bool = false;
        /// Durability that the send waits for. By default, that of the topic.
        durability: Option<Durability> = None;
    }
}

/// The error detail for a message that would replace itself.
pub const REPLACES_ITSELF: &str = "must be the id of another message";

fn together(options: &MessageOptions, from: &mut impl Reader) {
    let MessageOptions {
        delay,
        deliver_at,
        id,
        ttl,
        expires_at,
        replace,
        ..
    } = options;
    if delay.is_some() && deliver_at.is_some() {
        let message = format!("cannot be combined with {}", from.spell("delay"));
        from.problem("deliver_at", deliver_at.show(), message);
    }
    if ttl.is_some() && expires_at.is_some() {
        let message = format!("cannot be combined with {}", from.spell("ttl"));
        from.problem("expires_at", expires_at.show(), message);
    }
    if replace.is_some() && replace == id {
        from.problem("replace", replace.show(), REPLACES_ITSELF.into());
    }
}

/// The time until which a message is worth delivering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// This long after its due time; at least 1 ms.
    After(Duration),
    /// This instant, exclusive, regardless of its due time.
    At(UnixMs),
}

/// The options of a message in addition to its due time. The default sets none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The ordering key. In each group, messages with the same key are delivered one at a time, by due time, then
    /// arrival.
    pub key: Option<OrderingKey>,
    /// The merge key. Messages with the same merge key and the same ordering key (or none) are merged, per the
    /// topic's `merge` policy.
    pub merge_key: Option<MergeKey>,
    /// The priority: of the due messages, those with the higher number are delivered first.
    pub priority: i32,
    /// The expiry; overrides that of the topic.
    pub expiry: Option<Expiry>,
    /// The message that this send cancels; if that is not possible, nothing is stored. It must be on the same shard.
    pub replace: Option<MessageId>,
    /// True if it is sent even if a message with its id was cancelled.
    pub even_if_cancelled: bool,
}

impl Options {
    /// Returns true if it asks for nothing that a plain topic cannot do.
    pub fn is_plain(&self) -> bool {
        let Self {
            key,
            merge_key,
            priority,
            expiry,
            replace,
            // Plain and general topics can both do that.
            even_if_cancelled: _,
        } = self;
        key.is_none()
            && merge_key.is_none()
            && *priority == 0
            && expiry.is_none()
            && replace.is_none()
    }

    /// Returns the route that the options determine: that of the ordering key, else of the merge key, else of the
    /// message to replace. `None` leaves it to the id.
    pub fn route(&self) -> Option<u16> {
        let key = self.key.as_ref().map(OrderingKey::route);
        key.or_else(|| self.merge_key.as_ref().map(MergeKey::route))
            .or_else(|| self.replace.as_ref().map(MessageId::route))
    }

    /// Returns the total length of all texts, in bytes.
    pub fn text_len(&self) -> usize {
        let key = self.key.as_ref().map_or(0, |key| key.as_str().len());
        let merge_key = self.merge_key.as_ref().map_or(0, |key| key.as_str().len());
        let replace = self.replace.as_ref().map_or(0, |id| id.as_str().len());
        key + merge_key + replace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_short_text_without_control_characters() {
        for good in ["a", "customer 7", "Müller/№ 1", &"x".repeat(256)] {
            assert_eq!(good.parse::<OrderingKey>().expect(good).as_str(), good);
            assert_eq!(good.parse::<MergeKey>().expect(good).as_str(), good);
        }
        for bad in ["", "a\0b", "a\n", "\u{7f}", "\u{85}", &"ä".repeat(129)] {
            assert!(bad.parse::<OrderingKey>().is_err(), "{bad:?}");
            assert!(bad.parse::<MergeKey>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_merge_key_of_a_payload_is_the_start_of_its_hash() {
        let key = MergeKey::of_payload(b"abc");
        assert_eq!(key.as_str(), "ba7816bf8f01cfea414140de5dae2223");
        assert_ne!(key, MergeKey::of_payload(b"abd"));
        assert_eq!(key.as_str().parse(), Ok(key));
    }

    #[test]
    fn any_option_makes_a_message_more_than_plain() {
        let plain = Options::default();
        assert!(plain.is_plain());
        let id: MessageId = "a".parse().expect("valid");
        for options in [
            Options {
                key: "k".parse().ok(),
                ..plain.clone()
            },
            Options {
                merge_key: "k".parse().ok(),
                ..plain.clone()
            },
            Options {
                priority: -1,
                ..plain.clone()
            },
            Options {
                expiry: Some(Expiry::At(UnixMs::new(1))),
                ..plain.clone()
            },
            Options {
                replace: Some(id),
                ..plain.clone()
            },
        ] {
            assert!(!options.is_plain(), "{options:?}");
        }
    }

    #[test]
    fn the_ordering_key_routes_before_the_merge_key_and_that_before_the_replaced_message() {
        let mut options = Options {
            priority: 7,
            ..Options::default()
        };
        assert_eq!(options.route(), None);
        options.replace = Some(MessageId::generate_on(9));
        assert_eq!(options.route(), Some(9));
        options.merge_key = "123456789".parse().ok();
        assert_eq!(options.route(), Some(0x31C3));
        options.key = "k".parse().ok();
        assert_eq!(options.route(), Some(route_of_key("k")));
        assert_eq!(options.text_len(), 1 + 9 + 22);
    }
}
