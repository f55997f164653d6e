//! Bounded reads for operators: a page of messages in one state, and the consumers of a group.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::{FromRedisValue, Value, from_redis_value};

use crate::broker::reply::{Pending, Seen, command, decode, or_empty, utf8};
use crate::broker::{Broker, BrokerError, Read, TopicHandle};
use crate::keys::{GroupKeys, GroupView, Key, ShardKeys};
use crate::message::{EntryId, MessageId};
use crate::redis::ConnectionErrorKind;
use crate::state::{GarbageReason, State};
use crate::time::UnixMs;
use crate::topic::{Group, Shard};

/// The number of entries read in one pipeline. Each is a command of a few microseconds.
const ENTRIES_AT_ONCE: usize = 200;

/// A row of XINFO.
type Row = BTreeMap<String, Value>;

/// One message in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its id.
    pub id: MessageId,
    /// Its state.
    pub state: State,
    /// The time at which it moved to garbage (garbage), its next attempt is due (retry), or it is due (any other state).
    /// `None` if its due time is on a stream entry too far behind to be read.
    pub time: Option<UnixMs>,
    /// The number of the running or next attempt; in garbage, the number of attempts made.
    pub attempt: u32,
    /// The consumer that holds it, if it is in flight.
    pub consumer: Option<String>,
    /// The last error, if it is not in garbage.
    pub last_error: Option<String>,
    /// The reason why it is in garbage, if it is.
    pub garbage: Option<GarbageInfo>,
}

/// The reason why a message is in garbage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GarbageInfo {
    /// The kind of reason.
    pub reason: GarbageReason,
    /// The number of attempts made.
    pub attempts: u32,
    /// The last error.
    pub error: String,
}

impl GarbageInfo {
    /// Parses `<reason> <attempts> <error>`.
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
    /// The number of deliveries that it holds.
    pub pending: u64,
    /// The time since it last asked for messages.
    pub idle: Duration,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The messages, in the order of their times within a shard.
    pub items: Vec<Listed>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<String>,
}

/// The start of a page: a shard, and an offset into a zset or an entry of a stream.
struct Cursor {
    shard: Shard,
    position: String,
}

impl Cursor {
    fn parse(text: Option<&str>, first: Shard) -> Option<Self> {
        let Some(text) = text else {
            return Some(Self {
                shard: first,
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

/// A zset of messages in one state, and the hash with their details.
#[derive(Clone, Copy)]
struct Zset<'k> {
    key: &'k Key,
    details: Option<&'k Key>,
}

impl<'k> Zset<'k> {
    /// Returns the zset of a state. `None` if the state is kept on a stream, or if it needs a group and there is none.
    fn of(state: State, shard: &'k ShardKeys, group: Option<GroupView<'k>>) -> Option<Self> {
        let of_group = |keys: fn(&'k GroupKeys) -> (&'k Key, &'k Key)| {
            let (key, details) = keys(group?.group);
            Some((key, Some(details)))
        };
        let (key, details) = match state {
            State::Waiting => (&shard.waiting, None),
            State::Backlog => of_group(|keys| (&keys.backlog, &keys.attempts))?,
            State::Parked => of_group(|keys| (&keys.parked, &keys.attempts))?,
            State::Retry => of_group(|keys| (&keys.retry, &keys.attempts))?,
            State::Garbage => of_group(|keys| (&keys.garbage, &keys.garbage_info))?,
            State::Ready | State::InFlight => return None,
        };
        Some(Self { key, details })
    }
}

impl Broker {
    /// Lists up to `limit` (at most 1000) messages of a group in one state, starting at the cursor of the previous page.
    /// Waiting messages are the same for all groups, so they need no group. In any other state, a list without a group
    /// is empty. Messages that move in the meantime may be missing or listed twice.
    ///
    /// # Errors
    /// [`BrokerError::Reply`] for a cursor that no page returned; other [`BrokerError`]s.
    pub async fn list<'g>(
        &self,
        topic: &TopicHandle,
        group: impl Into<Option<&'g Group>>,
        state: State,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page, BrokerError> {
        let group = group.into();
        let limit = limit.clamp(1, 1000);
        let wrong = || BrokerError::reply("cursor", "the cursor of a previous page", &cursor);
        let mut at = Cursor::parse(cursor, topic.first_shard()).ok_or_else(wrong)?;
        let mut items = Vec::new();
        // A shard that is gone since the previous page has migrated its messages to later ones.
        let mut shards = self.all_shards_from(topic, at.shard);
        while let Some((topic, shard)) = shards.next().await? {
            if shard != at.shard {
                let position = String::new();
                at = Cursor { shard, position };
            }
            let keys = topic.keys(shard)?;
            let of_group = group.map(|group| topic.group_keys(shard, group));
            let of_group = of_group.transpose()?;
            let left = limit - items.len();
            let position = match (Zset::of(state, keys, of_group), of_group) {
                (Some(zset), _) => {
                    let offset = if at.position.is_empty() {
                        Ok(0)
                    } else {
                        at.position.parse()
                    };
                    let offset = offset.map_err(|_| wrong())?;
                    self.list_zset(zset, state, offset, left, &mut items)
                        .await?
                }
                (None, Some(keys)) => {
                    let after = if at.position.is_empty() {
                        Ok(None)
                    } else {
                        at.position.parse().map(Some)
                    };
                    let after = after.map_err(|_| wrong())?;
                    self.list_stream(keys, state, after, left, &mut items)
                        .await?
                }
                (None, None) => None,
            };
            if let Some(position) = position {
                let next = Some(format!("{shard}:{position}"));
                return Ok(Page { items, next });
            }
        }
        Ok(Page { items, next: None })
    }

    /// Appends members of a zset. Returns the next offset if the page is full.
    async fn list_zset(
        &self,
        Zset { key: zset, details }: Zset<'_>,
        state: State,
        offset: usize,
        limit: usize,
        items: &mut Vec<Listed>,
    ) -> Result<Option<String>, BrokerError> {
        let range = command("ZRANGE", zset).arg(offset).arg(offset + limit - 1);
        let members = match state {
            State::Backlog | State::Parked => held_back(self.ask(range).await?)?,
            _ => self.ask_seen(range.arg("WITHSCORES")).await?,
        };
        let mut texts = Vec::new();
        if let (Some(details), false) = (details, members.is_empty()) {
            let fields = command("HMGET", details).ids(members.iter().map(|(id, _)| id));
            texts = self.ask::<Vec<Option<Vec<u8>>>>(fields).await?;
        }
        texts.resize(members.len(), None);
        let full = members.len() == limit;
        for ((id, time), text) in members.into_iter().zip(texts) {
            let text = text.and_then(utf8).unwrap_or_default();
            let garbage = GarbageInfo::parse(&text);
            // `<attempts> <crashes> <error>` of a message in retry.
            let mut parts = text.splitn(3, ' ');
            let made: u32 = parts.next().and_then(|n| n.parse().ok()).unwrap_or(0);
            let last_error = parts.nth(1).filter(|error| !error.is_empty());
            items.push(Listed {
                id,
                state,
                time: Some(time),
                attempt: garbage
                    .as_ref()
                    .map_or(made + 1, |garbage| garbage.attempts),
                consumer: None,
                last_error: last_error.filter(|_| garbage.is_none()).map(str::to_owned),
                garbage,
            });
        }
        Ok(full.then(|| (offset + limit).to_string()))
    }

    /// Appends entries of a stream. Returns the last entry read if the page is full.
    async fn list_stream(
        &self,
        keys: GroupView<'_>,
        state: State,
        after: Option<EntryId>,
        limit: usize,
        items: &mut Vec<Listed>,
    ) -> Result<Option<String>, BrokerError> {
        let (ready, group) = (&keys.group.ready, &keys.group.name);
        let from = after.map_or("-".to_owned(), |entry| format!("({entry}"));
        if state == State::InFlight {
            let pending = self.pending(ready, group, &from, "+", limit).await?;
            for chunk in pending.chunks(ENTRIES_AT_ONCE) {
                let entries: Vec<EntryId> = chunk.iter().map(|(entry, _)| *entry).collect();
                let reads = self.entries_at(ready, &entries).await?;
                for ((_, consumer), read) in chunk.iter().zip(reads) {
                    let listed = read.and_then(|read| listed(read, State::InFlight));
                    items.extend(listed.map(|listed| Listed {
                        consumer: Some(consumer.clone()),
                        ..listed
                    }));
                }
            }
            let last = pending.last().map(|(entry, _)| entry.to_string());
            return Ok(last.filter(|_| pending.len() == limit));
        }
        let from = match after {
            Some(_) => from,
            None => match self.last_delivered(ready, group).await? {
                Some(entry) => format!("({entry}"),
                None => from,
            },
        };
        let found = self.entries(ready, &from, "+", limit).await?;
        let last = found.last().map(|read| read.attempt.entry.to_string());
        let full = found.len() == limit;
        items.extend(
            found
                .into_iter()
                .filter_map(|read| listed(read, State::Ready)),
        );
        Ok(last.filter(|_| full))
    }

    pub(super) async fn entries(
        &self,
        ready: &Key,
        from: &str,
        to: &str,
        count: usize,
    ) -> Result<Vec<Read>, BrokerError> {
        let range = command("XRANGE", ready).arg(&[from, to, "COUNT"]);
        self.ask(range.arg(count)).await
    }

    /// Reads entries in one write; `None` for one that is gone.
    pub(super) async fn entries_at(
        &self,
        ready: &Key,
        entries: &[EntryId],
    ) -> Result<Vec<Option<Read>>, BrokerError> {
        let range = |entry: &EntryId| {
            let entry = entry.to_string();
            command("XRANGE", ready).arg(&[&entry, &entry])
        };
        let server = self.inner.connection.at(ready);
        let ranges = entries.iter().map(range).collect();
        let found: Vec<Vec<Read>> = self.ask_all(&server, ranges).await?;
        Ok(found.into_iter().map(|mut reads| reads.pop()).collect())
    }

    /// Lists pending entries, each with the consumer that holds it.
    pub(super) async fn pending(
        &self,
        ready: &Key,
        group: &Group,
        from: &str,
        to: &str,
        count: usize,
    ) -> Result<Vec<(EntryId, String)>, BrokerError> {
        let range = command("XPENDING", ready).arg(&[group.as_str(), from, to]);
        let pending: Vec<Pending<String>> = or_empty(self.ask(range.arg(count)).await)?;
        let pending = pending.into_iter();
        Ok(pending
            .map(|(entry, consumer, ..)| (entry, consumer))
            .collect())
    }

    /// Returns the last entry that was delivered to the group.
    pub(super) async fn last_delivered(
        &self,
        ready: &Key,
        group: &Group,
    ) -> Result<Option<EntryId>, BrokerError> {
        for mut row in self.info("GROUPS", ready, None).await? {
            if field::<String>(&mut row, "name").as_deref() == Some(group.as_str()) {
                return Ok(field(&mut row, "last-delivered-id"));
            }
        }
        Ok(None)
    }

    /// Lists the consumers of a group that hold nothing on a shard and have been idle for longer than `idle`.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn idle_consumers(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        idle: Duration,
    ) -> Result<Vec<String>, BrokerError> {
        let consumers = self.consumers(topic, shard, group).await?;
        Ok(consumers
            .into_iter()
            .filter(|consumer| consumer.pending == 0 && consumer.idle > idle)
            .map(|consumer| consumer.name)
            .collect())
    }

    /// Lists the consumers that a group has seen on a shard.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn consumers(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
    ) -> Result<Vec<ConsumerInfo>, BrokerError> {
        let ready = &topic.group_keys(shard, group)?.group.ready;
        let rows = self.info("CONSUMERS", ready, Some(group)).await?;
        Ok(rows
            .into_iter()
            .filter_map(|mut row| {
                Some(ConsumerInfo {
                    name: field(&mut row, "name")?,
                    pending: field(&mut row, "pending")?,
                    idle: Duration::from_millis(field(&mut row, "idle")?),
                })
            })
            .collect())
    }

    /// Reads XINFO as rows of fields by name.
    async fn info(
        &self,
        what: &str,
        ready: &Key,
        group: Option<&Group>,
    ) -> Result<Vec<Row>, BrokerError> {
        let mut cmd = redis::cmd("XINFO");
        cmd.arg(what).arg(ready.as_ref());
        cmd.arg(group.map(Group::as_str));
        match self.call(ready, &cmd).await {
            // The stream or the group does not exist.
            Err(error) if error.kind == ConnectionErrorKind::NoGroup => Ok(Vec::new()),
            Err(error) if error.code.as_deref() == Some("ERR") => Ok(Vec::new()),
            reply => decode("XINFO", reply?),
        }
    }
}

/// Takes a field out of a row; `None` if it is missing or of another type.
fn field<T: FromRedisValue>(row: &mut Row, name: &str) -> Option<T> {
    from_redis_value(row.remove(name)?).ok()
}

/// Parses members of a backlog or a parked set, which end with `<14 digits of due time><12 of arrival><id>`.
fn held_back(members: Vec<String>) -> Result<Vec<Seen>, BrokerError> {
    const DIGITS: usize = 26;
    let read = |member: &str| {
        let member = member.rsplit('\0').next()?;
        let due = member.get(..14)?.parse().ok()?;
        Some((member.get(DIGITS..)?.parse().ok()?, UnixMs::new(due)))
    };
    let wrong = |member| BrokerError::reply("ZRANGE", "a message that is held back", member);
    let members = members.iter();
    members
        .map(|member| read(member).ok_or_else(|| wrong(member)))
        .collect()
}

pub(super) fn listed(read: Read, state: State) -> Option<Listed> {
    Some(Listed {
        id: read.id?,
        state,
        time: Some(read.attempt.due),
        attempt: read.attempt.number,
        consumer: None,
        last_error: None,
        garbage: None,
    })
}
