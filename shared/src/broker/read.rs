//! Bounded reads for people: one message, or a page of a state.

use std::time::Duration;

use bytes::Bytes;
use redis::Value;

use super::admin::pairs;
use super::deliver::{command, parse_entry, text};
use super::{Broker, BrokerError, TopicHandle};
use crate::link::LinkErrorKind;
use crate::message::{EntryId, MessageId};
use crate::scripts::{Lookup, LookupReply, unexpected};
use crate::state::{End, GarbageReason, State};
use crate::time::UnixMs;
use crate::topic::Shard;

/// How many entries of a stream are looked through for one message.
const SCAN_LIMIT: usize = 100_000;
const SCAN_PAGE: usize = 1000;

/// Where one message is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is stored.
    Stored {
        /// Its place and what is known of it there.
        listed: Listed,
        /// Its encoded record.
        record: Bytes,
    },
    /// No such message, or it ended.
    Unknown {
        /// How it ended, if that is remembered.
        end: Option<End>,
    },
}

/// One message as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its identity.
    pub id: MessageId,
    /// Its place.
    pub state: State,
    /// When it is due (waiting, ready, in flight), tried again (retry), or was given up (garbage).
    pub time: UnixMs,
    /// The attempt that is running or comes next; for garbage, those that were made.
    pub attempt: u32,
    /// Who holds it, in flight.
    pub consumer: Option<String>,
    /// What went wrong last, before it was given up.
    pub last_error: Option<String>,
    /// Why it was given up.
    pub dead: Option<DeadLetter>,
}

/// Why a message was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Why.
    pub reason: GarbageReason,
    /// How many attempts were made.
    pub attempts: u32,
    /// What went wrong last.
    pub error: String,
}

impl DeadLetter {
    /// Reads `<reason> <attempts> <error>`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ' ');
        Some(Self {
            reason: parts.next()?.parse().ok()?,
            attempts: parts.next()?.parse().ok()?,
            error: parts.next()?.to_owned(),
        })
    }
}

/// A consumer as its group knows it on one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerInfo {
    /// Its name.
    pub name: String,
    /// Deliveries that it holds.
    pub pending: u64,
    /// Since it last asked for messages.
    pub idle: Duration,
}

/// Part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The messages, in the order of their times within a shard.
    pub items: Vec<Listed>,
    /// What to ask for the next page; `None` at the end.
    pub next: Option<String>,
}

/// Where a page begins: a shard, and an offset into a zset or an entry of a stream.
struct Cursor {
    shard: Shard,
    position: String,
}

impl Cursor {
    fn parse(text: Option<&str>) -> Option<Self> {
        let Some(text) = text else {
            return Some(Self {
                shard: Shard::new(0),
                position: String::new(),
            });
        };
        let (shard, position) = text.split_once(':')?;
        Some(Self {
            shard: Shard::new(shard.parse().ok()?),
            position: position.to_owned(),
        })
    }
}

impl Broker {
    /// Finds one message. One that changes its place while the stream is looked through is looked
    /// up again; on a stream of more than 100,000 entries one that is far behind counts as ready.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn lookup(&self, topic: &TopicHandle, id: &MessageId) -> Result<Found, BrokerError> {
        let shard = topic.shard_of(id);
        for last_try in [false, false, true] {
            let (state, time, attempts, dead, record) =
                match self.run(topic.keys(shard), &Lookup { id }).await? {
                    LookupReply::Unknown { end } => return Ok(Found::Unknown { end }),
                    LookupReply::Found {
                        state,
                        time,
                        attempts,
                        dead,
                        record,
                    } => (state, time, attempts, dead, Bytes::from(record)),
                };
            let (dead, last_error) = match state {
                Some(State::Garbage) => (DeadLetter::parse(&dead), None),
                _ => (None, Some(dead).filter(|error| !error.is_empty())),
            };
            let found = Listed {
                id: id.clone(),
                state: state.unwrap_or(State::Ready),
                time: state.map_or_else(|| self.now(), |_| time),
                attempt: dead.as_ref().map_or(attempts + 1, |dead| dead.attempts),
                consumer: None,
                last_error,
                dead,
            };
            let listed = match state {
                Some(_) => Some(found),
                None => match self.find_on_stream(topic, shard, id).await? {
                    Some(seen) => Some(Listed {
                        last_error: found.last_error,
                        ..seen
                    }),
                    None => Some(found).filter(|_| last_try),
                },
            };
            if let Some(listed) = listed {
                return Ok(Found::Stored { listed, record });
            }
        }
        Ok(Found::Unknown { end: None })
    }

    /// Lists up to `limit` (at most 1000) messages of a state, from a cursor of the page before.
    /// Messages that move meanwhile may be missing or shown twice.
    ///
    /// # Errors
    /// [`BrokerError::Reply`] for a cursor that no page gave; other [`BrokerError`]s.
    pub async fn list(
        &self,
        topic: &TopicHandle,
        state: State,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page, BrokerError> {
        let limit = limit.clamp(1, 1000);
        let wrong = || BrokerError::Reply {
            what: "cursor",
            error: unexpected("one of a page before", &cursor),
        };
        let mut at = Cursor::parse(cursor).ok_or_else(wrong)?;
        let mut items = Vec::new();
        while at.shard.get() < topic.settings().shards {
            let left = limit - items.len();
            let position = match state {
                State::Waiting | State::Retry | State::Garbage => {
                    let offset = if at.position.is_empty() {
                        Ok(0)
                    } else {
                        at.position.parse()
                    };
                    let offset = offset.map_err(|_| wrong())?;
                    self.list_zset(topic, at.shard, state, offset, left, &mut items)
                        .await?
                }
                State::Ready | State::InFlight => {
                    let after = if at.position.is_empty() {
                        Ok(None)
                    } else {
                        at.position.parse().map(Some)
                    };
                    let after = after.map_err(|_| wrong())?;
                    self.list_stream(topic, at.shard, state, after, left, &mut items)
                        .await?
                }
                // No plain topic holds a message back.
                State::Backlog | State::Parked => None,
            };
            if let Some(position) = position {
                let next = Some(format!("{}:{position}", at.shard));
                return Ok(Page { items, next });
            }
            at = Cursor {
                shard: Shard::new(at.shard.get() + 1),
                position: String::new(),
            };
        }
        Ok(Page { items, next: None })
    }

    /// Appends members of a zset; gives the next offset if the page is full.
    async fn list_zset(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        state: State,
        offset: usize,
        limit: usize,
        items: &mut Vec<Listed>,
    ) -> Result<Option<String>, BrokerError> {
        let keys = topic.keys(shard);
        let (zset, details) = match state {
            State::Waiting => (&keys.waiting, None),
            State::Retry => (&keys.retry, Some(&keys.attempts)),
            _ => (&keys.garbage, Some(&keys.dead)),
        };
        let mut cmd = command("ZRANGE", zset);
        cmd.arg(offset).arg(offset + limit - 1).arg("WITHSCORES");
        let members = pairs(&self.inner.link.call(&cmd, self.inner.patience).await?)?;
        let mut texts = vec![String::new(); members.len()];
        if let (Some(details), false) = (details, members.is_empty()) {
            let mut cmd = command("HMGET", details);
            for (id, _) in &members {
                cmd.arg(id.as_str());
            }
            if let Value::Array(values) = self.inner.link.call(&cmd, self.inner.patience).await? {
                for (slot, value) in texts.iter_mut().zip(&values) {
                    *slot = text(value).unwrap_or_default().to_owned();
                }
            }
        }
        let full = members.len() == limit;
        for ((id, time), text) in members.into_iter().zip(texts) {
            let dead = DeadLetter::parse(&text);
            // `<attempts> <crashes> <error>` of a message in retry.
            let mut parts = text.splitn(3, ' ');
            let made: u32 = parts.next().and_then(|n| n.parse().ok()).unwrap_or(0);
            let last_error = parts.nth(1).filter(|error| !error.is_empty());
            items.push(Listed {
                id,
                state,
                time,
                attempt: dead.as_ref().map_or(made + 1, |dead| dead.attempts),
                consumer: None,
                last_error: last_error.filter(|_| dead.is_none()).map(str::to_owned),
                dead,
            });
        }
        Ok(full.then(|| (offset + limit).to_string()))
    }

    /// Appends entries of a stream; gives the last entry looked at if the page is full.
    async fn list_stream(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        state: State,
        after: Option<EntryId>,
        limit: usize,
        items: &mut Vec<Listed>,
    ) -> Result<Option<String>, BrokerError> {
        let from = after.map_or("-".to_owned(), |entry| format!("({entry}"));
        if state == State::InFlight {
            let pending = self.pending(topic, shard, &from, "+", limit).await?;
            for (entry, consumer) in &pending {
                let found = self
                    .entries(topic, shard, &entry.to_string(), &entry.to_string(), 1)
                    .await?;
                if let Some(listed) = found
                    .into_iter()
                    .next()
                    .and_then(|read| listed(read, State::InFlight))
                {
                    items.push(Listed {
                        consumer: Some(consumer.clone()),
                        ..listed
                    });
                }
            }
            let last = pending.last().map(|(entry, _)| entry.to_string());
            return Ok(last.filter(|_| pending.len() == limit));
        }
        let from = match after {
            Some(_) => from,
            None => match self.last_delivered(topic, shard).await? {
                Some(entry) => format!("({entry}"),
                None => from,
            },
        };
        let found = self.entries(topic, shard, &from, "+", limit).await?;
        let last = found.last().map(|read| read.attempt.entry.to_string());
        let full = found.len() == limit;
        items.extend(
            found
                .into_iter()
                .filter_map(|read| listed(read, State::Ready)),
        );
        Ok(last.filter(|_| full))
    }

    async fn find_on_stream(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        id: &MessageId,
    ) -> Result<Option<Listed>, BrokerError> {
        let mut from = "-".to_owned();
        for _ in 0..SCAN_LIMIT / SCAN_PAGE {
            let reads = self.entries(topic, shard, &from, "+", SCAN_PAGE).await?;
            let Some(last) = reads.last().map(|read| read.attempt.entry) else {
                return Ok(None);
            };
            if let Some(read) = reads.into_iter().find(|read| read.id.as_ref() == Some(id)) {
                let entry = read.attempt.entry.to_string();
                let holder = self.pending(topic, shard, &entry, &entry, 1).await?.pop();
                let consumer = holder.map(|(_, consumer)| consumer);
                let state = if consumer.is_some() {
                    State::InFlight
                } else {
                    State::Ready
                };
                return Ok(listed(read, state).map(|listed| Listed { consumer, ..listed }));
            }
            from = format!("({last}");
        }
        Ok(None)
    }

    async fn entries(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        from: &str,
        to: &str,
        count: usize,
    ) -> Result<Vec<super::Read>, BrokerError> {
        let mut cmd = command("XRANGE", &topic.keys(shard).ready);
        cmd.arg(from).arg(to).arg("COUNT").arg(count);
        let wrong = |error| BrokerError::Reply {
            what: "XRANGE",
            error,
        };
        match self.inner.link.call(&cmd, self.inner.patience).await? {
            Value::Array(entries) => entries
                .iter()
                .map(|entry| parse_entry(entry).map_err(wrong))
                .collect(),
            other => Err(wrong(unexpected("entries", &other))),
        }
    }

    /// Pending entries and who holds them.
    async fn pending(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        from: &str,
        to: &str,
        count: usize,
    ) -> Result<Vec<(EntryId, String)>, BrokerError> {
        let mut cmd = command("XPENDING", &topic.keys(shard).ready);
        cmd.arg(topic.group().as_str()).arg(from).arg(to).arg(count);
        let reply = match self.inner.link.call(&cmd, self.inner.patience).await {
            Err(error) if error.kind == LinkErrorKind::NoGroup => return Ok(Vec::new()),
            reply => reply?,
        };
        let wrong = |got: &Value| BrokerError::Reply {
            what: "XPENDING",
            error: unexpected("pending entries", got),
        };
        let Value::Array(rows) = &reply else {
            return Err(wrong(&reply));
        };
        rows.iter()
            .map(|row| match row {
                Value::Array(fields) if fields.len() >= 2 => {
                    let entry = text(&fields[0]).ok().and_then(|entry| entry.parse().ok());
                    let consumer = text(&fields[1]).ok().map(str::to_owned);
                    entry.zip(consumer).ok_or_else(|| wrong(row))
                }
                other => Err(wrong(other)),
            })
            .collect()
    }

    /// The last entry that the group was given.
    async fn last_delivered(
        &self,
        topic: &TopicHandle,
        shard: Shard,
    ) -> Result<Option<EntryId>, BrokerError> {
        for group in self.info("GROUPS", topic, shard, None).await? {
            if group.get("name").map(String::as_str) == Some(topic.group().as_str()) {
                return Ok(group
                    .get("last-delivered-id")
                    .and_then(|entry| entry.parse().ok()));
            }
        }
        Ok(None)
    }

    /// The consumers of the group that hold nothing and did nothing for `idle`.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn idle_consumers(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        idle: Duration,
    ) -> Result<Vec<String>, BrokerError> {
        let consumers = self.consumers(topic, shard).await?;
        Ok(consumers
            .into_iter()
            .filter(|consumer| consumer.pending == 0 && consumer.idle > idle)
            .map(|consumer| consumer.name)
            .collect())
    }

    /// The consumers that the group has seen on a shard.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn consumers(
        &self,
        topic: &TopicHandle,
        shard: Shard,
    ) -> Result<Vec<ConsumerInfo>, BrokerError> {
        let group = Some(topic.group().as_str());
        let rows = self.info("CONSUMERS", topic, shard, group).await?;
        Ok(rows
            .into_iter()
            .filter_map(|mut row| {
                let number = |name| row.get(name)?.parse::<u64>().ok();
                let (pending, idle) = (number("pending")?, number("idle")?);
                Some(ConsumerInfo {
                    name: row.remove("name")?,
                    pending,
                    idle: Duration::from_millis(idle),
                })
            })
            .collect())
    }

    /// Reads XINFO as a list of texts by name.
    async fn info(
        &self,
        what: &str,
        topic: &TopicHandle,
        shard: Shard,
        group: Option<&str>,
    ) -> Result<Vec<std::collections::BTreeMap<String, String>>, BrokerError> {
        let mut cmd = redis::cmd("XINFO");
        cmd.arg(what).arg(topic.keys(shard).ready.as_ref());
        if let Some(group) = group {
            cmd.arg(group);
        }
        let reply = match self.inner.link.call(&cmd, self.inner.patience).await {
            // No stream, or no group.
            Err(error) if error.kind == LinkErrorKind::NoGroup => return Ok(Vec::new()),
            Err(error) if error.code.as_deref() == Some("ERR") => return Ok(Vec::new()),
            reply => reply?,
        };
        let Value::Array(rows) = reply else {
            return Ok(Vec::new());
        };
        let word = |value: &Value| match value {
            Value::Int(number) => number.to_string(),
            other => text(other).unwrap_or_default().to_owned(),
        };
        Ok(rows
            .into_iter()
            .map(|row| match super::registry::flat(row) {
                Value::Array(fields) => fields
                    .chunks_exact(2)
                    .map(|pair| (word(&pair[0]), word(&pair[1])))
                    .collect(),
                _ => std::collections::BTreeMap::new(),
            })
            .collect())
    }
}

fn listed(read: super::Read, state: State) -> Option<Listed> {
    Some(Listed {
        id: read.id?,
        state,
        time: read.attempt.due,
        attempt: read.attempt.number,
        consumer: None,
        last_error: None,
        dead: None,
    })
}
