//! What must hold after each step, whatever it was: Redis holds what the reference says, the counts agree, the sums of
//! the conservation law hold; and at the end everything can be brought to its end.

use super::reference::{Holder, Reference};
use super::run::{Run, Stop, same};
use super::steps::{Ending, Step, What};
use lisa_tests::Snapshot;
use lisa_tests::snapshot::{Content, Text};
use std::collections::BTreeMap;

/// Rounds after which a drain that has not ended is stuck.
const ROUNDS: usize = 100;

impl Run {
    /// Compares the whole keyspace and the counts with the reference, after learning the ids of new entries.
    pub(super) async fn compare(&mut self) -> Result<(), Stop> {
        let snapshot = self.relay.snapshot().await;
        for (index, reference) in (0..).zip(&mut self.shards) {
            let stream = snapshot.stream(&self.relay.short_key(index, "ready:default"));
            let mut last = None;
            for (delivery, (entry, _)) in reference.stream.iter_mut().zip(&stream.entries) {
                let entry = entry.parse().ok();
                // One that is known already must be this one; a new one comes behind all others.
                if delivery.entry.is_none() && entry > last {
                    delivery.entry = entry;
                }
                last = entry;
            }
        }
        let expected = self.expected();
        if expected != snapshot {
            let diff = expected.diff(&snapshot);
            let text = format!("expected (-) and found (+) differ:\n{diff}");
            return Err(Stop::Violation(text));
        }
        let stats = self.relay.broker().stats(self.relay.topic()).await?;
        let shards = &self.shards;
        let sum = |count: fn(&Reference) -> usize| shards.iter().map(count).sum::<usize>() as u64;
        let held = |shard: &Reference| {
            let held = shard.stream.iter();
            held.filter(|d| matches!(d.holder, Holder::Held { .. }))
                .count()
        };
        let group = &stats.groups[0];
        let stream = sum(|shard| shard.stream.len());
        same("waiting", stats.waiting, sum(|shard| shard.waiting.len()))?;
        same("in flight", group.in_flight, sum(held))?;
        same("ready", group.ready, stream - sum(held))?;
        same("retry", group.retry, sum(|shard| shard.retry.len()))?;
        same("garbage", group.garbage, sum(|shard| shard.garbage.len()))?;
        same("conservation error", stats.conservation_error, 0)
    }

    fn expected(&self) -> Snapshot {
        let mut keys: BTreeMap<String, Content> = BTreeMap::new();
        for (key, content) in self.fixed.iter() {
            keys.insert(key.to_owned(), content.clone());
        }
        for (index, reference) in (0..).zip(&self.shards) {
            let name = |what| self.relay.short_key(index, what);
            keys.extend(
                reference
                    .keys()
                    .into_iter()
                    .map(|(what, content)| (name(what), content)),
            );
            if let (Some(Content::Hash(conf)), true) =
                (keys.get_mut(&name("conf")), reference.paused)
            {
                conf.insert(Text::from("paused"), Text::from("1"));
            }
        }
        keys.into_iter().collect()
    }

    /// Brings everything to its end: in the end nothing may be left but counters, and no message forgotten.
    pub(super) async fn drain(&mut self) -> Result<(), Stop> {
        self.act(What::Pause(false)).await?;
        for _ in 0..ROUNDS {
            self.act(What::Clock(70_000)).await?;
            self.act(What::Age(self.ids())).await?;
            self.act(What::Reclaim).await?;
            self.act(What::Clean).await?;
            self.act(What::Purge {
                ids: self.ids(),
                outdated: false,
            })
            .await?;
            self.act(What::Move { batch: 500 }).await?;
            self.act(What::Read {
                consumer: 0,
                count: 500,
            })
            .await?;
            let items = self.ids().into_iter().map(|id| (id, Ending::Ack)).collect();
            self.act(What::Settle {
                items,
                stale: false,
            })
            .await?;
            let left = |shard: &Reference| {
                let tables = [&shard.waiting, &shard.retry];
                shard.stream.len()
                    + shard.garbage.len()
                    + tables.map(BTreeMap::len).iter().sum::<usize>()
            };
            if self.shards.iter().map(left).sum::<usize>() == 0 {
                self.act(What::Clock(70_000)).await?;
                self.act(What::Clean).await?;
                return self.assert_empty();
            }
        }
        Err(Stop::Violation("the drain does not end".to_owned()))
    }

    async fn act(&mut self, what: What) -> Result<(), Stop> {
        self.step(&Step { what, twice: false }).await
    }

    /// All ids that are anywhere.
    fn ids(&self) -> Vec<String> {
        let mut ids: Vec<String> = Vec::new();
        for shard in &self.shards {
            let on_stream = shard.stream.iter().map(|delivery| &delivery.id);
            let stored = shard.garbage.keys().chain(shard.waiting.keys());
            let all = on_stream.chain(stored).chain(shard.retry.keys());
            ids.extend(all.map(|id| id.as_str().to_owned()));
        }
        ids.sort();
        ids.dedup();
        ids
    }

    /// The reference equals Redis here, so it is enough to ask it.
    fn assert_empty(&self) -> Result<(), Stop> {
        for shard in &self.shards {
            let left = (shard.payload.len(), shard.attempts.len(), shard.tomb.len());
            same("payloads, attempts and tombstones left", left, (0, 0, 0))?;
        }
        Ok(())
    }
}
