//! The forecast of a topic: the number of messages that become due before each of some instants.

use std::collections::BTreeMap;

use crate::broker::reply::{Command, command};
use crate::broker::shards::of_each;
use crate::broker::{Broker, BrokerError, TopicHandle};
use crate::keys::Key;
use crate::time::UnixMs;
use crate::topic::{Group, Shard};

/// The number of counts in one write. In a zset of millions, Redis answers that within about 0.4 ms even if nothing of it is
/// in the caches of the processor.
const AT_ONCE: usize = 20;

/// The number of shards that are counted. If there are more, the others are estimated.
const MAX_SHARDS: usize = 64;

/// The number of zsets that are counted on all shards together: one of the topic and one of each group for each shard.
const MAX_SETS: usize = 256;

/// The number of messages that become due before each of some instants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Waiting messages. Each counts once, for any number of groups.
    pub waiting: DueBefore,
    /// The messages of each group that wait for their next attempt.
    pub retry: BTreeMap<Group, DueBefore>,
    /// True if only some of the shards were counted, and the others estimated from those.
    pub is_estimate: bool,
    /// True if the topic is paused: its messages become due, but are not delivered until it is resumed.
    pub is_paused: bool,
}

/// A number of messages, and how many of them are due before each instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueBefore {
    /// The number of messages due before each instant, in order.
    pub counts: Vec<u64>,
    /// The number of all messages.
    pub total: u64,
}

impl DueBefore {
    fn zero(instants: usize) -> Self {
        Self {
            counts: vec![0; instants],
            total: 0,
        }
    }

    fn add(&mut self, other: &Self) {
        for (count, other) in self.counts.iter_mut().zip(&other.counts) {
            *count += other;
        }
        self.total += other.total;
    }

    fn scale(&mut self, by: usize, of: usize) {
        let scaled = |count: u64| {
            let scaled = u128::from(count) * by as u128 / of as u128;
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        self.total = scaled(self.total);
        for count in &mut self.counts {
            *count = scaled(*count);
        }
    }
}

impl Broker {
    /// Counts the messages of a topic that become due before each of `instants`, which must be in order. The counts of a
    /// shard are not of one moment.
    ///
    /// Takes one count for each instant and each zset that is not empty, 20 in one write, on at most 64 shards and 256
    /// zsets, and a read of each of these shards whether it is paused. If there are more, evenly chosen shards are counted,
    /// and the result is an estimate.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn forecast(
        &self,
        topic: &TopicHandle,
        instants: &[UnixMs],
    ) -> Result<Forecast, BrokerError> {
        let handle = self.topic(topic.name()).await?;
        let all: Vec<Shard> = handle.shards().collect();
        let most = MAX_SHARDS
            .min(MAX_SETS / (1 + handle.groups().len()))
            .max(1);
        let chosen = choose(&all, most);
        let counts: Vec<_> = chosen
            .iter()
            .map(|shard| self.forecast_of_shard(&handle, *shard, instants))
            .collect();
        let counts = of_each(counts).await?;
        let mut forecast = Forecast {
            waiting: DueBefore::zero(instants.len()),
            retry: BTreeMap::new(),
            is_estimate: chosen.len() < all.len(),
            is_paused: false,
        };
        let zero = || DueBefore::zero(instants.len());
        for (waiting, retry, is_paused) in counts {
            forecast.is_paused |= is_paused;
            forecast.waiting.add(&waiting);
            for (group, due) in retry {
                forecast.retry.entry(group).or_insert_with(zero).add(&due);
            }
        }
        if forecast.is_estimate {
            let (by, of) = (all.len(), chosen.len());
            forecast.waiting.scale(by, of);
            for due in forecast.retry.values_mut() {
                due.scale(by, of);
            }
        }
        Ok(forecast)
    }

    /// Counts the waiting messages of a topic that become due before each of `instants`, 20 at most. Takes one count for each
    /// instant and shard, on at most 64 shards. If there are more, the result is an estimate.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn waiting_before(
        &self,
        topic: &TopicHandle,
        instants: &[UnixMs],
    ) -> Result<Vec<u64>, BrokerError> {
        let handle = self.topic(topic.name()).await?;
        let all: Vec<Shard> = handle.shards().collect();
        let chosen = choose(&all, MAX_SHARDS);
        let mut waiting = DueBefore::zero(instants.len());
        for shard in &chosen {
            let set = &handle.keys(*shard)?.waiting;
            let asked = instants.iter().take(AT_ONCE);
            let asked = asked.map(|instant| before(set, *instant)).collect();
            let counts = self.ask_all(&self.inner.connection.at(set), asked).await?;
            waiting.add(&DueBefore { counts, total: 0 });
        }
        waiting.scale(all.len(), chosen.len().max(1));
        Ok(waiting.counts)
    }

    async fn forecast_of_shard(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        instants: &[UnixMs],
    ) -> Result<(DueBefore, Vec<(Group, DueBefore)>, bool), BrokerError> {
        let keys = topic.keys(shard)?;
        let mut sets = vec![&keys.waiting];
        sets.extend(keys.groups.iter().map(|group| &group.retry));
        let server = self.inner.connection.at(&keys.waiting);
        let paused = self.ask::<Option<Vec<u8>>>(command("HGET", &keys.conf).arg("paused"));
        let is_paused = paused.await?.is_some();
        let mut totals: Vec<u64> = Vec::with_capacity(sets.len());
        for sets in sets.chunks(AT_ONCE) {
            let cards = sets.iter().map(|set| command("ZCARD", set)).collect();
            totals.extend(self.ask_all::<u64>(&server, cards).await?);
        }
        let filled = sets.iter().zip(&totals).filter(|(_, total)| **total > 0);
        let asked: Vec<(&Key, UnixMs)> = filled
            .flat_map(|(set, _)| instants.iter().map(|instant| (*set, *instant)))
            .collect();
        let mut counts = Vec::with_capacity(asked.len());
        for asked in asked.chunks(AT_ONCE) {
            let asked = asked.iter().map(|(set, instant)| before(set, *instant));
            counts.extend(self.ask_all::<u64>(&server, asked.collect()).await?);
        }
        let mut counts = counts.into_iter();
        let due = totals.into_iter().map(|total| match total {
            0 => DueBefore::zero(instants.len()),
            total => DueBefore {
                counts: counts.by_ref().take(instants.len()).collect(),
                total,
            },
        });
        let mut due: Vec<DueBefore> = due.collect();
        let retry = due.split_off(1);
        let groups = keys.groups.iter().map(|group| group.name.clone());
        let waiting = due.pop().unwrap_or_default();
        Ok((waiting, groups.zip(retry).collect(), is_paused))
    }
}

/// Counts the members of a zset with a score below an instant.
fn before(set: &Key, instant: UnixMs) -> Command<'_> {
    let until = format!("({}", instant.get());
    command("ZCOUNT", set).arg("-inf").arg(until)
}

/// Chooses up to `most` items, evenly spaced.
fn choose(all: &[Shard], most: usize) -> Vec<Shard> {
    let count = all.len().min(most);
    let chosen = (0..count).filter_map(|index| all.get(index * all.len() / count));
    chosen.copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shards_are_counted_or_evenly_chosen_ones() {
        let all: Vec<Shard> = (0..10).map(Shard::new).collect();
        let numbers = |most| -> Vec<u16> {
            let chosen = choose(&all, most);
            chosen.into_iter().map(Shard::get).collect()
        };
        assert_eq!(numbers(10), (0..10).collect::<Vec<_>>());
        assert_eq!(numbers(64), (0..10).collect::<Vec<_>>());
        assert_eq!(numbers(4), [0, 2, 5, 7]);
        assert_eq!(numbers(1), [0]);
    }

    #[test]
    fn an_estimate_is_the_share_of_the_counted_shards() {
        let mut due = DueBefore {
            counts: vec![0, 3, u64::MAX / 2],
            total: 7,
        };
        due.scale(128, 64);
        assert_eq!((due.counts[0], due.counts[1], due.total), (0, 6, 14));
        due.scale(128, 64);
        assert_eq!(due.counts[2], u64::MAX);
    }
}
