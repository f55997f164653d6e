//! Follows what happens on a shard: messages that become ready, and failed attempts. It changes nothing.
//!
//! A ready message may be read and settled before its entry is seen here, and old failures are dropped. Redis counts the
//! entries that were ever added to a stream, so the number of those that were missed is known.

mod events;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redis::{Cmd, Value};

use crate::broker::failures::{Failure, FailureEntry};
use crate::broker::reply::{command, decode};
use crate::broker::{Broker, BrokerError, Read, TopicHandle};
use crate::keys::Key;
use crate::message::{EntryId, MessageId};
use crate::redis::Reader;
use crate::state::Attempt;
use crate::time::{UnixMs, millis};
use crate::topic::{Group, Shard};

pub use events::EventCursor;

/// The largest number of entries of a stream in one read.
const AT_ONCE: usize = 200;

/// Something that happened on a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message became ready for a consumer of a group.
    Ready {
        /// The group.
        group: Group,
        /// The message.
        id: MessageId,
        /// Its delivery.
        attempt: Attempt,
    },
    /// An attempt failed.
    Failed(Failure),
    /// Messages that became ready in a group were settled before they were seen. Without a group: failures of any group were
    /// dropped before they were seen.
    Missed {
        /// The group; `None` for failures.
        group: Option<Group>,
        /// The number of events; `None` if it is unknown.
        count: Option<u64>,
    },
}

impl Event {
    fn missed(group: Option<Group>, count: Option<u64>) -> Self {
        Self::Missed { group, count }
    }
}

/// A choice of events.
#[derive(Clone, Debug)]
pub struct TailOptions {
    /// The group; all groups without one.
    pub group: Option<Group>,
    /// False to leave out messages that become ready.
    pub ready: bool,
    /// The first events.
    pub start: TailStart,
}

impl TailOptions {
    /// Returns the number of streams that are read for a topic: one for the failures of each shard, and one for each group on
    /// each shard.
    pub fn streams(&self, topic: &TopicHandle) -> usize {
        let groups = match (self.ready, &self.group) {
            (false, _) => 0,
            (true, Some(_)) => 1,
            (true, None) => topic.groups().len(),
        };
        topic.shards().len() * (groups + 1)
    }
}

/// The first events to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailStart {
    /// Events from now on.
    Now,
    /// The kept failures from a time on, then events from now on.
    Since(UnixMs),
    /// All events of the shard, for one that was created after the others were first read.
    Beginning,
}

/// A reader of the events of one shard. It has a connection of its own, which it opens again after a failure.
pub struct ShardTail {
    broker: Broker,
    shard: Shard,
    options: TailOptions,
    reader: Option<Reader>,
    positions: Positions,
    /// The largest number of entries of a stream in one read. If it is set, reads do not wait, and share the broker's connection.
    page: Option<usize>,
}

/// The positions in the streams of a shard. The failures have no group.
type Positions = BTreeMap<Option<Group>, Position>;

/// The number of entries that a stream ever had, and the last of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extent {
    added: u64,
    last: EntryId,
    /// The first entry that is kept.
    first: EntryId,
    /// The number of entries that are kept.
    kept: u64,
}

impl Extent {
    /// Returns true if entries at or after a time may have been dropped.
    fn is_cut(&self, since: UnixMs) -> bool {
        self.kept < self.added && (self.kept == 0 || self.first.ms() >= since.get())
    }
}

/// The position of a reader in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    /// The last entry that was read.
    read: EntryId,
    /// The number of entries that the stream had had when all of them were last accounted for.
    added: u64,
    /// The number of entries seen since.
    seen: u64,
}

impl Position {
    fn at(extent: Extent) -> Self {
        Self {
            read: extent.last,
            added: extent.added,
            seen: 0,
        }
    }

    /// Notes entries that were read after the extent of the stream was. `is_cut` is true if there may be more. Returns the
    /// number of entries that were missed, if any.
    fn note(&mut self, extent: Extent, entries: &[EntryId], is_cut: bool) -> Option<u64> {
        self.read = entries.last().copied().unwrap_or(self.read);
        let early = entries
            .iter()
            .filter(|entry| **entry <= extent.last)
            .count() as u64;
        self.seen += early;
        if is_cut && self.read < extent.last {
            return None;
        }
        let missed = extent.added.saturating_sub(self.added + self.seen);
        self.added = extent.added;
        self.seen = entries.len() as u64 - early;
        (missed > 0).then_some(missed)
    }
}

impl Broker {
    /// Returns a reader of the events of a shard. It begins with the first call of [`ShardTail::next`].
    pub fn tail(&self, shard: Shard, options: TailOptions) -> ShardTail {
        ShardTail {
            broker: self.clone(),
            shard,
            options,
            reader: None,
            positions: Positions::new(),
            page: None,
        }
    }
}

impl ShardTail {
    /// Returns the shard.
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// Waits up to `block` for events, and returns them by stream. The first call does not wait: it returns the kept failures.
    /// Call it with the topic as it is known now: it follows new groups.
    ///
    /// # Errors
    /// [`BrokerError`]. The next call continues where the last one stopped.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection. No event is lost.
    pub async fn next(
        &mut self,
        topic: &TopicHandle,
        block: Duration,
    ) -> Result<Vec<Event>, BrokerError> {
        let keys = topic.keys(self.shard)?;
        let mut streams: Vec<(Option<Group>, &Key)> = vec![(None, &keys.failures)];
        let wanted = |group: &Group| self.options.group.as_ref().is_none_or(|only| only == group);
        for group in keys
            .groups
            .iter()
            .filter(|group| self.options.ready && wanted(&group.name))
        {
            streams.push((Some(group.name.clone()), &group.ready));
        }
        let followed: BTreeSet<_> = streams.iter().map(|(group, _)| group.clone()).collect();
        self.positions.retain(|group, _| followed.contains(group));

        let (mut events, mut extents) = (Vec::new(), Vec::new());
        let is_first = self.positions.is_empty();
        for (group, key) in &streams {
            let extent = match (group, self.broker.extent(key).await) {
                (None, Err(error)) => return Err(error.of_failures(topic.name(), self.shard)),
                (_, extent) => extent?,
            };
            extents.push(extent);
            match self.positions.get_mut(group) {
                None => {
                    let is_new = !is_first || self.options.start == TailStart::Beginning;
                    let position = if is_new {
                        Position::default()
                    } else {
                        Position::at(extent)
                    };
                    self.positions.insert(group.clone(), position);
                }
                // Redis lost data, or the stream was removed.
                Some(position) if extent.added < position.added || extent.last < position.read => {
                    *position = Position::at(extent);
                    events.push(Event::missed(group.clone(), None));
                }
                Some(_) => {}
            }
        }
        if is_first {
            return match (self.options.start, extents.first()) {
                (TailStart::Since(since), Some(extent)) => match self.page {
                    None => self.kept(&keys.failures, since, *extent).await,
                    Some(_) => Ok(self.begin_at(since, *extent)),
                },
                _ => Ok(events),
            };
        }
        if !events.is_empty() {
            return Ok(events);
        }
        let (reply, at_once) = match self.page {
            None => (self.read(topic, &streams, block).await?, AT_ONCE),
            Some(page) => (self.read_page(&streams, &extents, page).await?, page),
        };
        for ((group, key), extent) in streams.into_iter().zip(extents) {
            let entries = reply.iter().find(|(name, _)| name == key.as_str());
            let entries = entries.map_or(Value::Nil, |(_, entries)| entries.clone());
            let position = self.positions.entry(group.clone()).or_default();
            let ids = match &group {
                Some(group) => ready(group, entries, &mut events)?,
                None => failed(&self.options, entries, &mut events)?,
            };
            let missed = position.note(extent, &ids, ids.len() == at_once);
            events.extend(missed.map(|missed| Event::missed(group, Some(missed))));
        }
        Ok(events)
    }

    /// Reads what follows the positions.
    async fn read(
        &mut self,
        topic: &TopicHandle,
        streams: &[(Option<Group>, &Key)],
        block: Duration,
    ) -> Result<Vec<(String, Value)>, BrokerError> {
        let mut cmd = Cmd::new();
        cmd.arg("XREAD").arg("COUNT").arg(AT_ONCE);
        cmd.arg("BLOCK").arg(millis(block).max(1)).arg("STREAMS");
        for (_, key) in streams {
            cmd.arg(key.as_ref());
        }
        for (group, _) in streams {
            let read = self.positions.get(group).map(|position| position.read);
            cmd.arg(read.unwrap_or_default().to_string());
        }
        let mut reader = match self.reader.take().filter(Reader::is_open) {
            Some(reader) => reader,
            None => self.broker.server(topic, self.shard)?.reader().await?,
        };
        let reply = reader.read(&cmd, block).await?;
        self.reader = Some(reader);
        decode("XREAD", reply)
    }

    /// Reads what follows the positions, without waiting.
    async fn read_page(
        &self,
        streams: &[(Option<Group>, &Key)],
        extents: &[Extent],
        page: usize,
    ) -> Result<Vec<(String, Value)>, BrokerError> {
        let mut found = Vec::new();
        for ((group, key), extent) in streams.iter().zip(extents) {
            let read = self.positions.get(group).map(|position| position.read);
            let read = read.unwrap_or_default();
            if read < extent.last {
                let range =
                    command("XRANGE", key).arg(&[format!("({read}").as_str(), "+", "COUNT"]);
                let entries = self.broker.ask(range.arg(page)).await?;
                found.push((key.as_str().to_owned(), entries));
            }
        }
        Ok(found)
    }

    /// Moves the position in the failures to a time. Returns a missed event if failures after that time may have been dropped.
    fn begin_at(&mut self, since: UnixMs, extent: Extent) -> Vec<Event> {
        let before = EntryId::new(since.get().saturating_sub(1), u64::MAX);
        if let Some(position) = self.positions.get_mut(&None) {
            position.read = before.min(extent.last);
        }
        let cut = extent.is_cut(since);
        Vec::from_iter(cut.then(|| Event::missed(None, None)))
    }

    /// Returns the kept failures from a time up to the extent of their stream.
    async fn kept(
        &self,
        key: &Key,
        since: UnixMs,
        extent: Extent,
    ) -> Result<Vec<Event>, BrokerError> {
        let range = command("XRANGE", key).arg(&["-".to_owned(), extent.last.to_string()]);
        let entries: Vec<FailureEntry> = self.broker.ask(range).await?;
        let mut events = Vec::new();
        if extent.is_cut(since) {
            events.push(Event::missed(None, None));
        }
        let kept = entries
            .into_iter()
            .filter(|entry| entry.0.ms() >= since.get());
        let failures = kept.filter_map(|FailureEntry(_, failure)| failure);
        events.extend(
            failures
                .filter(|failure| self.options.wants(failure))
                .map(Event::Failed),
        );
        Ok(events)
    }
}

impl TailOptions {
    fn wants(&self, failure: &Failure) -> bool {
        self.group
            .as_ref()
            .is_none_or(|only| *only == failure.group)
    }
}

impl Broker {
    /// Returns the extent of a stream; that of an empty one if it does not exist.
    async fn extent(&self, key: &Key) -> Result<Extent, BrokerError> {
        let mut cmd = redis::cmd("XINFO");
        cmd.arg("STREAM").arg(key.as_ref());
        let reply = match self.call(key, &cmd).await {
            Err(error) if error.code.as_deref() == Some("ERR") => return Ok(Extent::default()),
            reply => reply?,
        };
        let fields: BTreeMap<String, Value> = decode("XINFO", reply)?;
        let field = |name| fields.get(name).cloned().unwrap_or(Value::Nil);
        let first: Option<(EntryId, Value)> = decode("XINFO", field("first-entry"))?;
        Ok(Extent {
            added: decode("XINFO", field("entries-added"))?,
            last: decode("XINFO", field("last-generated-id"))?,
            first: first.map(|(entry, _)| entry).unwrap_or_default(),
            kept: decode("XINFO", field("length"))?,
        })
    }
}

/// Appends the messages that became ready. Returns the ids of the entries.
fn ready(
    group: &Group,
    entries: Value,
    events: &mut Vec<Event>,
) -> Result<Vec<EntryId>, BrokerError> {
    let reads: Vec<Read> = decode("XREAD", entries)?;
    let ids = reads.iter().map(|read| read.attempt.entry).collect();
    events.extend(reads.into_iter().filter_map(|read| {
        Some(Event::Ready {
            group: group.clone(),
            id: read.id?,
            attempt: read.attempt,
        })
    }));
    Ok(ids)
}

/// Appends the failures that are wanted. Returns the ids of the entries.
fn failed(
    options: &TailOptions,
    entries: Value,
    events: &mut Vec<Event>,
) -> Result<Vec<EntryId>, BrokerError> {
    let entries: Vec<FailureEntry> = decode("XREAD", entries)?;
    let ids = entries.iter().map(|entry| entry.0).collect();
    let failures = entries
        .into_iter()
        .filter_map(|FailureEntry(_, failure)| failure);
    events.extend(
        failures
            .filter(|failure| options.wants(failure))
            .map(Event::Failed),
    );
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(added: u64, last: u64) -> Extent {
        Extent {
            added,
            last: EntryId::new(last, 0),
            ..Extent::default()
        }
    }

    fn ids<const N: usize>(ids: [u64; N]) -> [EntryId; N] {
        ids.map(|ms| EntryId::new(ms, 0))
    }

    #[test]
    fn entries_that_were_removed_before_they_were_read_are_counted() {
        let mut position = Position::at(extent(10, 5));
        assert_eq!(position.note(extent(13, 8), &ids([6, 7, 8]), false), None);
        assert_eq!(position.note(extent(16, 11), &ids([11]), false), Some(2));
        assert_eq!(position.note(extent(18, 13), &[], false), Some(2));
        assert_eq!(position.note(extent(18, 13), &[], false), None);
    }

    #[test]
    fn entries_added_after_the_extent_was_read_count_in_the_next_one() {
        let mut position = Position::at(extent(0, 0));
        assert_eq!(position.note(extent(1, 1), &ids([1, 2, 3]), false), None);
        assert_eq!(position.note(extent(4, 4), &[], false), Some(1));
    }

    #[test]
    fn nothing_is_counted_while_entries_are_left_to_read() {
        let mut position = Position::at(extent(0, 0));
        assert_eq!(position.note(extent(5, 5), &ids([1, 3]), true), None);
        assert_eq!(position.note(extent(6, 6), &ids([4, 6]), true), Some(2));
        assert_eq!(position.note(extent(6, 6), &[], false), None);
    }
}
