//! One random run: work of all kinds on a topic whose shards change, with managers that stop anywhere.

mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use lisa_core::broker::{
    Broker, BrokerError, Examination, GroupStats, Membership, Migration, Removal, Resharded,
    ShardRemoval, TopicHandle, Verdict,
};
use lisa_core::message::MessageId;
use lisa_core::redis::Reader;
use lisa_core::time::UnixMs;
use lisa_core::topic::{Group, OnGarbage, Shard, Topic, TopicSettings};
use lisa_tests::relay::{connection, settings};
use lisa_tests::{Relay, Server};

use super::HOUR;

/// The clock stands still but for these steps.
const MOST_MS: u64 = 4000;

/// A delivery that a handler holds.
struct Held {
    shard: Shard,
    group: Group,
    read: lisa_core::broker::Read,
}

/// A message that was sent, and its expected outcome.
struct Sent {
    key: Option<String>,
    due: UnixMs,
    number: usize,
    /// True if its due time is the one that it was sent with.
    is_fixed: bool,
}

struct Run {
    rng: Rng,
    relay: Relay,
    /// A second process, which discovers new shards only when a call is refused.
    other: Broker,
    reader: Option<Reader>,
    sent: BTreeMap<MessageId, Sent>,
    ended: BTreeSet<MessageId>,
    acked: BTreeMap<(Group, MessageId), u32>,
    begun: BTreeSet<(Group, MessageId)>,
    /// The messages that were in garbage once: a cancel leaves them there, and removes them from the other groups only.
    in_garbage: BTreeSet<(Group, MessageId)>,
    held: Vec<Held>,
    migrations: BTreeMap<Shard, Migration>,
    number: usize,
    resharded: u32,
    log: Vec<String>,
    /// The group of a process that runs all the time.
    instance: Option<Group>,
}

/// Runs this many random steps, lets every message reach its end, and checks that it did.
pub(super) async fn random(seed: u64, steps: u64) {
    let mut rng = Rng::with_seed(seed);
    let settings = random_settings(&mut rng);
    let server = Server::shared();
    let mut relay = Relay::on(
        server,
        &connection(server).await,
        "reshard",
        settings.clone(),
    )
    .await;
    let instance = rng.bool().then(Group::for_instance);
    if let Some(group) = &instance {
        let joined = relay.broker().join(relay.topic(), group).await;
        assert_eq!(joined.unwrap(), Membership::Member);
        relay.set_topic(relay.broker().known(relay.topic().name()).unwrap());
    }
    let other = Broker::new(
        connection(server).await,
        relay.broker().namespace().clone(),
        Duration::from_secs(30),
        None,
    );
    other.set_virtual_now(relay.now());
    other.topic(relay.topic().name()).await.unwrap();
    let mut run = Run {
        rng,
        relay,
        other,
        reader: None,
        sent: BTreeMap::new(),
        ended: BTreeSet::new(),
        acked: BTreeMap::new(),
        begun: BTreeSet::new(),
        in_garbage: BTreeSet::new(),
        held: Vec::new(),
        migrations: BTreeMap::new(),
        number: 0,
        resharded: 0,
        log: Vec::new(),
        instance,
    };
    let outcome = std::panic::AssertUnwindSafe(async {
        for step in 0..steps {
            run.step(step).await.unwrap();
        }
        run.finish().await.unwrap();
        run.remove().await.unwrap();
    });
    let outcome = futures_util::FutureExt::catch_unwind(outcome).await;
    if let Err(panic) = outcome {
        eprintln!("seed {seed}, {settings:?}\n{}", run.log.join("\n"));
        std::panic::resume_unwind(panic);
    }
    println!(
        "seed {seed}: {} messages, resharded {} times",
        run.number, run.resharded
    );
}

fn random_settings(rng: &mut Rng) -> TopicSettings {
    let groups = if rng.bool() {
        vec!["a", "b"]
    } else {
        vec!["default"]
    };
    TopicSettings {
        shards: rng.u16(1..5),
        groups: groups
            .into_iter()
            .map(|group| group.parse().unwrap())
            .collect(),
        max_ready: rng.bool().then_some(8),
        on_garbage: if rng.u8(..4) == 0 {
            OnGarbage::Block
        } else {
            OnGarbage::Continue
        },
        ..settings()
    }
}

impl Run {
    fn topic(&self) -> Arc<TopicHandle> {
        self.relay.broker().known(self.name()).unwrap()
    }

    fn name(&self) -> &Topic {
        self.relay.topic().name()
    }

    fn broker(&self) -> &Broker {
        self.relay.broker()
    }

    async fn step(&mut self, step: u64) -> Result<(), BrokerError> {
        match self.rng.u8(..100) {
            0..25 => self.send().await,
            25..37 => self.moves().await,
            37..55 => self.read().await,
            55..70 => self.settle().await,
            70..74 => self.change().await,
            74..77 => self.requeue().await,
            77..79 => self.pass(MOST_MS),
            79..80 => self.reshard().await?,
            80..81 => self.clean().await?,
            81..98 => self.migrate_out().await,
            _ => {
                let topic = self.topic();
                let how = Examination::of(&topic, false);
                let checkup = self.broker().examine(&topic, how).await?;
                assert!(
                    checkup.findings.is_empty(),
                    "step {step}: {:?}",
                    checkup.findings
                );
            }
        }
        if step.is_multiple_of(10) {
            let stats = self.broker().stats(&self.topic()).await?;
            assert_eq!(stats.conservation_error, 0, "step {step}");
            super::counts::check(&self.relay, &stats).await;
        }
        Ok(())
    }

    fn pass(&mut self, most: u64) {
        let by = self.rng.u64(..most);
        self.relay.step(by as i64);
        self.other.set_virtual_now(self.relay.now());
    }

    /// Lets the shards forget ended messages, so that a resharding can end.
    async fn clean(&mut self) -> Result<(), BrokerError> {
        self.relay.step(11 * 60 * 1000);
        self.other.set_virtual_now(self.relay.now());
        if let Some(group) = &self.instance {
            // Its process renews its lease now and then.
            let joined = self.broker().join(&self.topic(), group).await?;
            assert_eq!(joined, Membership::Member);
        }
        let topic = self.topic();
        for shard in topic.shards() {
            for group in topic.groups() {
                self.broker().clean(&topic, shard, group, None).await?;
            }
            self.broker().forget(&topic, shard).await?;
        }
        Ok(())
    }

    async fn reshard(&mut self) -> Result<(), BrokerError> {
        let topic = self.broker().newest(self.name()).await?;
        if topic.is_resharding() || topic.retired().is_some() {
            let removed = self
                .broker()
                .remove_topic(self.name(), Removal::Force, None);
            let refused = removed.await.unwrap_err();
            let is_known = match topic.is_resharding() {
                true => matches!(
                    refused,
                    BrokerError::Resharding { .. } | BrokerError::Changing(_)
                ),
                false => matches!(refused, BrokerError::Changing(_)),
            };
            assert!(is_known, "{refused}");
        }
        if topic.is_resharding() {
            return Ok(());
        }
        let shards = self.rng.u16(1..7);
        if let Resharded::UnderWay(topic) = self.broker().reshard(self.name(), shards).await? {
            self.resharded += 1;
            self.log.push(format!(
                "reshard to {shards}: {:?}",
                topic.shards().collect::<Vec<_>>()
            ));
        }
        Ok(())
    }

    /// Lets one of two managers migrate, which may stop at any of its calls.
    async fn migrate_out(&mut self) {
        let topic = self.topic();
        if topic.retired().is_some() && !topic.is_resharding() {
            self.broker().drop_retired_keys(&topic).await.unwrap();
            return;
        }
        let retiring: Vec<Shard> = topic
            .shards()
            .filter(|shard| topic.is_retiring(*shard))
            .collect();
        if retiring.is_empty() {
            return;
        }
        let shard = retiring[self.rng.usize(..retiring.len())];
        let mut migration = self.migrations.remove(&shard).unwrap_or_default();
        if self.rng.u8(..3) == 0 {
            let within = Duration::from_micros(self.rng.u64(..1500));
            let step = self.broker().migrate_out(&topic, shard, &mut migration);
            let cut = tokio::time::timeout(within, step).await;
            self.log
                .push(format!("migrate {shard}, cut: {}", cut.is_err()));
            return;
        }
        let step = self
            .broker()
            .migrate_out(&topic, shard, &mut migration)
            .await
            .unwrap();
        self.log.push(format!("migrate {shard}: {step:?}"));
        if self.rng.u8(..4) > 0 {
            self.migrations.insert(shard, migration);
        }
    }

    /// Lets every message reach its end, and checks that it did.
    async fn finish(&mut self) -> Result<(), BrokerError> {
        for round in 0.. {
            let stats = self.broker().stats(&self.topic()).await?;
            let of_group = |group: &GroupStats| {
                let due = group.backlog + group.parked + group.ready + group.retry;
                due + group.in_flight + group.garbage
            };
            let left = stats.waiting + stats.groups.iter().map(of_group).sum::<u64>();
            if left == 0 && stats.migrating.unwrap_or(0) == 0 {
                break;
            }
            assert!(round < 500, "it comes to no end: {stats:?}");
            self.pass(MOST_MS);
            while let Some(held) = self.held.pop() {
                self.end(held, Verdict::Ack).await;
            }
            self.requeue().await;
            for _ in 0..4 {
                self.migrate_out().await;
            }
            self.moves().await;
            for _ in 0..4 {
                self.read().await;
            }
        }
        self.clean().await?;
        for _ in 0..40 {
            self.migrate_out().await;
        }
        let topic = self.topic();
        assert!(!topic.is_resharding(), "it came to no end");
        let stats = self.broker().stats(&topic).await?;
        assert_eq!(stats.conservation_error, 0);
        assert_eq!(stats.waiting, 0);
        for group in &stats.groups {
            let left = group.backlog + group.parked + group.ready + group.in_flight + group.retry;
            assert_eq!(left + group.garbage, 0, "{group:?}");
        }
        for (id, _) in self.sent.iter().filter(|(id, _)| !self.ended.contains(*id)) {
            for group in self.relay.topic().groups() {
                let times = self.acked.get(&(group.clone(), id.clone()));
                assert_eq!(times, Some(&1), "{id} in {group}");
            }
        }
        let snapshot = self.relay.snapshot().await;
        let (first, last) = (
            topic.shards().next().unwrap(),
            topic.shards().last().unwrap(),
        );
        for (key, _) in snapshot.iter().filter(|(key, _)| key.starts_with("v1:{t:")) {
            let number: u16 = key["v1:{t:".len()..]
                .split('}')
                .next()
                .unwrap()
                .parse()
                .unwrap();
            let in_service = (first.get()..=last.get()).contains(&number);
            assert!(in_service || key == "v1:{t:0}:conf", "{key} is left");
        }
        Ok(())
    }

    /// Removes the topic, whose messages have all ended. Only the record of that is left, and the pointer to it. A process that
    /// knows the topic learns of it.
    async fn remove(&mut self) -> Result<(), BrokerError> {
        let how = Removal::ALL[self.rng.usize(..2)];
        let (broker, name) = (self.broker(), self.name());
        broker.remove_topic(name, how, None).await?;
        let topic = broker.newest(name).await?;
        let first = topic.first_shard();
        let others = topic.shards().filter(|shard| *shard != first);
        for shard in others.chain([first]) {
            let removed = broker.remove_shard(&topic, shard).await?;
            assert_eq!(removed, ShardRemoval::Gone, "{shard}");
        }
        let late = self.other.known(name).expect("a process that knows it");
        let last = late.shards().last().expect("a shard");
        let moved = self.other.move_due(&late, last, 1, HOUR).await;
        assert!(
            matches!(moved, Err(BrokerError::UnknownTopic(_))),
            "{moved:?}"
        );
        let record = format!("v1:{{t:{first}}}:conf");
        for (key, _) in self.relay.snapshot().await.iter() {
            let is_left = [record.as_str(), "v1:{t:0}:conf"].contains(&key);
            assert!(is_left || !key.starts_with("v1:{t:"), "{key} is left");
        }
        Ok(())
    }
}
