//! How many messages of a topic are where, and the sums that must hold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

use serde::Serialize;

use super::each_shard::unless_gone;
use super::run::Tries;
use super::{Broker, BrokerError, Retirement, TopicHandle};
use crate::scripts::{GroupCounts, Stats, StatsReply};
use crate::time::{UnixMs, millis};
use crate::topic::{Group, Shard, Topic};

/// A topic at one instant of each of its shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopicStats {
    /// The topic.
    pub topic: Topic,
    /// Whether it is paused.
    pub paused: bool,
    /// `plain`, or `full` if a message or a setting needs the general scripts on some shard.
    pub class: &'static str,
    /// Stored messages, those in garbage too; each counts once, however many groups owe it. What `max_messages` bounds.
    pub stored: u64,
    /// Stored, not yet due.
    pub waiting: u64,
    /// Ended ids that are remembered for the `dedup_window`; 128 bytes of each count in `max_bytes`.
    pub tombstones: u64,
    /// When the next message is due, in ms since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_due: Option<UnixMs>,
    /// The age of the oldest message that is due and that no consumer holds, in ms: waiting, or the oldest of any group.
    pub overdue_ms: u64,
    /// What the stored records take, in bytes, where `max_bytes` bounds that.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes: u64,
    /// While the topic is resharded: how many messages its old shards still have, one for each group that they are due
    /// for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaving: Option<u64>,
    /// Its groups.
    pub groups: Vec<GroupStats>,
    /// What happened since the topic was declared; a group's counts are added to the topic's.
    pub counters: BTreeMap<String, i64>,
    /// The sum of the absolute differences of the two conservation laws over all shards; 0.
    pub conservation_error: u64,
}

/// A group at one instant of each shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupStats {
    /// The group.
    pub group: Group,
    /// Due, held back for the group.
    pub backlog: u64,
    /// Due, behind an earlier message of the same ordering key.
    pub parked: u64,
    /// On the stream, not yet read.
    pub ready: u64,
    /// Held by a consumer.
    pub in_flight: u64,
    /// Waiting for the next attempt.
    pub retry: u64,
    /// Given up.
    pub garbage: u64,
    /// Consumers that reported within the last 30 s.
    pub consumers: u64,
    /// The age of the oldest message that is due for the group and that no consumer holds, in ms since its due time. Of what is
    /// held back it knows the most and the least urgent priority, of what is parked the first eight ordering keys.
    pub oldest_due_age_ms: u64,
    /// The age of the first message that is ready and that no consumer has read, in ms since its due time.
    pub oldest_ready_age_ms: u64,
    /// Whether it is paused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// `drain` or `drop`, if it gets nothing new and goes away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retiring: Option<&'static str>,
    /// Whether it belongs to one running consumer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub instance: bool,
    /// Whether the settings do not name it: it gets every message all the same. Never so of an instance's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unconfigured: bool,
    /// Whether messages are ready and no consumer has ever read one: the group may have been named by mistake. Never so of an
    /// instance's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub never_read: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Broker {
    /// Gives the topics whose settings could not be read at the last [`Broker::refresh`], by name, and why.
    pub fn unreadable_topics(&self) -> BTreeMap<String, String> {
        self.inner
            .unreadable
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Counts a topic's messages by state. Each shard is seen at one instant.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn stats(&self, topic: &TopicHandle) -> Result<TopicStats, BrokerError> {
        let mut stats = TopicStats {
            topic: topic.name().clone(),
            paused: false,
            class: "plain",
            stored: 0,
            waiting: 0,
            tombstones: 0,
            next_due: None,
            overdue_ms: 0,
            bytes: 0,
            leaving: None,
            groups: Vec::new(),
            counters: BTreeMap::new(),
            conservation_error: 0,
        };
        let (mut shards, mut read) = (Vec::new(), BTreeSet::new());
        let mut each = self.each_shard(topic);
        while let Some((topic, shard)) = each.next().await? {
            let counted = self.shard_stats(&topic, shard).await;
            // What one counted that is gone, others have counted that come after it.
            if let Some(counted) = unless_gone(counted)? {
                let of_old = topic.is_leaving(shard);
                shards.push((shard, of_old, counted));
            }
        }
        // Shards that are given up are read before those that may have taken over their counters since.
        let adopted = |shard: Shard| {
            let name = format!("adopted_{shard}");
            shards
                .iter()
                .any(|(_, _, (_, reply))| reply.counters.contains_key(&name))
        };
        let counted = shards.iter().map(|(shard, ..)| !adopted(*shard));
        let counted: Vec<bool> = counted.collect();
        for ((_, of_old, (names, mut reply)), is_counted) in shards.into_iter().zip(counted) {
            if of_old {
                *stats.leaving.get_or_insert(0) += reply.stored();
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
        let newest = self.known(topic.name());
        let settings = newest.as_deref().unwrap_or(topic).settings();
        for group in &mut stats.groups {
            let is_named = settings.groups.contains(&group.group);
            group.unconfigured = !is_named && !group.group.is_of_instance();
            let is_held = group.in_flight + group.retry + group.garbage > 0;
            let waits = group.ready > 0 && group.consumers == 0 && !is_held;
            group.never_read = waits && !read.contains(&group.group) && !group.instance;
        }
        Ok(stats)
    }

    /// Counts a shard's messages; the groups that it has are learnt on the way.
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
        if shard.full {
            self.class = "full";
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
                // What a group moved is what the topic moved, once more; the other is no count.
                Some(("moved" | "shifted" | "tat", _)) => continue,
                Some((name, _)) => name,
                None if matches!(
                    name.as_str(),
                    "last_time" | "alarm" | "seq" | "ranked" | "shifted"
                ) =>
                {
                    continue;
                }
                None if name.starts_with("adopted_") => continue,
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
        self.retiring = self.retiring.or(counts.retiring.map(Retirement::as_str));
        self.instance |= counts.instance;
    }
}

/// Whether a consumer of a group has ended an attempt, or died with one.
fn was_read(group: &Group, shard: &StatsReply) -> bool {
    const TRACES: [&str; 6] = [
        "acked",
        "retried",
        "deferred",
        "rejected",
        "exhausted",
        "reclaimed",
    ];
    TRACES
        .iter()
        .any(|trace| shard.counters.contains_key(&format!("{trace}:{group}")))
}

/// Adds up both laws: accepted = waiting + cancelled + merged + moved, for the topic;
/// moved = what is in the group's places + what ended there, for each group and for those that are gone. What shifted
/// from another shard to this one stands on the left.
fn conservation_error(names: &[Group], shard: &StatsReply) -> u64 {
    const ENDS: [&str; 6] = ["acked", "cancelled", "expired", "purged", "lost", "dropped"];
    let count = |name: &str| -> i64 {
        let value = shard.counters.get(name);
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    };
    let stored = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let of_group = |group: &str, places: i64| {
        let ended: i64 = ENDS
            .iter()
            .map(|end| count(&format!("{end}:{group}")))
            .sum();
        (count(&format!("moved:{group}")) + count(&format!("shifted:{group}")) - places - ended)
            .unsigned_abs()
    };
    let topic = count("accepted") + count("shifted")
        - stored(shard.waiting)
        - count("cancelled")
        - count("merged")
        - count("moved");
    let groups = names.iter().zip(&shard.groups).map(|(name, counts)| {
        let places = counts.stream + counts.backlog + counts.parked + counts.retry + counts.garbage;
        of_group(name.as_str(), stored(places))
    });
    topic.unsigned_abs() + groups.sum::<u64>() + of_group("-", 0)
}
