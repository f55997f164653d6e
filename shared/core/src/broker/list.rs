//! Bounded reads for operators: a page of messages in one state, and the consumers of a group.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use redis::{FromRedisValue, Value, from_redis_value};

use crate::broker::attempts::error_in;
use crate::broker::cursor::{Offset, TimedMember};
use crate::broker::pull::granted_by;
use crate::broker::reply::{Pending, Seen, command, decode, id_in, or_empty, utf8};
use crate::broker::{
    After, Broker, BrokerError, Cursor, EntryPosition, InvalidCursor, ListedMessage, Read,
    TopicHandle,
};
use crate::keys::{GroupKeys, GroupView, Key, KeyScope};
use crate::message::{EntryId, MessageId};
use crate::redis::ConnectionErrorKind;
use crate::scripts::{self, Operation, PageItem, PageOfGarbage, PageOfRetry, PageOfWaiting};
use crate::state::{GarbageReason, State};
use crate::time::UnixMs;
use crate::topic::{Group, Shard};

/// The number of messages of a page that one call reads, in up to 0.8 ms of Redis's time.
const MESSAGES_AT_ONCE: usize = 200;
/// The number of entries read in one pipeline. Each is a command of a few microseconds.
const ENTRIES_AT_ONCE: usize = 200;

/// The end of all times: 2^53, up to which scores are exact.
pub(super) const NEVER: UnixMs = UnixMs::new(1 << 53);

/// A row of XINFO.
type Row = BTreeMap<String, Value>;

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
    /// Parses `<reason> <attempts> <error>`, without the last attempts behind it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = error_in(text).splitn(3, ' ');
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
    pub items: Vec<ListedMessage>,
    /// The cursor of the next page; `None` at the end.
    pub next: Option<String>,
}

/// The times of the messages to list, and their order. By default all, the oldest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeRange {
    /// The least time.
    pub from: Option<UnixMs>,
    /// The end of the times, exclusive.
    pub to: Option<UnixMs>,
    /// True for the newest first.
    pub newest_first: bool,
}

impl TimeRange {
    /// Returns true if messages of a state can be listed in this range and order. Only waiting messages, those in retry and
    /// garbage are stored in the order of their times; others are listed completely, in the order of delivery.
    #[must_use]
    pub fn fits(&self, state: State) -> bool {
        let is_by_time = matches!(state, State::Waiting | State::Retry | State::Garbage);
        is_by_time || *self == Self::default()
    }
}

impl Cursor<String> {
    /// Returns the position in its shard; `None` at the start.
    fn position<T: FromStr>(&self) -> Result<Option<T>, InvalidCursor> {
        let After(last) = self.position.parse()?;
        Ok(last)
    }

    /// Returns the page of messages in the order of their times that starts here.
    fn by_time(&self, range: TimeRange, limit: usize) -> Result<scripts::Page, InvalidCursor> {
        let after = self.position()?;
        Ok(scripts::Page {
            from: range.from.unwrap_or_default(),
            to: range.to.unwrap_or(NEVER),
            newest_first: range.newest_first,
            limit,
            after: after.map(|TimedMember(time, member)| (time, member)),
        })
    }
}

/// A zset of messages that are held back, and the hash with their details.
#[derive(Clone, Copy)]
struct HeldBack<'k> {
    key: &'k Key,
    details: &'k Key,
}

impl Broker {
    /// Lists up to `limit` (at most 1000) messages of a group in one state, starting at the cursor of the previous page.
    /// Waiting messages are the same for all groups, so they need no group. In any other state, a list without a group
    /// is empty. Messages that move in the meantime may be missing or listed twice.
    ///
    /// # Errors
    /// [`BrokerError::Cursor`] for a cursor that no page returned; other [`BrokerError`]s.
    pub async fn list<'g>(
        &self,
        topic: &TopicHandle,
        group: impl Into<Option<&'g Group>>,
        state: State,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page, BrokerError> {
        let all = TimeRange::default();
        self.list_within(topic, group, state, all, cursor, limit)
            .await
    }

    /// Lists messages like [`Broker::list`], those of a range of times or the newest first. The range must be that of the
    /// previous page. A state that the range does not [fit](TimeRange::fits) is listed completely.
    ///
    /// A page of waiting messages, or of those in retry or garbage, begins behind the last message of the previous one,
    /// even if messages have come or left in the meantime. It takes a script call for each shard and 200 messages, and a read of
    /// their ordering keys.
    ///
    /// # Errors
    /// [`BrokerError::Cursor`] for a cursor that no page returned; other [`BrokerError`]s.
    pub async fn list_within<'g>(
        &self,
        topic: &TopicHandle,
        group: impl Into<Option<&'g Group>>,
        state: State,
        range: TimeRange,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Page, BrokerError> {
        let group = group.into();
        let limit = limit.clamp(1, 1000);
        let mut at = match cursor {
            Some(cursor) => cursor.parse()?,
            None => Cursor {
                position: String::new(),
                shard: topic.first_shard(),
            },
        };
        let mut items = Vec::new();
        // A shard that is gone since the previous page has migrated its messages to later ones.
        let mut shards = self.all_shards_from(topic, at.shard);
        while let Some((topic, shard)) = shards.next().await? {
            if shard != at.shard {
                let position = String::new();
                at = Cursor { position, shard };
            }
            let keys = topic.keys(shard)?;
            let of_group = group.map(|group| topic.group_keys(shard, group));
            let of_group = of_group.transpose()?;
            let listed = items.len();
            let left = limit - listed;
            let position = match (state, of_group) {
                (State::Waiting, _) => {
                    let page = at.by_time(range, left)?;
                    let found = self.read_page(keys, page, PageOfWaiting).await?;
                    list_by_time(found, state, left, &mut items)?
                }
                (_, None) => None,
                (State::Retry, Some(keys)) => {
                    let page = at.by_time(range, left)?;
                    let found = self.read_page(&keys, page, PageOfRetry).await?;
                    list_by_time(found, state, left, &mut items)?
                }
                (State::Garbage, Some(keys)) => {
                    let page = at.by_time(range, left)?;
                    let found = self.read_page(&keys, page, PageOfGarbage).await?;
                    list_by_time(found, state, left, &mut items)?
                }
                (State::Backlog | State::Parked, Some(keys)) => {
                    let GroupKeys {
                        backlog,
                        parked,
                        attempts: details,
                        ..
                    } = keys.group;
                    let key = if state == State::Backlog {
                        backlog
                    } else {
                        parked
                    };
                    let Offset(offset) = at.position()?.unwrap_or(Offset(0));
                    self.list_held_back(HeldBack { key, details }, state, offset, left, &mut items)
                        .await?
                }
                (State::Ready | State::InFlight, Some(keys)) => {
                    let after: Option<EntryPosition> = at.position()?;
                    let after = after.map(|EntryPosition(entry)| entry);
                    self.list_stream(keys, state, after, left, &mut items)
                        .await?
                }
            };
            self.add_keys(&topic, shard, &mut items[listed..]).await?;
            if let Some(position) = position {
                let next = Some(format!("{shard}:{position}"));
                return Ok(Page { items, next });
            }
        }
        Ok(Page { items, next: None })
    }

    /// Reads a page of any length, up to [`MESSAGES_AT_ONCE`] messages in one call of the script that `call` makes.
    pub(super) async fn read_page<'k, O>(
        &self,
        on: &'k <O::Scope as KeyScope>::Keys<'k>,
        mut page: scripts::Page,
        call: fn(scripts::Page) -> O,
    ) -> Result<Vec<PageItem>, BrokerError>
    where
        O: Operation<Reply = Vec<PageItem>>,
    {
        let refused = |refusal| BrokerError::reply("page", "no refusal", &refusal);
        let mut left = page.limit;
        let mut found: Vec<PageItem> = Vec::new();
        while left > 0 {
            page.limit = left.min(MESSAGES_AT_ONCE);
            let more = self.run(on, &call(page.clone())).await?.map_err(refused)?;
            left -= more.len().min(left);
            if more.len() < page.limit {
                left = 0;
            }
            found.extend(more);
            page.after = found.last().map(|last| (last.time, last.member.clone()));
        }
        Ok(found)
    }

    /// Adds their ordering keys to messages of a shard.
    async fn add_keys(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        items: &mut [ListedMessage],
    ) -> Result<(), BrokerError> {
        for chunk in items.chunks_mut(MESSAGES_AT_ONCE) {
            let ids: Vec<MessageId> = chunk.iter().map(|item| item.id.clone()).collect();
            let keys = self.readable_ordering_keys(topic, shard, &ids).await?;
            for (item, key) in chunk.iter_mut().zip(keys) {
                item.key = key;
            }
        }
        Ok(())
    }

    /// Appends members of a backlog or of parked messages. Returns the next offset if the page is full.
    async fn list_held_back(
        &self,
        HeldBack { key, details }: HeldBack<'_>,
        state: State,
        offset: usize,
        limit: usize,
        items: &mut Vec<ListedMessage>,
    ) -> Result<Option<String>, BrokerError> {
        let end = offset.saturating_add(limit);
        let range = command("ZRANGE", key).arg(offset).arg(end - 1);
        let members = held_back(self.ask(range).await?)?;
        let mut texts = Vec::new();
        if !members.is_empty() {
            let fields = command("HMGET", details).ids(members.iter().map(|(id, _)| id));
            texts = self.ask::<Vec<Option<Vec<u8>>>>(fields).await?;
        }
        texts.resize(members.len(), None);
        let full = members.len() == limit;
        for ((id, time), text) in members.into_iter().zip(texts) {
            let text = text.and_then(utf8).unwrap_or_default();
            items.push(of_zset(id, state, time, &text));
        }
        Ok(full.then(|| end.to_string()))
    }

    /// Appends entries of a stream. Returns the last entry read if the page is full.
    async fn list_stream(
        &self,
        keys: GroupView<'_>,
        state: State,
        after: Option<EntryId>,
        limit: usize,
        items: &mut Vec<ListedMessage>,
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
                    items.extend(listed.map(|listed| ListedMessage {
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

    /// Lists pending entries, each with the consumer that read it, or the process that granted its lease.
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
            .map(|(entry, holder, ..)| (entry, granted_by(&holder).to_owned()))
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

/// Appends the messages of a page. Returns the position behind the last one if the page is full.
pub(super) fn list_by_time(
    found: Vec<PageItem>,
    state: State,
    limit: usize,
    items: &mut Vec<ListedMessage>,
) -> Result<Option<String>, BrokerError> {
    let last = found
        .last()
        .map(|last| format!("{}:{}", last.time.get(), last.member));
    let is_full = found.len() == limit;
    for PageItem { member, time, text } in found {
        let id = id_in(&member).parse();
        let id = id.map_err(|_| BrokerError::reply("page", "a message", &member))?;
        items.push(of_zset(id, state, time, &text));
    }
    Ok(last.filter(|_| is_full))
}

/// Returns a message of a zset. Its text is that of `garbage_info` in garbage, and of `attempts` in any other state.
fn of_zset(id: MessageId, state: State, time: UnixMs, text: &str) -> ListedMessage {
    if state == State::Garbage {
        return ListedMessage::in_garbage(id, Some(time), text);
    }
    // `<attempts> <crashes> <error>` of a message in retry.
    let mut parts = error_in(text).splitn(3, ' ');
    let made: u32 = parts.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let error = parts.nth(1).filter(|error| !error.is_empty());
    ListedMessage {
        error: error.map(str::to_owned),
        ..ListedMessage::new(id, state, Some(time), made + 1)
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

pub(super) fn listed(read: Read, state: State) -> Option<ListedMessage> {
    let (due, attempt) = (read.attempt.due, read.attempt.number);
    Some(ListedMessage::new(read.id?, state, Some(due), attempt))
}
