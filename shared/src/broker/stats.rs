//! How many messages of a topic are where, and the sums that must hold.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Broker, BrokerError, TopicHandle};
use crate::scripts::{Stats, StatsReply};
use crate::time::UnixMs;
use crate::topic::{Group, Shard, Topic};

/// A topic at one instant of each of its shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopicStats {
    /// The topic.
    pub topic: Topic,
    /// Whether it is paused.
    pub paused: bool,
    /// Stored, not yet due.
    pub waiting: u64,
    /// When the next message is due, in ms since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_due: Option<UnixMs>,
    /// How far behind its due time the topic is now, in ms: what is due and not yet moved.
    pub overdue_ms: u64,
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
}

impl Broker {
    /// Counts a topic's messages by state. Each shard is seen at one instant.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn stats(&self, topic: &TopicHandle) -> Result<TopicStats, BrokerError> {
        let mut stats = TopicStats {
            topic: topic.name().clone(),
            paused: false,
            waiting: 0,
            next_due: None,
            overdue_ms: 0,
            groups: vec![GroupStats {
                group: topic.groups()[0].clone(),
                backlog: 0,
                parked: 0,
                ready: 0,
                in_flight: 0,
                retry: 0,
                garbage: 0,
            }],
            counters: BTreeMap::new(),
            conservation_error: 0,
        };
        for shard in topic.shards() {
            let reply = self.shard_stats(topic, shard).await?;
            stats.add(reply);
        }
        Ok(stats)
    }

    async fn shard_stats(
        &self,
        topic: &TopicHandle,
        shard: Shard,
    ) -> Result<StatsReply, BrokerError> {
        let (group, keys) = topic.first_group(shard);
        let call = Stats {
            now: self.virtual_now(),
            group,
        };
        self.run_declared(topic, &keys, &call).await
    }
}

impl TopicStats {
    fn add(&mut self, shard: StatsReply) {
        let group = &mut self.groups[0];
        self.conservation_error += conservation_error(&shard, &group.group);
        self.paused |= shard.paused;
        self.waiting += shard.waiting;
        self.next_due = self.next_due.into_iter().chain(shard.next_due).min();
        if let Some(due) = shard.next_due {
            let overdue = crate::time::millis(shard.now.since(due));
            self.overdue_ms = self.overdue_ms.max(overdue);
        }
        group.ready += shard.stream.saturating_sub(shard.in_flight);
        group.in_flight += shard.in_flight;
        group.retry += shard.retry;
        group.garbage += shard.garbage;
        for (name, count) in shard.counters {
            let name = match name.split_once(':') {
                // What a group moved is what the topic moved, once more.
                Some(("moved", _)) => continue,
                Some((name, _)) => name,
                None if matches!(name.as_str(), "last_time" | "alarm") => continue,
                None => &name,
            };
            *self.counters.entry(name.to_owned()).or_default() += count;
        }
    }
}

/// Adds up both laws: accepted = waiting + cancelled + moved, for the topic;
/// moved = ready + in flight + retry + garbage + acked + cancelled + purged + lost, for the group.
fn conservation_error(shard: &StatsReply, group: &Group) -> u64 {
    let count = |name: &str| shard.counters.get(name).copied().unwrap_or(0);
    let of_group = |name: &str| count(&format!("{name}:{group}"));
    let stored = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let topic = count("accepted") - stored(shard.waiting) - count("cancelled") - count("moved");
    let group = of_group("moved")
        - stored(shard.stream)
        - stored(shard.retry)
        - stored(shard.garbage)
        - of_group("acked")
        - of_group("cancelled")
        - of_group("purged")
        - of_group("lost");
    topic.unsigned_abs() + group.unsigned_abs()
}
