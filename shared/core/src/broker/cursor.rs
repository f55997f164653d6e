//! The cursors of lists: the starts of their pages, as texts that a client sends back unchanged.
//!
//! A position that Redis would refuse is not a cursor: no page returns one.

use std::fmt;
use std::str::FromStr;

use serde_json::Value as Json;

use crate::fields::{Given, Value};
use crate::message::EntryId;
use crate::time::UnixMs;
use crate::topic::Shard;

/// A text that is not the cursor of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not from a previous page; use the value of `next`")]
pub struct InvalidCursor;

/// The start of a page of a list over the shards of a topic: a position in a shard. As text, it is `shard:position`. Cursors
/// sort by position first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor<P> {
    pub(super) position: P,
    pub(super) shard: Shard,
}

impl<P: fmt::Display> fmt::Display for Cursor<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.shard, self.position)
    }
}

impl<P: FromStr> FromStr for Cursor<P> {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let (shard, position) = text.split_once(':').ok_or(InvalidCursor)?;
        Ok(Self {
            position: position.parse().map_err(|_| InvalidCursor)?,
            shard: Shard::new(shard.parse().map_err(|_| InvalidCursor)?),
        })
    }
}

impl<P> Value for Cursor<P>
where
    Self: fmt::Display + FromStr<Err = InvalidCursor>,
{
    const KIND: &'static str = "cursor";

    fn read(given: Given<'_>) -> Result<Self, String> {
        let cursor = given.text()?.parse();
        cursor.map_err(|error: InvalidCursor| error.to_string())
    }

    fn show(&self) -> Json {
        self.to_string().into()
    }
}

/// A position after an item, or at the start of a shard, which is the empty text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct After<T>(pub(super) Option<T>);

impl<T: fmt::Display> fmt::Display for After<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|last| last.fmt(f))
    }
}

impl<T: FromStr> FromStr for After<T> {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        match text {
            "" => Ok(Self(None)),
            text => text
                .parse()
                .map(|last| Self(Some(last)))
                .map_err(|_| InvalidCursor),
        }
    }
}

/// An entry of a stream, before or after which a page begins. Nothing comes before the first possible entry or after the
/// last one, and Redis refuses such ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryPosition(pub(super) EntryId);

impl fmt::Display for EntryPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for EntryPosition {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let entry: EntryId = text.parse().map_err(|_| InvalidCursor)?;
        let is_possible = entry > EntryId::default() && entry < EntryId::new(u64::MAX, u64::MAX);
        is_possible.then_some(Self(entry)).ok_or(InvalidCursor)
    }
}

crate::text_value!(EntryPosition, "cursor", "";);

/// An offset into a zset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offset(pub(super) usize);

impl FromStr for Offset {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        // No zset has more members; Redis takes twice as much.
        let offset: u32 = text.parse().map_err(|_| InvalidCursor)?;
        usize::try_from(offset).map(Self).map_err(|_| InvalidCursor)
    }
}

/// A member of a zset and its time, as `time:member`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TimedMember(pub(super) UnixMs, pub(super) String);

impl FromStr for TimedMember {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let (time, member) = text.split_once(':').ok_or(InvalidCursor)?;
        let time = time.parse().map_err(|_| InvalidCursor)?;
        Ok(Self(UnixMs::new(time), member.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MessageId;

    fn read<P: FromStr>(text: &str) -> Result<Cursor<P>, InvalidCursor> {
        text.parse()
    }

    #[test]
    fn a_cursor_is_read_as_it_is_written() {
        for text in ["0:", "7:customer 7", "65535:a:b"] {
            assert_eq!(read::<String>(text).unwrap().to_string(), text);
        }
        for text in ["0:", "12:order-7:1"] {
            assert_eq!(read::<After<MessageId>>(text).unwrap().to_string(), text);
        }
        let text = "3:17-2";
        assert_eq!(read::<EntryPosition>(text).unwrap().to_string(), text);
    }

    #[test]
    fn a_cursor_sorts_by_its_position_first() {
        let cursor = |text| read::<EntryPosition>(text).unwrap();
        assert!(cursor("3:17-2") < cursor("0:18-0") && cursor("3:17-2") < cursor("4:17-2"));
    }

    #[test]
    fn what_no_page_returns_is_not_a_cursor() {
        for bad in ["", "7", ":a", "-1:a", "65536:a", "a:b"] {
            assert_eq!(read::<String>(bad), Err(InvalidCursor), "{bad}");
        }
        assert_eq!(read::<After<MessageId>>("0:a b"), Err(InvalidCursor));
        let largest = u64::MAX;
        for bad in [
            "0-0".to_owned(),
            "x".to_owned(),
            String::new(),
            format!("{largest}-{largest}"),
        ] {
            assert_eq!(
                read::<EntryPosition>(&format!("0:{bad}")),
                Err(InvalidCursor),
                "{bad}"
            );
        }
        for bad in [largest.to_string(), "-1".to_owned(), "1-1".to_owned()] {
            assert_eq!(
                read::<Offset>(&format!("0:{bad}")),
                Err(InvalidCursor),
                "{bad}"
            );
        }
        for bad in ["5", "x:y", ":"] {
            assert_eq!(
                read::<TimedMember>(&format!("0:{bad}")),
                Err(InvalidCursor),
                "{bad}"
            );
        }
    }
}
