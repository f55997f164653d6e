//! One random run: work of all kinds on a topic whose shards change, with managers that stop anywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use lisa_shared::broker::{
    Broker, BrokerError, Departure, Examination, GroupStats, Resharded, Settlement, TopicHandle,
    Verdict,
};
use lisa_shared::link::Reader;
use lisa_shared::message::{Expiry, MessageId, NewMessage};
use lisa_shared::state::{CancelOutcome, RescheduleOutcome, SendOutcome, Settled, State};
use lisa_shared::time::{UnixMs, When};
use lisa_shared::topic::{Group, OnGarbage, Shard, Topic, TopicSettings};
use lisa_tests::Relay;
use lisa_tests::relay::{link, message, ms, nameless, settings};
use lisa_tests::{Server, relay};

const IDLE: Duration = Duration::from_secs(5);
/// The clock stands still but for these steps.
const MOST_MS: u64 = 4000;

/// A delivery that a handler has.
struct Held {
    shard: Shard,
    group: Group,
    read: lisa_shared::broker::Read,
}

/// What was sent, and what must become of it.
struct Sent {
    key: Option<String>,
    due: UnixMs,
    number: usize,
    /// Whether its due time is what it was sent with.
    is_fixed: bool,
}

struct Run {
    rng: Rng,
    relay: Relay,
    /// A second process, which learns of new shards only by being refused.
    other: Broker,
    reader: Option<Reader>,
    sent: BTreeMap<MessageId, Sent>,
    ended: BTreeSet<MessageId>,
    acked: BTreeMap<(Group, MessageId), u32>,
    begun: BTreeSet<(Group, MessageId)>,
    held: Vec<Held>,
    departures: BTreeMap<Shard, Departure>,
    number: usize,
    resharded: u32,
    log: Vec<String>,
}

/// Does so many random steps, then lets all come to its end, and checks that it did.
pub(super) async fn random(seed: u64, steps: u64) {
    let mut rng = Rng::with_seed(seed);
    let settings = random_settings(&mut rng);
    let server = Server::shared();
    let relay = Relay::on(server, &link(server).await, "reshard", settings.clone()).await;
    let other = Broker::new(
        link(server).await,
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
        held: Vec::new(),
        departures: BTreeMap::new(),
        number: 0,
        resharded: 0,
        log: Vec::new(),
    };
    let outcome = std::panic::AssertUnwindSafe(async {
        for step in 0..steps {
            run.step(step).await.unwrap();
        }
        run.finish().await.unwrap();
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
            81..98 => self.hand_over().await,
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
        }
        Ok(())
    }

    fn pass(&mut self, most: u64) {
        let by = self.rng.u64(..most);
        self.relay.step(by as i64);
        self.other.set_virtual_now(self.relay.now());
    }

    async fn send(&mut self) {
        self.number += 1;
        let name = format!("m-{}", self.number);
        let delay = ms(self.rng.u64(..6000));
        let mut new: NewMessage = match self.rng.bool() {
            true => message(&name, delay),
            false => nameless(&name, delay),
        };
        if self.rng.bool() {
            new.options.key = Some(format!("k-{}", self.rng.u8(..5)).parse().unwrap());
        } else if self.rng.u8(..3) == 0 {
            new.options.merge_key = Some(format!("g-{}", self.rng.u8(..3)).parse().unwrap());
        }
        if self.rng.u8(..5) == 0 {
            new.options.priority = self.rng.i32(-3..3);
        }
        if self.rng.u8(..8) == 0 {
            new.options.expiry = Some(Expiry::After(Duration::from_secs(86_400)));
        }
        let broker = if self.rng.bool() {
            self.other.clone()
        } else {
            self.broker().clone()
        };
        let topic = broker.known(self.name()).unwrap();
        let shard = topic.shard_of_message(&new);
        let key = new.options.key.as_ref().map(ToString::to_string);
        let repeats = if self.rng.u8(..6) == 0 { 2 } else { 1 };
        for repeat in 0..repeats {
            let messages = std::slice::from_ref(&new);
            let sent = self.meanwhile(broker.send(&topic, shard, messages)).await;
            let sent = sent.unwrap().remove(0);
            self.log
                .push(format!("send {name} {key:?} {shard}: {:?}", sent.outcome));
            match sent.outcome {
                SendOutcome::Waiting | SendOutcome::Ready => {
                    assert_eq!(repeat, 0, "{name} was stored twice");
                    let due = sent.due.unwrap();
                    let number = self.number;
                    let (key, is_fixed) = (key.clone(), new.options.merge_key.is_none());
                    self.sent.insert(
                        sent.id,
                        Sent {
                            key,
                            due,
                            number,
                            is_fixed,
                        },
                    );
                }
                // One that was merged away, and repeated, is known as well.
                SendOutcome::Merged | SendOutcome::Duplicate => {
                    assert!(
                        self.sent.contains_key(&sent.id) || repeat == 1,
                        "{name} with {}",
                        sent.id
                    );
                    if let (SendOutcome::Merged, Some(due)) = (sent.outcome, sent.due) {
                        self.sent.get_mut(&sent.id).unwrap().due = due;
                    }
                }
                other => panic!("{name}: {other:?}"),
            }
            // A repeat often comes later.
            if self.rng.bool() {
                self.hand_over().await;
            }
        }
    }

    async fn moves(&mut self) {
        self.pass(300);
        for shard in self.topic().shards() {
            self.broker()
                .move_due(&self.topic(), shard, 50, IDLE)
                .await
                .unwrap();
        }
    }

    async fn read(&mut self) {
        let topic = self.topic();
        // A read of an empty stream takes its time.
        let mut streams = Vec::new();
        for shard in topic.shards() {
            for group in topic.groups() {
                let mut length = redis::cmd("XLEN");
                let stream = self.relay.short_key(shard.get(), &format!("ready:{group}"));
                length.arg(format!("{}:{stream}", self.broker().namespace()));
                let length: u64 = self.relay.command(&length).await;
                streams.extend((length > 0).then(|| (shard, group.clone())));
            }
        }
        if streams.is_empty() {
            return;
        }
        let (shard, group) = streams.swap_remove(self.rng.usize(..streams.len()));
        let mut reader = match self.reader.take() {
            Some(reader) if reader.is_open() => reader,
            _ => self.broker().link().any().reader().await.unwrap(),
        };
        let count = self.rng.usize(1..6);
        let reads = self
            .broker()
            .read(
                &mut reader,
                &topic,
                shard,
                &group,
                relay::WORKER,
                count,
                ms(1),
            )
            .await;
        self.reader = Some(reader);
        for read in reads.unwrap() {
            let id = read.id.clone().unwrap();
            self.log.push(format!(
                "read {group} {id} {} on {shard}",
                read.attempt.number
            ));
            self.begin(&group, &id);
            self.held.push(Held {
                shard,
                group: group.clone(),
                read,
            });
        }
    }

    /// Checks a delivery: not early, of a message that is not at its end, none of its key beside it or before it.
    fn begin(&mut self, group: &Group, id: &MessageId) {
        let sent = &self.sent[id];
        assert!(sent.due <= self.relay.now(), "{id} is early");
        assert!(!self.ended.contains(id), "{id} has ended");
        let done = (group.clone(), id.clone());
        assert!(!self.acked.contains_key(&done), "{id} was acknowledged");
        let is_first = self.begun.insert(done);
        let Some(key) = &sent.key else { return };
        let same = |held: &&Held| {
            let other = held.read.id.as_ref().unwrap();
            held.group == *group && self.sent[other].key.as_ref() == Some(key)
        };
        assert!(
            !self.held.iter().any(|held| same(&held)),
            "{id} beside another of {key}"
        );
        if !is_first || !sent.is_fixed {
            return;
        }
        for (other, before) in &self.sent {
            let earlier = before.number < sent.number && before.due <= sent.due && before.is_fixed;
            if earlier && before.key.as_ref() == Some(key) && !self.ended.contains(other) {
                let begun = self.begun.contains(&(group.clone(), other.clone()));
                assert!(begun, "{id} came before {other} of {key}");
            }
        }
    }

    async fn settle(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let held = self.held.swap_remove(self.rng.usize(..self.held.len()));
        let error = "it failed".to_owned();
        let after = ms(self.rng.u64(..3000));
        let verdict = match self.rng.u8(..10) {
            0..6 => Verdict::Ack,
            6..8 => Verdict::Retry {
                when: after.into(),
                error,
            },
            8 => Verdict::Defer { when: after.into() },
            _ => Verdict::Reject { error },
        };
        self.end(held, verdict).await;
    }

    async fn end(&mut self, held: Held, verdict: Verdict) {
        let id = held.read.id.clone().unwrap();
        let settlement: Settlement = relay::settlement(&held.read, verdict);
        let (topic, shard, group) = (self.topic(), held.shard, &held.group);
        let settled = self
            .broker()
            .settle(&topic, shard, group, &[settlement])
            .await
            .unwrap();
        self.log.push(format!("settle {group} {id}: {settled:?}"));
        match settled[0] {
            Settled::Acked => {
                *self.acked.entry((held.group, id)).or_default() += 1;
            }
            Settled::Retry { .. } | Settled::Deferred { .. } | Settled::Garbage => {}
            ref other => panic!("{id}: {other:?}"),
        }
    }

    /// Cancels, or moves to another time, a message without a key.
    async fn change(&mut self) {
        let keyless = self.sent.iter().filter(|(_, sent)| sent.key.is_none());
        let ids: Vec<MessageId> = keyless.map(|(id, _)| id.clone()).collect();
        if ids.is_empty() {
            return;
        }
        let id = ids[self.rng.usize(..ids.len())].clone();
        let broker = if self.rng.bool() {
            self.other.clone()
        } else {
            self.broker().clone()
        };
        let topic = broker.known(self.name()).unwrap();
        if self.rng.bool() {
            let cancelled = self
                .meanwhile(broker.cancel(&topic, &id, None))
                .await
                .unwrap();
            self.log.push(format!("cancel {id}: {cancelled:?}"));
            match cancelled {
                CancelOutcome::Cancelled { .. } => _ = self.ended.insert(id),
                CancelOutcome::Unknown { .. } => assert!(self.is_over(&id), "{id} is not found"),
                _ => {}
            }
        } else {
            let when = When::from(ms(self.rng.u64(..3000)));
            let outcome = broker.reschedule(&topic, &id, None, when);
            let outcome = self.meanwhile(outcome).await.unwrap();
            self.log.push(format!("reschedule {id}: {outcome:?}"));
            match outcome {
                RescheduleOutcome::Rescheduled { due } => {
                    let sent = self.sent.get_mut(&id).unwrap();
                    (sent.due, sent.is_fixed) = (due, false);
                }
                RescheduleOutcome::Unknown { .. } => {
                    assert!(self.is_over(&id), "{id} is not found")
                }
                _ => {}
            }
        }
    }

    /// Awaits a call that may wait for a message on its way, while managers go on.
    async fn meanwhile<T>(&mut self, call: impl Future<Output = T>) -> T {
        tokio::pin!(call);
        loop {
            tokio::select! {
                done = &mut call => return done,
                () = tokio::time::sleep(ms(20)) => self.hand_over().await,
            }
        }
    }

    /// Whether a message was acknowledged in all groups, or cancelled.
    fn is_over(&self, id: &MessageId) -> bool {
        let groups = self.relay.topic().groups();
        let acked = |group: &Group| self.acked.contains_key(&(group.clone(), id.clone()));
        self.ended.contains(id) || groups.iter().all(acked)
    }

    async fn requeue(&mut self) {
        let topic = self.topic();
        for group in topic.groups() {
            let broker = self.relay.broker();
            let page = broker
                .list(&topic, group, State::Garbage, None, 50)
                .await
                .unwrap();
            // Those of a key come again where others of it were meanwhile.
            let seen: Vec<_> = page
                .items
                .into_iter()
                .map(|item| (item.id, item.time))
                .collect();
            let count = broker.requeue(&topic, group, &seen).await.unwrap();
            self.log
                .push(format!("requeue {group}: {count} of {}", seen.len()));
        }
    }

    /// Lets the shards forget who ended, so that a resharding can end.
    async fn clean(&mut self) -> Result<(), BrokerError> {
        self.relay.step(11 * 60 * 1000);
        self.other.set_virtual_now(self.relay.now());
        let topic = self.topic();
        for shard in topic.shards() {
            for group in topic.groups() {
                self.broker().clean(&topic, shard, group, None).await?;
            }
        }
        Ok(())
    }

    async fn reshard(&mut self) -> Result<(), BrokerError> {
        if self.topic().is_resharding() {
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

    /// Lets one of two managers hand over, which may stop at any of its calls.
    async fn hand_over(&mut self) {
        let topic = self.topic();
        if topic.vacating().is_some() && !topic.is_resharding() {
            self.broker().vacate(&topic).await.unwrap();
            return;
        }
        let leaving: Vec<Shard> = topic
            .shards()
            .filter(|shard| topic.is_leaving(*shard))
            .collect();
        if leaving.is_empty() {
            return;
        }
        let shard = leaving[self.rng.usize(..leaving.len())];
        let mut departure = self.departures.remove(&shard).unwrap_or_default();
        if self.rng.u8(..3) == 0 {
            let within = Duration::from_micros(self.rng.u64(..1500));
            let step = self.broker().hand_over(&topic, shard, &mut departure);
            let cut = tokio::time::timeout(within, step).await;
            self.log
                .push(format!("hand over {shard}, cut: {}", cut.is_err()));
            return;
        }
        let step = self
            .broker()
            .hand_over(&topic, shard, &mut departure)
            .await
            .unwrap();
        self.log.push(format!("hand over {shard}: {step:?}"));
        if self.rng.u8(..4) > 0 {
            self.departures.insert(shard, departure);
        }
    }

    /// Lets everything come to its end, and checks that it did.
    async fn finish(&mut self) -> Result<(), BrokerError> {
        for round in 0.. {
            let stats = self.broker().stats(&self.topic()).await?;
            let of_group = |group: &GroupStats| {
                let due = group.backlog + group.parked + group.ready + group.retry;
                due + group.in_flight + group.garbage
            };
            let left = stats.waiting + stats.groups.iter().map(of_group).sum::<u64>();
            if left == 0 && stats.leaving.unwrap_or(0) == 0 {
                break;
            }
            assert!(round < 500, "it comes to no end: {stats:?}");
            self.pass(MOST_MS);
            while let Some(held) = self.held.pop() {
                self.end(held, Verdict::Ack).await;
            }
            self.requeue().await;
            for _ in 0..4 {
                self.hand_over().await;
            }
            self.moves().await;
            for _ in 0..4 {
                self.read().await;
            }
        }
        self.clean().await?;
        for _ in 0..40 {
            self.hand_over().await;
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
}
