//! A message: its identity, its headers, its options, and the record that Redis stores.

mod callback;
pub mod forwarded;
mod id;
mod options;
mod record;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, de};

pub use callback::CallbackOutcome;
pub use id::{EntryId, MessageId, route_of_key};
pub use options::{
    ATTEMPTS, Expiry, MergeKey, MessageOptions, Options, OrderingKey, REPLACES_ITSELF, TTLS,
};
pub use record::{InvalidRecord, RECORD_HEAD, Record};

use crate::durability::Durability;
use crate::names::{InvalidName, Shard, name};
use crate::time::When;

name!(
    /// The name of a message header: `[a-z0-9][a-z0-9-]{0,63}`, lower case.
    HeaderName, "header name", "[a-z0-9][a-z0-9-]{0,63}",
    |text| text.len() <= 64
        && !text.starts_with('-')
        && !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
);

name!(
    /// The value of a message header: up to 4096 bytes of visible ASCII, spaces and tabs inside.
    HeaderValue, "header value", "up to 4096 visible ASCII characters, with spaces or tabs inside",
    |text| text.len() <= 4096
        && text.trim() == text
        && text.bytes().all(|b| b.is_ascii_graphic() || b == b' ' || b == b'\t')
);

use std::fmt;
use std::str::FromStr;

/// Maximum number of headers of a message.
pub const MAX_HEADERS: usize = 64;

/// Headers of a message, sorted by name; at most [`MAX_HEADERS`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Headers(BTreeMap<HeaderName, HeaderValue>);

/// The prefix of the names of headers that only Lisa sets, such as those of callbacks. A sender that sets them could claim
/// what only Lisa knows.
const RESERVED: &str = "lisa-";

/// The longest text of an error in a header, in characters.
const LONGEST_ERROR: usize = 1024;

/// Converts the text of an error for a header: replaces each character that is not printable ASCII with `?`.
pub fn visible_ascii(text: &str) -> String {
    let visible = |c: char| {
        if c.is_ascii_graphic() || c == ' ' {
            c
        } else {
            '?'
        }
    };
    let text: String = text
        .trim()
        .chars()
        .map(visible)
        .take(LONGEST_ERROR)
        .collect();
    text.trim_end().to_owned()
}

impl Headers {
    /// Sets a header of a sender; a later value replaces an earlier one.
    ///
    /// # Errors
    /// [`InvalidName`] for a name or value that is not allowed, for a name that starts with `lisa-`, or for more than
    /// [`MAX_HEADERS`] headers.
    pub fn insert(&mut self, name: &str, value: &str) -> Result<(), InvalidName> {
        if Self::is_reserved(name) {
            let rule = "a name that does not start with lisa-, which only Lisa sets";
            return Err(InvalidName::new("header of a sender", rule, name));
        }
        self.insert_any(name, value)
    }

    /// Returns true for the name of a header that no sender may set.
    pub fn is_reserved(name: &str) -> bool {
        let start = name.as_bytes().get(..RESERVED.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(RESERVED.as_bytes()))
    }

    /// Sets a header, even one that only Lisa sets; a later value replaces an earlier one.
    ///
    /// # Errors
    /// [`InvalidName`] for a name or value that is not allowed, or for more than [`MAX_HEADERS`] headers.
    pub fn insert_any(&mut self, name: &str, value: &str) -> Result<(), InvalidName> {
        let name: HeaderName = name.to_ascii_lowercase().parse()?;
        let value = value.parse()?;
        if self.0.len() >= MAX_HEADERS && !self.0.contains_key(&name) {
            return Err(InvalidName::new(
                "header",
                "at most 64 headers per message",
                name.as_str(),
            ));
        }
        self.0.insert(name, value);
        Ok(())
    }

    /// Returns a header's value; the case of the name is ignored.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut headers = self.iter();
        let found = headers.find(|(given, _)| given.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    }

    /// Returns all headers, sorted by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns true if there are no headers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads the headers of a stored message.
impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut headers = Self::default();
        for (name, value) in BTreeMap::<String, String>::deserialize(from)? {
            headers
                .insert_any(&name, &value)
                .map_err(de::Error::custom)?;
        }
        Ok(headers)
    }
}

/// A mark for an id that only its message can have: Lisa generated the id and nothing has read it, and the message was neither
/// sent nor cloned. Redis does not look up such an id when the message is sent.
///
/// By default, an id is not new: it may already be known.
#[derive(Debug, Default)]
pub struct NewId(AtomicBool);

impl NewId {
    /// Marks an id that was just generated.
    pub fn generated() -> Self {
        Self(AtomicBool::new(true))
    }

    /// Returns true if the id is new.
    pub fn is_new(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns true if the id is new, and removes the mark.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// Removes the mark from the original, too: both messages may be sent.
impl Clone for NewId {
    fn clone(&self) -> Self {
        self.take();
        Self::default()
    }
}

/// Treats all marks as equal: two messages do not differ because one of them was sent.
impl PartialEq for NewId {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// A message that is ready to be sent to Redis.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedMessage {
    /// Its identity.
    pub id: MessageId,
    /// The mark for an id that no other message can have.
    pub new_id: NewId,
    /// The due time.
    pub when: When,
    /// The options in addition to the due time.
    pub options: Options,
    /// The part that Redis stores.
    pub record: Record,
    /// The durability that its send waits for; not stored.
    pub durability: Durability,
}

impl PreparedMessage {
    /// Creates a message that is due now, with a new id.
    pub fn new(payload: impl Into<Bytes>) -> Self {
        Self {
            id: MessageId::generate(),
            new_id: NewId::default(),
            when: When::NOW,
            options: Options::default(),
            record: Record {
                payload: payload.into(),
                ..Record::default()
            },
            durability: Durability::default(),
        }
    }

    /// Returns its route: that of its ordering key, else of its merge key, else of the message it replaces, else of
    /// its id.
    pub fn route(&self) -> u16 {
        self.options.route().unwrap_or_else(|| self.id.route())
    }

    /// Returns its shard among `shards`.
    pub fn shard(&self, shards: u16) -> Shard {
        id::shard_of_route(self.route(), shards)
    }
}
