//! What a sender may ask for besides a due time: order, merging, priority, expiry, replacement.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::MessageId;
use super::id::{route_of_key, shard_of_route};
use crate::time::UnixMs;
use crate::topic::{Shard, name};

fn is_key(text: &str) -> bool {
    (1..=256).contains(&text.len()) && !text.chars().any(char::is_control)
}

name!(
    /// What messages share that are delivered one at a time: 1 to 256 bytes of UTF-8 without control characters.
    OrderingKey, "key", "1 to 256 bytes of UTF-8 without control characters", is_key
);

name!(
    /// What messages share of which one stands for all: 1 to 256 bytes of UTF-8 without control characters.
    MergeKey, "merge key", "1 to 256 bytes of UTF-8 without control characters", is_key
);

impl OrderingKey {
    /// Gives the route of its messages.
    pub fn route(&self) -> u16 {
        route_of_key(self.as_str())
    }

    /// Gives the shard of its messages among `shards`.
    pub fn shard(&self, shards: u16) -> Shard {
        shard_of_route(self.route(), shards)
    }
}

impl MergeKey {
    /// Makes the merge key of a message that is merged by its payload: the first 16 bytes of the payload's SHA-256, in
    /// hex.
    pub fn of_payload(payload: &[u8]) -> Self {
        let hash = Sha256::digest(payload);
        let digits: String = hash[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Self(digits.into())
    }

    /// Gives the route of its messages that have no ordering key.
    pub fn route(&self) -> u16 {
        route_of_key(self.as_str())
    }
}

/// Until when a message is worth delivering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// This long after its due time; at least 1 ms.
    After(Duration),
    /// Before this instant, whenever it is due.
    At(UnixMs),
}

/// What a message asks for besides its due time. The default asks for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Messages of one key are delivered one at a time in each group, by due time, then arrival.
    pub key: Option<OrderingKey>,
    /// Messages of one ordering key (or of none) and one merge key are merged, as the topic's `merge` says.
    pub merge_key: Option<MergeKey>,
    /// Of the messages that are due, those with the higher number go first.
    pub priority: i32,
    /// Until when it is worth delivering, if not as the topic says.
    pub expiry: Option<Expiry>,
    /// The message that is cancelled by this send; nothing is stored if it cannot be. It must be on the same shard.
    pub replace: Option<MessageId>,
    /// Whether it is sent although a message of its id was cancelled.
    pub even_if_cancelled: bool,
}

impl Options {
    /// Says whether nothing is asked for, so that a plain topic will do.
    pub fn is_plain(&self) -> bool {
        let Self {
            key,
            merge_key,
            priority,
            expiry,
            replace,
            // Each kind of topic can do that.
            even_if_cancelled: _,
        } = self;
        key.is_none()
            && merge_key.is_none()
            && *priority == 0
            && expiry.is_none()
            && replace.is_none()
    }

    /// Gives the route that they ask for: the ordering key's, else the merge key's, else that of the message to be
    /// replaced. `None` leaves it to the id.
    pub fn route(&self) -> Option<u16> {
        let key = self.key.as_ref().map(OrderingKey::route);
        key.or_else(|| self.merge_key.as_ref().map(MergeKey::route))
            .or_else(|| self.replace.as_ref().map(MessageId::route))
    }

    /// Gives the bytes of all its texts.
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
    fn the_merge_key_of_a_payload_is_the_begin_of_its_hash() {
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
