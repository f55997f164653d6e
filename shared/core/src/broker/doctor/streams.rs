//! The entries on the streams of a shard, read in pages: those of each message, and how far each stream was read.
//!
//! A stream only grows at its end. So every entry that is there later was either read, or follows the last entry that
//! was read, the tail. Scripts look behind the tail themselves.

use std::collections::HashMap;

use super::pace::Pace;
use crate::broker::reply::{Fields, Pending, command, or_empty};
use crate::broker::{Broker, BrokerError};
use crate::keys::{GroupKeys, ShardKeys};
use crate::message::EntryId;
use crate::scripts::Tails;

/// The number of entries in a page.
const PAGE: usize = 500;

/// An entry and its fields.
type Entry = (EntryId, Fields);

/// The entries that were read from the streams of a shard.
#[derive(Default)]
pub(super) struct Streams {
    /// The names of the groups, to which `entries` refers.
    groups: Vec<String>,
    /// The entries by message id; those without one have the empty id.
    entries: HashMap<Box<[u8]>, Vec<(u16, EntryId)>>,
    /// The last entry that was read from each stream.
    pub(super) tails: Tails,
}

impl Streams {
    /// Continues reading behind the tails.
    pub(super) async fn read(
        &mut self,
        broker: &Broker,
        keys: &ShardKeys,
        pace: &Pace,
    ) -> Result<(), BrokerError> {
        for group in &keys.groups {
            let number = self.number(group.name.as_str());
            loop {
                let tail = self.tails.get(&group.name).copied().flatten();
                let from = tail.map_or("-".to_owned(), |entry| format!("({entry}"));
                let range = command("XRANGE", &group.ready).arg(from);
                let range = range.arg(&["+", "COUNT"]).arg(PAGE);
                let page: Vec<Entry> = pace.of(broker.ask(range)).await?;
                let last = page.last().map(|(entry, _)| *entry).or(tail);
                self.tails.insert(group.name.clone(), last);
                let is_last = page.len() < PAGE;
                for (entry, fields) in page {
                    let of_message = self.entries.entry(id_of(fields).into()).or_default();
                    of_message.push((number, entry));
                }
                if is_last {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns the pending entries of a group, up to its tail, that were not seen on its stream.
    pub(super) async fn hollow(
        &self,
        broker: &Broker,
        group: &GroupKeys,
        pace: &Pace,
    ) -> Result<Vec<EntryId>, BrokerError> {
        let Some(tail) = self.tails.get(&group.name).copied().flatten() else {
            // On an empty stream all are hollow.
            return pending(broker, group, "-", "+", pace).await;
        };
        let mut on_stream = std::collections::HashSet::new();
        let number = self
            .groups
            .iter()
            .position(|name| name == group.name.as_str());
        for (of, entry) in self.entries.values().flatten() {
            if Some(usize::from(*of)) == number {
                on_stream.insert(*entry);
            }
        }
        let mut hollow = pending(broker, group, "-", &tail.to_string(), pace).await?;
        hollow.retain(|entry| !on_stream.contains(entry));
        Ok(hollow)
    }

    /// Returns hints at the entries of a message.
    pub(super) fn hints(&self, id: &[u8]) -> impl Iterator<Item = Vec<u8>> {
        let entries = self.entries.get(id).map(Vec::as_slice).unwrap_or_default();
        entries.iter().map(|(group, entry)| {
            format!("entry:{} {entry}", self.groups[usize::from(*group)]).into_bytes()
        })
    }

    /// Returns the ids of all entries.
    pub(super) fn ids(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.keys().map(AsRef::as_ref)
    }

    fn number(&mut self, group: &str) -> u16 {
        let known = self.groups.iter().position(|name| name == group);
        let index = known.unwrap_or_else(|| {
            self.groups.push(group.to_owned());
            self.groups.len() - 1
        });
        // The limit on the keys of a script keeps the number of groups far below this.
        u16::try_from(index).unwrap_or(u16::MAX)
    }
}

/// Lists pending entries in pages.
async fn pending(
    broker: &Broker,
    group: &GroupKeys,
    from: &str,
    to: &str,
    pace: &Pace,
) -> Result<Vec<EntryId>, BrokerError> {
    let (mut all, mut from) = (Vec::new(), from.to_owned());
    loop {
        let range = command("XPENDING", &group.ready).arg(group.name.as_str());
        let range = range.arg(&[&from, to]).arg(PAGE);
        let page: Vec<Pending> = or_empty(pace.of(broker.ask(range)).await)?;
        let is_full = page.len() == PAGE;
        all.extend(page.into_iter().map(|(entry, ..)| entry));
        match all.last() {
            Some(last) if is_full => from = format!("({last}"),
            _ => return Ok(all),
        }
    }
}

/// Returns the message id in the fields of an entry, which may be any bytes.
fn id_of(fields: Fields) -> Vec<u8> {
    let id = fields.into_iter().find(|(name, _)| name == b"i");
    id.map(|(_, id)| id).unwrap_or_default()
}
