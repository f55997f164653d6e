//! The invariants after each step: Redis holds the state of the reference, the sums of the conservation laws hold, and
//! a parked message has a holder. At the end, every message can reach its end.

use super::reference::{CopyState, Delivery, Holder, Holders, Reference, Refused};
use super::removal::{refused, version_in};
use super::run::{Run, Stop, same};
use super::steps::{Ending, Step, What};
use lisa_core::broker::GroupStats;
use lisa_core::topic::Group;
use lisa_tests::Snapshot;
use lisa_tests::snapshot::{Content, Text};
use std::collections::{BTreeMap, BTreeSet};

/// Rounds after which a drain that has not ended is stuck.
const ROUNDS: usize = 100;
/// The most fields of settings or counters, and the number that each group may add.
const SETTINGS: usize = 64;
const OF_GROUP: usize = 40;
/// The most failed attempts of a shard.
const FAILURES: usize = 1100;
const REGISTRY: &str = "v1:{registry}:topics";

impl Run {
    /// Compares the whole keyspace and the counts with the reference, after learning the ids of new entries.
    pub(super) async fn compare(&mut self) -> Result<(), Stop> {
        let taken = self.relay.snapshot().await;
        let snapshot = comparable(&taken);
        let clock = self.relay.now().get();
        for (index, reference) in self.shards.iter_mut().enumerate() {
            self.watch
                .look(index, reference, clock)
                .map_err(Stop::Violation)?;
            // The ids of their entries are on the server's own clock.
            let key = self.relay.short_key(index as u16, "failures");
            let failures = taken.stream(&key).entries.into_iter();
            let failures: Vec<_> = failures.map(|(_, fields)| fields).collect();
            same("failures", &failures, &reference.failures)?;
            for group in &mut reference.groups {
                let key = self
                    .relay
                    .short_key(index as u16, &format!("ready:{}", group.name));
                let stream = snapshot.stream(&key);
                let mut last = None;
                for (delivery, (entry, _)) in group.stream.iter_mut().zip(&stream.entries) {
                    let entry = entry.parse().ok();
                    // A known one must match; a new one comes after all others.
                    if delivery.entry.is_none() && entry > last {
                        delivery.entry = entry;
                    }
                    last = entry;
                }
            }
        }
        let version = version_in(&snapshot.hash(&self.relay.short_key(0, "conf")));
        same("the version never goes back", version >= self.version, true)?;
        self.version = version;
        let expected = self.expected().await?;
        if expected != snapshot {
            let diff = expected.diff(&snapshot);
            let text = format!("expected (-) and found (+) differ:\n{diff}");
            return Err(Stop::Violation(text));
        }
        self.shards.iter().try_for_each(Reference::check)?;
        let listed = taken.hash(REGISTRY);
        let is_listed = listed.contains_key(self.relay.topic().name().as_str().as_bytes());
        same("listed", is_listed, !self.is_gone())?;
        let stats = self.relay.broker().stats(self.relay.topic()).await;
        let stats = match refused(stats)? {
            Ok(stats) => stats,
            Err(refusal) => {
                let expected = self.is_gone().then_some(Refused::Unknown);
                return same("stats", Some(refusal), expected);
            }
        };
        let shards = self.shards.iter();
        let waiting = shards
            .flat_map(|shard| shard.messages.values())
            .filter(|m| m.waiting);
        same("waiting", stats.waiting, waiting.count() as u64)?;
        same("conservation error", stats.conservation_error, 0)?;
        for group in &stats.groups {
            self.check_counts(group)?;
        }
        Ok(())
    }

    /// Compares the counts of a group.
    fn check_counts(&self, stats: &GroupStats) -> Result<(), Stop> {
        let groups = || {
            let shards = self.shards.iter();
            shards.filter_map(|shard| Some(&shard.groups[shard.place_of(&stats.group)?]))
        };
        let sum = |which: fn(&CopyState) -> bool| {
            groups().map(|group| group.count(which)).sum::<usize>() as u64
        };
        let held = |d: &&Delivery| matches!(d.holder, Holder::Held { .. });
        let held: usize = groups()
            .map(|group| group.stream.iter().filter(held).count())
            .sum();
        let held = held as u64;
        same(
            "backlog",
            stats.backlog,
            sum(|state| *state == CopyState::Backlog),
        )?;
        same(
            "parked",
            stats.parked,
            sum(|state| *state == CopyState::Parked),
        )?;
        same("in flight", stats.in_flight, held)?;
        same(
            "ready",
            stats.ready,
            sum(|state| *state == CopyState::Stream) - held,
        )?;
        same(
            "retry",
            stats.retry,
            sum(|state| matches!(state, CopyState::Retry(_))),
        )?;
        same(
            "garbage",
            stats.garbage,
            sum(|state| matches!(state, CopyState::Garbage(_))),
        )
    }

    /// The settings have any version, but the same one on all shards.
    async fn expected(&self) -> Result<Snapshot, Stop> {
        let version = Text::from(&self.version.to_string()[..]);
        let mut keys: BTreeMap<String, Content> = BTreeMap::new();
        for (key, content) in self.fixed.iter() {
            if key.ends_with("}:conf") {
                keys.insert(key.to_owned(), content.clone());
            }
        }
        for (index, reference) in (0..).zip(&self.shards) {
            let name = |what: &str| self.relay.short_key(index, what);
            let of_shard = reference.keys().into_iter();
            keys.extend(of_shard.map(|(what, content)| (name(&what), content)));
            if let Some(Content::Hash(conf)) = keys.get_mut(&name("conf")) {
                reference.say(conf);
                conf.insert(Text::from("version"), version.clone());
            }
        }
        self.expect_record(&mut keys).await?;
        Ok(keys.into_iter().collect())
    }

    /// Brings every message to its end: only counters may be left, and no message may be forgotten.
    pub(super) async fn drain(&mut self) -> Result<(), Stop> {
        self.act(What::Pause(false)).await?;
        for group in 0..self.groups.len() {
            self.act(What::PauseGroup(group, false)).await?;
        }
        for round in 0..ROUNDS {
            self.act(What::Clock(70_000)).await?;
            for group in 0..self.groups.len() {
                self.act(What::Retire(group, None)).await?;
            }
            // No declaration brings a group back to a topic that is being removed.
            let last = self.groups.last();
            let is_removing = self.shards[0].removal.is_some();
            let joins = is_removing && last.is_some_and(Group::is_of_instance);
            if self.settings.groups.is_empty() || joins {
                self.act(What::Join).await?;
            } else {
                self.act(What::Declare).await?;
            }
            if round < 3 {
                self.act(What::Age(self.ids())).await?;
                self.act(What::Reclaim).await?;
                self.act(What::Clean).await?;
            }
            self.act(What::Move { batch: 200 }).await?;
            let (consumer, count) = (0, 500);
            self.act(What::Read {
                consumer,
                count,
                each: 0,
            })
            .await?;
            for group in 0..self.groups.len() {
                let items = self.ids().into_iter().map(|id| (id, Ending::Ack)).collect();
                let stale = false;
                self.act(What::Settle {
                    group,
                    items,
                    stale,
                })
                .await?;
                let (ids, outdated) = (self.ids(), false);
                self.act(What::Purge {
                    group,
                    ids,
                    outdated,
                })
                .await?;
            }
            if self.shards.iter().all(|shard| shard.messages.is_empty()) {
                self.act(What::Clock(70_000)).await?;
                self.act(What::Clean).await?;
                self.act(What::Clean).await?;
                self.act(What::RemoveShards(None)).await?;
                same("the removal has ended", self.shards[0].removal, None)?;
                return self.assert_at_rest().await;
            }
        }
        Err(Stop::Violation("the drain does not end".to_owned()))
    }

    async fn act(&mut self, what: What) -> Result<(), Stop> {
        self.step(&Step {
            what,
            twice: false,
            late: false,
        })
        .await
    }

    /// All ids in any state, without duplicates: one may be on several shards, under different keys.
    fn ids(&self) -> Vec<String> {
        let ids = self.shards.iter().flat_map(|shard| shard.messages.keys());
        let ids: BTreeSet<_> = ids.map(|id| id.as_str().to_owned()).collect();
        ids.into_iter().collect()
    }

    /// Asks Redis and not the reference, which may make the same mistake: the data left at rest have a bound that does
    /// not depend on what came before.
    async fn assert_at_rest(&self) -> Result<(), Stop> {
        let most = SETTINGS + OF_GROUP * (self.groups.len() + 1);
        for (key, content) in self.relay.snapshot().await.iter() {
            let is_bounded = match content {
                Content::Hash(fields) if key.ends_with("}:conf") || key.ends_with("}:stats") => {
                    fields.len() <= most
                }
                Content::Stream(stream) if key.ends_with("}:failures") => {
                    stream.entries.len() <= FAILURES
                }
                Content::Stream(stream) => {
                    let mut groups = stream.groups.values();
                    stream.entries.is_empty() && groups.all(|group| group.pending.is_empty())
                }
                _ => key.contains("{registry}"),
            };
            if !is_bounded {
                return Err(Stop::Violation(format!("left at the end: {key}")));
            }
        }
        Ok(())
    }
}

impl Reference {
    /// Writes the fields of the state into `conf`.
    fn say(&self, conf: &mut BTreeMap<Text, Text>) {
        let mut set = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                conf.insert(Text::from(name), Text::from(&value[..]));
            }
        };
        set(
            "class",
            Some(if self.general { "general" } else { "plain" }.to_owned()),
        );
        set("window", self.window.map(|window| window.to_string()));
        set("paused", self.paused.then(|| "1".to_owned()));
        let removal = self.removal.map(|how| how.as_str().to_owned());
        set("features", removal.as_ref().map(|_| "1".to_owned()));
        set("removed", removal);
        let names: Vec<_> = self.groups.iter().map(|group| &group.name[..]).collect();
        set("groups", Some(names.join(" ")));
        set("epoch", Some(self.epoch.to_string()));
        for group in &self.groups {
            let retiring = group.retiring.map(|how| how.as_str().to_owned());
            set(&format!("retiring:{}", group.name), retiring);
            let lease = group.lease.map(|end| end.to_string());
            set(&format!("instance:{}", group.name), lease);
            set(
                &format!("paused:{}", group.name),
                group.paused.then(|| "1".to_owned()),
            );
        }
    }

    /// Checks both conservation laws, and that every parked message waits for a holder.
    fn check(&self) -> Result<(), Stop> {
        let count = |name: &str| self.counters.get(name).copied().unwrap_or(0);
        let waiting = self.messages.values().filter(|message| message.waiting);
        let ended = count("cancelled") + count("merged") + count("moved");
        same(
            "accepted",
            count("accepted"),
            waiting.count() as i64 + ended,
        )?;
        let gone = ["acked", "cancelled", "expired", "purged", "lost", "dropped"];
        for group in &self.groups {
            let of = |what: &str| count(&format!("{what}:{}", group.name));
            let ended: i64 = gone.iter().map(|what| of(what)).sum();
            let there = group.states.len() as i64;
            same("moved", of("moved"), there + ended)?;
            for (id, state) in &group.states {
                let key = self.messages[id].key();
                let holders = group.holders.get(&key).map_or(&[][..], Holders::all);
                let is_past = |id| {
                    let state = group.states.get(id);
                    state.is_some_and(|state| *state != CopyState::Parked)
                };
                let held = !holders.is_empty() && holders.iter().all(is_past);
                if *state == CopyState::Parked && !held {
                    return Err(Stop::Violation(format!("{id} waits without a holder")));
                }
                if *state == CopyState::Stream && !key.is_empty() && !holders.contains(id) {
                    return Err(Stop::Violation(format!("{id} goes without its key")));
                }
            }
        }
        Ok(())
    }
}

/// Returns the fields of each `conf` that a declaration sets, without the flags that other calls set.
pub(super) fn declared(snapshot: &Snapshot) -> Snapshot {
    let is_flag = |name: &str| {
        matches!(name, "paused" | "window")
            || name.starts_with("paused:")
            || name.starts_with("retiring:")
            || name.starts_with("instance:")
    };
    let keys = snapshot.iter().map(|(key, content)| {
        let mut content = content.clone();
        if let (true, Content::Hash(fields)) = (key.ends_with("}:conf"), &mut content) {
            fields.retain(|name, _| !is_flag(&name.to_string()));
        }
        (key.to_owned(), content)
    });
    keys.collect()
}

/// A snapshot without the registry, whose version no shard knows, and without counters of 0.
fn comparable(snapshot: &Snapshot) -> Snapshot {
    let keys = snapshot
        .iter()
        .filter(|(key, _)| !key.contains("{registry}") && !key.ends_with("}:failures"));
    let keys = keys.map(|(key, content)| {
        let mut content = content.clone();
        if let (true, Content::Hash(fields)) = (key.ends_with("}:stats"), &mut content) {
            fields.retain(|name, count| *count != *"0" || *name == *"alarm");
        }
        (key.to_owned(), content)
    });
    keys.collect()
}
