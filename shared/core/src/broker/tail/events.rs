//! Reads the events of all shards of a topic that follow a cursor, without waiting, for a client that polls.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{Event, Position, Positions, ShardTail, TailOptions, TailStart};
use crate::broker::shards::of_each;
use crate::broker::{Broker, BrokerError, InvalidCursor, TopicHandle};
use crate::message::EntryId;
use crate::time::UnixMs;
use crate::topic::{Group, Shard};

/// The approximate maximum number of events in one read. It is larger if there are more streams: each may have one.
const MOST: usize = 1000;

/// The positions of a reader in the streams of a topic.
///
/// As text, each stream is `shard.group.entry.added.seen`. Streams are separated by `*`, which needs no escape in a URL. The
/// failures have no group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventCursor(BTreeMap<Shard, Positions>);

impl fmt::Display for EventCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut mark = "";
        for (shard, positions) in &self.0 {
            for (group, Position { read, added, seen }) in positions {
                let group = group.as_ref().map_or("", Group::as_str);
                write!(f, "{mark}{shard}.{group}.{read}.{added}.{seen}")?;
                mark = "*";
            }
        }
        Ok(())
    }
}

impl FromStr for EventCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let mut cursor = Self::default();
        for item in text.split('*') {
            let (shard, group, position) = read(item).ok_or(InvalidCursor)?;
            cursor.0.entry(shard).or_default().insert(group, position);
        }
        Ok(cursor)
    }
}

crate::text_value!(EventCursor, "cursor", "";);

/// Reads the position in one stream.
fn read(item: &str) -> Option<(Shard, Option<Group>, Position)> {
    let mut parts = item.split('.');
    let mut next = || parts.next();
    let shard = Shard::new(next()?.parse().ok()?);
    let group = match next()? {
        "" => None,
        group => Some(group.parse().ok()?),
    };
    let position = Position {
        read: next()?.parse::<EntryId>().ok()?,
        added: next()?.parse().ok()?,
        seen: next()?.parse::<u32>().ok()?.into(),
    };
    parts.next().is_none().then_some((shard, group, position))
}

impl Broker {
    /// Returns the events of all shards of a topic that follow a cursor, by time, and the next cursor. It does not wait.
    /// Without a cursor, it returns the first one, at the start that `options` name. It returns up to about 1,000 events; the
    /// next call returns those that remain.
    ///
    /// It makes one call for each stream, and another if the stream has new entries. A topic has a stream for each group and
    /// one for the failures, on each shard.
    ///
    /// # Errors
    /// [`BrokerError`]. The cursor stays valid.
    ///
    /// # Cancel safety
    /// Safe: it changes nothing.
    pub async fn events(
        &self,
        topic: &TopicHandle,
        options: &TailOptions,
        cursor: Option<EventCursor>,
    ) -> Result<(Vec<Event>, EventCursor), BrokerError> {
        let shards: Vec<_> = topic.shards().collect();
        let page = (MOST / options.streams(topic).max(1)).max(1);
        let is_first = cursor.is_none();
        let mut known = cursor.unwrap_or_default().0;
        let read = |shard| {
            let mut tail = ShardTail {
                positions: known.remove(&shard).unwrap_or_default(),
                page: Some(page),
                ..self.tail(shard, options.clone())
            };
            if !is_first {
                // A shard without positions is new.
                tail.options.start = TailStart::Beginning;
            }
            async move {
                let events = tail.next(topic, Duration::ZERO).await?;
                Ok((tail, events))
            }
        };
        let mut cursor = EventCursor::default();
        let mut all = Vec::new();
        for (tail, events) in of_each(shards.into_iter().map(read).collect()).await? {
            cursor.0.insert(tail.shard, tail.positions);
            all.extend(events);
        }
        all.sort_by_key(at);
        Ok((all, cursor))
    }
}

/// Returns the time of an event. A missed event has none, and comes first.
fn at(event: &Event) -> UnixMs {
    match event {
        Event::Ready { attempt, .. } => UnixMs::new(attempt.entry.ms()),
        Event::Failed(failure) => failure.failed.at,
        Event::Missed { .. } => UnixMs::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_is_written() {
        let text = "0..1700000000000-0.5.0*0.billing.1700000000001-7.6.2*12.a_b-c.0-0.0.0";
        let cursor: EventCursor = text.parse().unwrap();
        assert_eq!(cursor.to_string(), text);
        let billing = Position {
            read: EntryId::new(1_700_000_000_001, 7),
            added: 6,
            seen: 2,
        };
        let group = Some("billing".parse().unwrap());
        assert_eq!(cursor.0[&Shard::new(0)][&group], billing);
        for wrong in [
            "",
            "*",
            "0",
            "0..1-0.5",
            "0..1-0.5.0.1",
            "0..1.5.0",
            "x..1-0.5.0",
            "0.A.1-0.5.0",
            "0..1-0.-5.0",
            "70000..1-0.5.0",
            "0..1-0.5.0*",
        ] {
            assert_eq!(wrong.parse::<EventCursor>(), Err(InvalidCursor), "{wrong}");
        }
    }
}
