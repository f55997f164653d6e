//! Counts the messages of a topic by state, and checks the sums that must hold.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::broker::counters::COUNTERS;
use crate::broker::declare_by_call::TOMB_BYTES;
use crate::broker::execute::Tries;
use crate::broker::shards::unless_gone;
use crate::broker::{Broker, BrokerError, Retirement, TopicHandle};
use crate::fields::Size;
use crate::scripts::{GroupCounts, Stats, StatsReply};
use crate::state::State;
use crate::time::{UnixMs, millis};
use crate::topic::{Group, Shard, Topic, TopicSettings};

/// The statistics of a topic, at one instant of each of its shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TopicStats {
    /// The topic.
    pub topic: Topic,
    /// True if it is paused.
    pub paused: bool,
    /// `plain`, or `general` if a message or a setting needs the general scripts on some shard.
    #[cfg_attr(feature = "openapi", schema(schema_with = classes))]
    pub class: Cow<'static, str>,
    /// The number of stored messages, including garbage (dead letters). Each counts once, for any number of groups.
    /// `max_messages` bounds it.
    pub stored: u64,
    /// Not yet due.
    pub waiting: u64,
    /// The number of ended ids that are remembered for the `dedup_window`. Each counts for 128 bytes in `max_bytes`.
    pub tombstones: u64,
    /// The time at which the next message is due.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub next_due: Option<UnixMs>,
    /// The age of the oldest message that is due and that no consumer holds, in ms: waiting, or the oldest of any group
    /// (consumer lag).
    pub overdue_ms: u64,
    /// The size of the stored records in bytes, if `max_bytes` bounds it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes: u64,
    /// True if a shard refuses sends: it has reached its part of `max_messages`, or its part of `max_bytes` has no room for a record of
    /// average size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub full: bool,
    /// The number of messages that are still on retiring shards while the topic is resharded. A message that is due
    /// counts once for each of its groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub migrating: Option<u64>,
    /// Its groups.
    pub groups: Vec<GroupStats>,
    /// The counters since the topic was declared. Those of a group are added to the topic's.
    pub counters: BTreeMap<String, i64>,
    /// The sum of the absolute differences of the two conservation laws over all shards. It must be 0.
    pub conservation_error: u64,
}

/// The statistics of a group, at one instant of each shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GroupStats {
    /// The group.
    pub group: Group,
    /// Due, held back: the window is full, the rate is used up, or it is paused.
    pub backlog: u64,
    /// Due, behind an earlier message of the same ordering key.
    pub parked: u64,
    /// On the stream, not yet read.
    pub ready: u64,
    /// Held by a consumer.
    pub in_flight: u64,
    /// Waiting for the next attempt.
    pub retry: u64,
    /// In garbage (dead letters).
    pub garbage: u64,
    /// Consumers that reported within the last 30 s.
    pub consumers: u64,
    /// The age of the oldest message that is due for the group and that no consumer holds, in ms since its due time. In
    /// the backlog, it covers the most and the least urgent priority; of parked messages, the first eight ordering keys.
    pub oldest_due_age_ms: u64,
    /// The age of the first ready message that no consumer has read, in ms since its due time.
    pub oldest_ready_age_ms: u64,
    /// True if it is paused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// `drain` or `drop` if the group is retiring: it gets nothing new and will be removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retiring: Option<Retirement>,
    /// True if it belongs to one running consumer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub instance: bool,
    /// True if the settings do not name it. It still gets every message. Always false for the group of an
    /// instance.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfigured: bool,
    /// True if messages are ready and no consumer has ever read one: the name of the group may be a mistake. Always
    /// false for the group of an instance.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never_read: bool,
}

impl TopicStats {
    /// Returns a lower bound of the number of messages that have no record: those that wait or that a group has, and that are not
    /// stored. It must be 0.
    #[must_use]
    pub fn missing_records(&self) -> u64 {
        let held = self.groups.iter().map(GroupStats::messages).max();
        let held = held.unwrap_or(0);
        (self.waiting + held).saturating_sub(self.stored)
    }

    /// Returns the number of messages that were counted as lost since the topic was declared, by a repair or because their
    /// records were gone. They are accounted for, but were not delivered. Each group counts those that it had, so this is a lower
    /// bound if several groups lost different ones.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let lost = self.counters.get("lost").copied().unwrap_or(0);
        u64::try_from(lost)
            .unwrap_or(0)
            .div_ceil(self.groups.len().max(1) as u64)
    }
}

#[cfg(feature = "openapi")]
fn classes() -> utoipa::openapi::schema::Object {
    crate::openapi::one_of(["plain", "general"])
}

/// A time as RFC 3339 text.
pub(super) mod text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::time::UnixMs;

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(in crate::broker) fn serialize<S: Serializer>(
        at: &Option<UnixMs>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(&at.unwrap_or_default())
    }

    pub(in crate::broker) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<UnixMs>, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Some).map_err(D::Error::custom)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Broker {
    /// Returns the topics whose settings were unreadable at the last [`Broker::refresh`], by name, each with the error.
    pub fn unreadable_topics(&self) -> BTreeMap<String, String> {
        self.inner.unreadable.lock().clone()
    }

    /// Counts a topic's messages by state. Each shard is seen at one instant.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn stats(&self, topic: &TopicHandle) -> Result<TopicStats, BrokerError> {
        Ok(self.stats_at(topic).await?.0)
    }

    /// Counts a topic's messages by state, and returns the time of the server of its first shard when that was counted.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn stats_at(&self, topic: &TopicHandle) -> Result<(TopicStats, UnixMs), BrokerError> {
        let mut stats = TopicStats {
            topic: topic.name().clone(),
            paused: false,
            class: Cow::Borrowed("plain"),
            stored: 0,
            waiting: 0,
            tombstones: 0,
            next_due: None,
            overdue_ms: 0,
            bytes: 0,
            full: false,
            migrating: None,
            groups: Vec::new(),
            counters: BTreeMap::new(),
            conservation_error: 0,
        };
        let (mut shards, mut read) = (Vec::new(), BTreeSet::new());
        let mut each = self.all_shards(topic);
        while let Some((topic, shard)) = each.next().await? {
            let counted = self.shard_stats(&topic, shard).await;
            // The counters of a shard that is gone are in those of the shards after it.
            if let Some(counted) = unless_gone(counted)? {
                let of_old = topic.is_retiring(shard);
                shards.push((shard, of_old, counted));
            }
        }
        let at = shards.first().map(|(_, _, (_, reply))| reply.now);
        let at = at.unwrap_or_else(|| self.now());
        // Retiring shards are read before those that their counters may have been merged into since.
        let is_merged = |shard: Shard| {
            let name = format!("merged_from_{shard}");
            shards
                .iter()
                .any(|(_, _, (_, reply))| reply.counters.contains_key(&name))
        };
        let counted = shards.iter().map(|(shard, ..)| !is_merged(*shard));
        let counted: Vec<bool> = counted.collect();
        let newest = self.known(topic.name());
        let settings = newest.as_deref().unwrap_or(topic).settings();
        for ((_, of_old, (names, mut reply)), is_counted) in shards.into_iter().zip(counted) {
            if of_old {
                *stats.migrating.get_or_insert(0) += reply.stored();
            } else {
                stats.full |= is_full(settings, &reply);
            }
            stats.conservation_error += conservation_error(&names, &reply);
            read.extend(
                names
                    .iter()
                    .filter(|group| was_read(group, &reply))
                    .cloned(),
            );
            if !is_counted {
                reply.counters.clear();
            }
            stats.add(&names, reply);
        }
        for group in &mut stats.groups {
            let is_named = settings.groups.contains(&group.group);
            group.unconfigured = !is_named && !group.group.is_of_instance();
            let is_held = group.in_flight + group.retry + group.garbage > 0;
            let waits = group.ready > 0 && group.consumers == 0 && !is_held;
            group.never_read = waits && !read.contains(&group.group) && !group.instance;
        }
        Ok((stats, at))
    }

    /// Counts a shard's messages. Learns of new or removed groups of the shard.
    async fn shard_stats(
        &self,
        topic: &TopicHandle,
        shard: Shard,
    ) -> Result<(Vec<Group>, StatsReply), BrokerError> {
        let mut tries = Tries::new(topic);
        loop {
            let handle = self.topic(topic.name()).await?;
            let groups = &handle.keys(shard)?.groups;
            let call = Stats {
                groups: groups.len(),
            };
            let refusal = match self.general_once(&handle, shard, None, &call).await? {
                Ok(reply) => {
                    let names = groups.iter().map(|group| group.name.clone()).collect();
                    return Ok((names, reply));
                }
                Err(refusal) => refusal,
            };
            self.recover(&mut tries, &handle, shard, refusal).await?;
        }
    }
}

impl TopicStats {
    fn add(&mut self, names: &[Group], shard: StatsReply) {
        self.paused |= shard.paused;
        if shard.general {
            self.class = Cow::Borrowed("general");
        }
        self.stored += shard.payloads;
        self.waiting += shard.waiting;
        self.tombstones += shard.tombstones;
        self.next_due = self.next_due.into_iter().chain(shard.next_due).min();
        let age = |due: Option<UnixMs>| due.map_or(0, |due| millis(shard.now.since(due)));
        self.overdue_ms = self.overdue_ms.max(age(shard.next_due));
        for (name, counts) in names.iter().zip(&shard.groups) {
            let group = match self
                .groups
                .iter_mut()
                .position(|known| known.group == *name)
            {
                Some(index) => &mut self.groups[index],
                None => {
                    self.groups.push(GroupStats::new(name));
                    let last = self.groups.len() - 1;
                    &mut self.groups[last]
                }
            };
            group.add(counts);
            let (due, ready) = (age(counts.oldest_due), age(counts.oldest_ready));
            group.oldest_due_age_ms = group.oldest_due_age_ms.max(due);
            group.oldest_ready_age_ms = group.oldest_ready_age_ms.max(ready);
            self.overdue_ms = self.overdue_ms.max(due);
        }
        for (name, value) in shard.counters {
            let count = value.parse().unwrap_or(0);
            let name = match name.split_once(':') {
                // What a group moved repeats what the topic moved. The others are not counts of this kind.
                Some(("moved" | "shifted" | "tat", _)) => continue,
                Some((name, _)) => name,
                None if matches!(
                    name.as_str(),
                    "last_time" | "alarm" | "seq" | "ranked" | "shifted"
                ) =>
                {
                    continue;
                }
                None if name.starts_with("merged_from_") => continue,
                None if name == "bytes" => {
                    self.bytes += u64::try_from(count).unwrap_or(0);
                    continue;
                }
                None => &name,
            };
            *self.counters.entry(name.to_owned()).or_default() += count;
        }
    }
}

impl GroupStats {
    /// Returns its messages by state.
    #[must_use]
    pub const fn by_state(&self) -> [(State, u64); 6] {
        [
            (State::Backlog, self.backlog),
            (State::Parked, self.parked),
            (State::Ready, self.ready),
            (State::InFlight, self.in_flight),
            (State::Retry, self.retry),
            (State::Garbage, self.garbage),
        ]
    }

    /// Returns the number of messages that it has.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.by_state().iter().map(|(_, count)| count).sum()
    }

    fn new(group: &Group) -> Self {
        Self {
            group: group.clone(),
            backlog: 0,
            parked: 0,
            ready: 0,
            in_flight: 0,
            retry: 0,
            garbage: 0,
            consumers: 0,
            oldest_due_age_ms: 0,
            oldest_ready_age_ms: 0,
            paused: false,
            retiring: None,
            instance: false,
            unconfigured: false,
            never_read: false,
        }
    }

    fn add(&mut self, counts: &GroupCounts) {
        self.backlog += counts.backlog;
        self.parked += counts.parked;
        self.ready += counts.stream.saturating_sub(counts.in_flight);
        self.in_flight += counts.in_flight;
        self.retry += counts.retry;
        self.garbage += counts.garbage;
        // Each consumer reads all shards.
        self.consumers = self.consumers.max(counts.consumers);
        self.paused |= counts.paused;
        self.retiring = self.retiring.or(counts.retiring);
        self.instance |= counts.instance;
    }
}

/// Returns true if a shard has no room for a message whose record has the average size of those that it stores. The extra bytes of
/// merged ids are not counted.
fn is_full(settings: &TopicSettings, shard: &StatsReply) -> bool {
    let bytes = shard.counters.get("bytes");
    let bytes: u64 = bytes.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    let record = (bytes / shard.payloads.max(1)).max(1);
    let needed = bytes + shard.tombstones * TOMB_BYTES + record;
    let (messages, most) = (settings.max_messages, settings.max_bytes.map(Size::get));
    messages.is_some_and(|most| shard.payloads >= settings.per_shard(most))
        || most.is_some_and(|most| needed > settings.per_shard(most))
}

/// Returns true if a consumer of a group has ended an attempt, or died during one.
fn was_read(group: &Group, shard: &StatsReply) -> bool {
    let mut traces = COUNTERS.iter().filter(|counter| counter.is_of_reader);
    traces.any(|trace| {
        let name = format!("{}:{group}", trace.name);
        shard.counters.contains_key(&name)
    })
}

/// Adds up the differences of both laws. For the topic: accepted = waiting + cancelled + merged + moved. For each group,
/// and for the removed groups together: moved = messages in any state of the group + messages that ended there. What
/// shifted from another shard to this one counts on the left.
fn conservation_error(names: &[Group], shard: &StatsReply) -> u64 {
    let count = |name: &str| -> i64 {
        let value = shard.counters.get(name);
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    };
    let stored = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let of_group = |group: &str, held: i64| {
        let ends = COUNTERS.iter().filter(|counter| counter.is_end);
        let ended: i64 = ends
            .map(|end| count(&format!("{}:{group}", end.name)))
            .sum();
        (count(&format!("moved:{group}")) + count(&format!("shifted:{group}")) - held - ended)
            .unsigned_abs()
    };
    let topic = count("accepted") + count("shifted")
        - stored(shard.waiting)
        - count("cancelled")
        - count("merged")
        - count("moved");
    let groups = names.iter().zip(&shard.groups).map(|(name, counts)| {
        let held = counts.stream + counts.backlog + counts.parked + counts.retry + counts.garbage;
        of_group(name.as_str(), stored(held))
    });
    topic.unsigned_abs() + groups.sum::<u64>() + of_group("-", 0)
}
