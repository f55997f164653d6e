//! The entries on the streams of a shard, read in pages: those of each message, and how far each stream was read.
//!
//! A stream only grows at its end. So every entry that is there later was either read, or follows the last entry that
//! was read, the tail. Scripts look behind the tail themselves.

use std::collections::HashMap;

use redis::Value;

use super::pace::Pace;
use crate::broker::reply::{command, entry_id};
use crate::broker::{Broker, BrokerError};
use crate::keys::{GroupKeys, ShardKeys};
use crate::message::EntryId;
use crate::redis::ConnectionErrorKind;
use crate::scripts::{Tails, unexpected};

/// The number of entries in a page.
const PAGE: usize = 500;

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
                let mut cmd = command("XRANGE", &group.ready);
                cmd.arg(from).arg("+").arg("COUNT").arg(PAGE);
                let reply = pace.of(broker.call(&group.ready, &cmd)).await?;
                let page = parse(reply)?;
                let last = page.last().map(|(entry, _)| *entry).or(tail);
                self.tails.insert(group.name.clone(), last);
                let is_last = page.len() < PAGE;
                for (entry, id) in page {
                    let of_message = self.entries.entry(id.into()).or_default();
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
        let mut cmd = command("XPENDING", &group.ready);
        cmd.arg(group.name.as_str()).arg(&from).arg(to).arg(PAGE);
        let rows = match pace.of(broker.call(&group.ready, &cmd)).await {
            Err(error) if error.kind == ConnectionErrorKind::NoGroup => return Ok(all),
            reply => match reply? {
                Value::Array(rows) => rows,
                other => return Err(wrong("XPENDING", &other)),
            },
        };
        for row in &rows {
            let Value::Array(fields) = row else {
                return Err(wrong("XPENDING", row));
            };
            let entry = fields.first().ok_or_else(|| wrong("XPENDING", row))?;
            all.push(entry_id(entry).map_err(|_| wrong("XPENDING", row))?);
        }
        match all.last() {
            Some(last) if rows.len() == PAGE => from = format!("({last}"),
            _ => return Ok(all),
        }
    }
}

/// Parses entries and the ids in them, which may be any bytes.
fn parse(reply: Value) -> Result<Vec<(EntryId, Vec<u8>)>, BrokerError> {
    let Value::Array(entries) = reply else {
        return Err(wrong("XRANGE", &reply));
    };
    let read = |entry: &Value| {
        let Value::Array(parts) = entry else {
            return None;
        };
        let [entry, Value::Array(fields)] = parts.as_slice() else {
            return None;
        };
        let id = fields.chunks_exact(2).find_map(|pair| match pair {
            [Value::BulkString(name), Value::BulkString(id)] if name == b"i" => Some(id.clone()),
            _ => None,
        });
        Some((entry_id(entry).ok()?, id.unwrap_or_default()))
    };
    entries
        .iter()
        .map(|entry| read(entry).ok_or_else(|| wrong("XRANGE", entry)))
        .collect()
}

fn wrong(what: &'static str, got: &Value) -> BrokerError {
    BrokerError::Reply {
        what,
        error: unexpected("entries", got),
    }
}
