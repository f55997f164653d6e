//! One run: each step is done on Redis and in the reference, and their answers are compared; `check` does the rest.

use super::reference::{Delivery, Holder, Reference, encoded};
use super::steps::{CONSUMERS, Ending, Sent, Step, Time, What};
use lisa_shared::broker::{BrokerError, Found, Read, Settlement, Verdict};
use lisa_shared::link::Link;
use lisa_shared::message::{EntryId, MessageId, NewMessage, Record};
use lisa_shared::retry::RetryPolicy;
use lisa_shared::time::{UnixMs, When};
use lisa_shared::topic::{GarbageSettings, Shard, TopicSettings};
use lisa_tests::relay::ms;
use lisa_tests::{Relay, Server, Snapshot};
use redis::cmd;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// When a mover looks again if nothing becomes due before.
const IDLE: Duration = ms(5000);
/// Idle times are real ones: a reclaim that came later than this after they were set proves nothing.
const STEADY: Duration = ms(900);

/// Why a run ended early.
pub(super) enum Stop {
    /// Redis and the reference differ.
    Violation(String),
    /// The machine was too slow for this run to tell anything.
    Slow,
}

impl From<BrokerError> for Stop {
    fn from(error: BrokerError) -> Self {
        Self::Violation(error.to_string())
    }
}

/// A step with everything chosen, so that it can be done again exactly.
enum Call {
    Send(Vec<(Shard, Vec<NewMessage>)>),
    Move(u16),
    Settle(Vec<(Shard, Vec<Settlement>)>),
    Reclaim,
    DropConsumer(&'static str),
    Cancel(MessageId),
    Reschedule(MessageId, When),
    Requeue(Vec<(MessageId, UnixMs)>),
    Purge(Vec<(MessageId, UnixMs)>),
    PurgeOld,
    Clean,
    Pause(bool),
    Lookup(MessageId),
}

pub(super) struct Run {
    pub(super) relay: Relay,
    pub(super) shards: Vec<Reference>,
    /// The registry and each `conf`, which no step changes but for the pause flag.
    pub(super) fixed: Snapshot,
    /// The entries that each message was read from, and the record it had then.
    past: BTreeMap<MessageId, Vec<(EntryId, Record)>>,
}

/// The settings of a run: everything happens within a virtual minute.
fn settings(shards: u16) -> TopicSettings {
    TopicSettings {
        shards,
        lease: ms(1000),
        max_attempts: 3,
        retry: RetryPolicy::Exponential {
            base: ms(100),
            factor: 3.0,
            max: ms(500),
            jitter: 0.0,
        },
        dedup_window: ms(20_000),
        garbage: GarbageSettings {
            max_age: ms(60_000),
        },
        ..TopicSettings::default()
    }
}

pub(super) fn same<T: PartialEq + Debug>(what: &str, got: T, expected: T) -> Result<(), Stop> {
    if got == expected {
        return Ok(());
    }
    let text = format!("{what}: answered {got:?}, expected {expected:?}");
    Err(Stop::Violation(text))
}

impl Run {
    pub(super) async fn start(server: &Server, link: &Link, shards: u16) -> Self {
        let relay = Relay::on(server, link, "model", settings(shards)).await;
        let () = relay.command(cmd("FLUSHALL").arg("SYNC")).await;
        let (topic, settings) = (relay.topic().name(), relay.topic().settings());
        let declared = relay
            .broker()
            .declare(topic, settings, lisa_shared::broker::Declare::Create)
            .await;
        declared.expect("declared");
        let fixed = relay.snapshot().await;
        Self {
            relay,
            shards: vec![Reference::default(); usize::from(shards)],
            fixed,
            past: BTreeMap::new(),
        }
    }

    /// Does a step, perhaps twice, and compares after each time.
    pub(super) async fn step(&mut self, step: &Step) -> Result<(), Stop> {
        let Some(call) = self.choose(&step.what).await? else {
            return self.compare().await;
        };
        self.call(&call).await?;
        self.compare().await?;
        if step.twice {
            let before: Vec<_> = self.shards.iter().map(Reference::places).collect();
            self.call(&call).await?;
            self.compare().await?;
            let after: Vec<_> = self.shards.iter().map(Reference::places).collect();
            // A second move may move more; all else must find that it was done.
            if before != after && !matches!(call, Call::Move(_)) {
                let text = "doing it again changed where messages are";
                return Err(Stop::Violation(text.to_owned()));
            }
        }
        Ok(())
    }

    /// Turns a step into a call; does at once what is no call of a script.
    async fn choose(&mut self, what: &What) -> Result<Option<Call>, Stop> {
        let clock = self.relay.now().get();
        Ok(Some(match what {
            What::Send(items) => {
                let messages = items.iter().filter(|item| !self.lost_its_payload(item));
                let messages = messages.map(|item| self.message(item));
                Call::Send(self.by_shard(messages.collect(), |message| &message.id))
            }
            What::Move { batch } => Call::Move(*batch),
            What::Read { consumer, count } => {
                self.read(CONSUMERS[*consumer], *count).await?;
                return Ok(None);
            }
            What::Settle { items, stale } => {
                let found = items
                    .iter()
                    .filter_map(|(id, ending)| self.settlement(id, *ending, *stale));
                Call::Settle(self.by_shard(found.collect(), |settlement| &settlement.id))
            }
            What::Renew(ids) => {
                self.renew(ids).await?;
                return Ok(None);
            }
            What::Age(ids) => {
                for delivery in self.shards.iter_mut().flat_map(|shard| &mut shard.stream) {
                    let chosen = ids.iter().any(|id| id == delivery.id.as_str());
                    if let (Holder::Held { aged, .. }, true) = (&mut delivery.holder, chosen) {
                        *aged = true;
                    }
                }
                return Ok(None);
            }
            What::Reclaim => Call::Reclaim,
            What::LosePayload(id) => {
                let id = lisa_tests::relay::id(id);
                let shard = self.relay.topic().shard_of(&id);
                let reference = &mut self.shards[usize::from(shard.get())];
                if reference.payload.remove(&id).is_some() {
                    let key = self.full_key(shard, "payload");
                    let () = self
                        .relay
                        .command(cmd("HDEL").arg(key).arg(id.as_str()))
                        .await;
                }
                return Ok(None);
            }
            What::RemoveConsumer(consumer) => {
                self.remove_consumer(CONSUMERS[*consumer]).await;
                return Ok(None);
            }
            What::DropConsumer(consumer) => Call::DropConsumer(CONSUMERS[*consumer]),
            What::Cancel(id) => Call::Cancel(lisa_tests::relay::id(id)),
            What::Reschedule(id, time) => {
                Call::Reschedule(lisa_tests::relay::id(id), self.when(*time))
            }
            What::Requeue { ids, outdated } => Call::Requeue(self.seen(ids, *outdated).await?),
            What::Purge { ids, outdated } => Call::Purge(self.seen(ids, *outdated).await?),
            What::PurgeOld => Call::PurgeOld,
            What::Clean => Call::Clean,
            What::Pause(paused) => Call::Pause(*paused),
            What::Clock(by) => {
                self.relay.step(*by);
                return Ok(None);
            }
            What::ClockToDue { before } => {
                let times = self.shards.iter().flat_map(|shard| {
                    let times = shard.waiting.values().chain(shard.retry.values());
                    times.copied().filter(|due| *due > clock + 1)
                });
                if let Some(due) = times.min() {
                    let early = i64::from(*before);
                    self.relay.step((due - clock) as i64 - early);
                }
                return Ok(None);
            }
            What::FlushScripts => {
                let () = self.relay.command(cmd("SCRIPT").arg("FLUSH")).await;
                return Ok(None);
            }
            What::Lookup(id) => Call::Lookup(lisa_tests::relay::id(id)),
        }))
    }

    fn message(&self, sent: &Sent) -> NewMessage {
        let mut message = lisa_tests::relay::message(&sent.id, self.when(sent.time));
        message.record.caller_id = sent.id.starts_with('c');
        message.record.max_attempts = sent.max_attempts;
        message.record.payload = format!("{} {}", sent.id, sent.nonce).into();
        message
    }

    /// Whether the message is somewhere without its payload. Sent again it would be there twice, which is left untried:
    /// Redis loses whole keys, never one field.
    fn lost_its_payload(&self, sent: &Sent) -> bool {
        let id = lisa_tests::relay::id(&sent.id);
        let shard = &self.shards[usize::from(self.relay.topic().shard_of(&id).get())];
        let stored = [&shard.waiting, &shard.retry].map(|zset| zset.contains_key(&id));
        let referenced = stored.contains(&true)
            || shard.garbage.contains_key(&id)
            || shard.on_stream(&id).is_some();
        referenced && !shard.payload.contains_key(&id)
    }

    fn when(&self, time: Time) -> When {
        match time {
            Time::After(delay) => When::After(ms(delay)),
            Time::At(offset) => When::At(self.relay.at(offset)),
        }
    }

    fn by_shard<T>(&self, items: Vec<T>, id: impl Fn(&T) -> &MessageId) -> Vec<(Shard, Vec<T>)> {
        let mut shards: BTreeMap<Shard, Vec<T>> = BTreeMap::new();
        for item in items {
            let shard = self.relay.topic().shard_of(id(&item));
            shards.entry(shard).or_default().push(item);
        }
        shards.into_iter().collect()
    }

    fn settlement(&self, id: &str, ending: Ending, stale: bool) -> Option<Settlement> {
        let id = lisa_tests::relay::id(id);
        let past = self.past.get(&id)?;
        let (entry, record) = &past[past.len().checked_sub(1 + usize::from(stale))?];
        let error = "it failed".to_owned();
        let verdict = match ending {
            Ending::Ack => Verdict::Ack,
            Ending::Retry(time) => Verdict::Retry {
                when: self.when(time),
                error,
            },
            Ending::Defer(time) => Verdict::Defer {
                when: self.when(time),
            },
            Ending::Reject => Verdict::Reject { error },
            Ending::Lost => Verdict::Lost,
        };
        Some(Settlement {
            entry: *entry,
            id,
            caller_id: record.caller_id,
            max_attempts: record.max_attempts.unwrap_or(3),
            verdict,
        })
    }

    /// Asks which of the ids are in garbage; `outdated` gives times that were never so.
    async fn seen(
        &mut self,
        ids: &[String],
        outdated: bool,
    ) -> Result<Vec<(MessageId, UnixMs)>, Stop> {
        let ids: Vec<_> = ids.iter().map(|id| lisa_tests::relay::id(id)).collect();
        let (broker, topic) = (self.relay.broker(), self.relay.topic());
        let mut seen = broker.in_garbage(topic, self.relay.group(), &ids).await?;
        let garbage = |id: &MessageId| {
            let shard = &self.shards[usize::from(topic.shard_of(id).get())];
            let buried = shard.garbage.get(id)?;
            Some((id.clone(), UnixMs::new(buried.time)))
        };
        same(
            "in_garbage",
            seen.clone(),
            ids.iter().filter_map(garbage).collect(),
        )?;
        for (_, time) in seen.iter_mut().filter(|_| outdated) {
            *time = UnixMs::new(time.get() - 1);
        }
        Ok(seen)
    }

    /// Reads on every shard, and fetches what was read.
    async fn read(&mut self, consumer: &str, count: usize) -> Result<(), Stop> {
        let topic = self.relay.topic();
        for shard in topic.shards() {
            let reference = &mut self.shards[usize::from(shard.get())];
            let expected = reference.read(consumer, count);
            if expected.is_empty() {
                continue;
            }
            let read = self.relay.read_as(shard, consumer, count).await;
            let got: Vec<_> = read.iter().map(delivery).collect();
            let expected_fields: Vec<_> = expected.iter().map(fields).collect();
            same("read", got, expected_fields)?;
            let ids: Vec<_> = expected.iter().map(|d| d.id.clone()).collect();
            let records = self.relay.broker().records(topic, shard, &ids).await?;
            let stored = ids.iter().map(|id| reference.payload.get(id));
            let stored: Vec<_> = stored
                .map(|record| record.map(|record| encoded(record).into()))
                .collect();
            same("records", records, stored)?;
            for (id, read) in ids.into_iter().zip(read) {
                let record = reference.payload.get(&id).cloned().unwrap_or_default();
                let past = self.past.entry(id).or_default();
                past.push((read.attempt.entry, record));
            }
        }
        Ok(())
    }

    async fn renew(&mut self, ids: &[String]) -> Result<(), Stop> {
        let topic = self.relay.topic();
        for shard in topic.shards() {
            let reference = &mut self.shards[usize::from(shard.get())];
            for name in CONSUMERS {
                let mut entries = Vec::new();
                for delivery in &mut reference.stream {
                    let chosen = ids.iter().any(|id| id == delivery.id.as_str());
                    let Holder::Held {
                        consumer,
                        started,
                        aged,
                    } = &mut delivery.holder
                    else {
                        continue;
                    };
                    if chosen && consumer == name {
                        (*started, *aged) = (true, false);
                        entries.extend(delivery.entry);
                    }
                }
                let held = self
                    .relay
                    .broker()
                    .renew(topic, shard, self.relay.group(), name, &entries)
                    .await?;
                same("renew", held, entries)?;
            }
        }
        Ok(())
    }

    async fn remove_consumer(&mut self, name: &str) {
        for shard in self.relay.topic().shards() {
            let reference = &mut self.shards[usize::from(shard.get())];
            for delivery in &mut reference.stream {
                if matches!(&delivery.holder, Holder::Held { consumer, .. } if consumer == name) {
                    delivery.holder = Holder::Unheld;
                }
            }
            reference.consumers.remove(name);
            let mut remove = cmd("XGROUP");
            remove
                .arg("DELCONSUMER")
                .arg(self.full_key(shard, "ready:default"));
            let _: u64 = self.relay.command(remove.arg("default").arg(name)).await;
        }
    }

    /// Sets the idle time of every delivery to what the reference says, all in one step.
    async fn set_idle(&self) {
        for shard in self.relay.topic().shards() {
            for delivery in &self.shards[usize::from(shard.get())].stream {
                let (Holder::Held { consumer, aged, .. }, Some(entry)) =
                    (&delivery.holder, delivery.entry)
                else {
                    continue;
                };
                let mut claim = cmd("XCLAIM");
                claim
                    .arg(self.full_key(shard, "ready:default"))
                    .arg("default");
                claim
                    .arg(consumer)
                    .arg(0)
                    .arg(entry.to_string())
                    .arg("IDLE");
                claim.arg(if *aged { 60_000 } else { 0 }).arg("JUSTID");
                let _: Vec<String> = self.relay.command(&claim).await;
                self.relay.clock_past(entry).await;
            }
        }
    }

    async fn call(&mut self, call: &Call) -> Result<(), Stop> {
        let (broker, topic) = (self.relay.broker(), self.relay.topic());
        let clock = self.relay.now().get();
        let (group, settings) = (self.relay.group(), topic.settings());
        let of = |id: &MessageId| usize::from(topic.shard_of(id).get());
        match call {
            Call::Send(sends) => {
                for (shard, messages) in sends {
                    let reference = &mut self.shards[usize::from(shard.get())];
                    let sent = broker.send(topic, *shard, messages).await?;
                    same("send", sent, reference.send(clock, messages))?;
                }
            }
            Call::Move(batch) => {
                for (shard, reference) in topic.shards().zip(&mut self.shards) {
                    let moved = broker.move_due(topic, shard, *batch, IDLE).await?;
                    same("move", moved, reference.move_due(clock, *batch, IDLE))?;
                }
            }
            Call::Settle(settles) => {
                for (shard, settlements) in settles {
                    let reference = &mut self.shards[usize::from(shard.get())];
                    let settled = broker.settle(topic, *shard, group, settlements).await?;
                    same("settle", settled, reference.settle(clock, settlements))?;
                }
            }
            Call::Reclaim => {
                let begun = Instant::now();
                self.set_idle().await;
                for (shard, reference) in topic.shards().zip(&mut self.shards) {
                    let report = broker.reclaim(topic, shard, group, true).await?;
                    if begun.elapsed() > STEADY {
                        return Err(Stop::Slow);
                    }
                    same("reclaim", report, reference.reclaim(clock, settings))?;
                }
            }
            Call::DropConsumer(name) => {
                for (shard, reference) in topic.shards().zip(&mut self.shards) {
                    let holds = |d: &Delivery| matches!(&d.holder, Holder::Held { consumer, .. } if consumer == name);
                    let held = reference.stream.iter().any(holds);
                    let dropped = broker.drop_consumer(topic, shard, group, name).await?;
                    same("drop_consumer", dropped, !held)?;
                    if !held {
                        reference.consumers.remove(*name);
                    }
                }
            }
            Call::Cancel(id) => {
                let cancelled = broker.cancel(topic, id).await?;
                same("cancel", cancelled, self.shards[of(id)].cancel(clock, id))?;
            }
            Call::Reschedule(id, when) => {
                let rescheduled = broker.reschedule(topic, id, *when).await?;
                let expected = self.shards[of(id)].reschedule(clock, id, *when);
                same("reschedule", rescheduled, expected)?;
            }
            Call::Requeue(seen) => {
                let requeued = broker.requeue(topic, group, seen).await?;
                let parts = self.by_shard(seen.clone(), |(id, _)| id);
                let expected = parts.iter().map(|(shard, seen)| {
                    self.shards[usize::from(shard.get())].requeue(clock, seen)
                });
                same("requeue", requeued, expected.sum())?;
            }
            Call::Purge(seen) => {
                let purged = broker.purge(topic, group, seen).await?;
                let parts = self.by_shard(seen.clone(), |(id, _)| id);
                let expected = parts
                    .iter()
                    .map(|(shard, seen)| self.shards[usize::from(shard.get())].purge(clock, seen));
                same("purge", purged, expected.sum())?;
            }
            Call::PurgeOld => {
                for (shard, reference) in topic.shards().zip(&mut self.shards) {
                    let purged = broker.purge_old(topic, shard, group).await?;
                    let max_age = settings.garbage.max_age;
                    same("purge_old", purged, reference.purge_old(clock, max_age))?;
                }
            }
            Call::Clean => {
                for (shard, reference) in topic.shards().zip(&mut self.shards) {
                    let cleaned = broker.clean(topic, shard, group, None).await?;
                    same(
                        "clean",
                        (cleaned.last, cleaned.more_tombstones),
                        (None, false),
                    )?;
                    reference.clean(clock, settings.dedup_window);
                }
            }
            Call::Pause(paused) => {
                let changed = broker.pause(topic, *paused).await?;
                let shards = self.shards.iter_mut();
                let expected: Vec<_> = shards.map(|shard| shard.pause(*paused)).collect();
                same("pause", changed, expected.contains(&true))?;
            }
            Call::Lookup(id) => {
                let found = match broker.lookup(topic, id).await? {
                    Found::Stored { listed, record, .. } => Found::Stored {
                        listed,
                        record,
                        details: Box::default(),
                    },
                    unknown => unknown,
                };
                same("lookup", found, self.shards[of(id)].lookup(id))?;
            }
        }
        Ok(())
    }

    fn full_key(&self, shard: Shard, what: &str) -> String {
        let namespace = self.relay.broker().namespace();
        format!("{namespace}:{}", self.relay.short_key(shard.get(), what))
    }
}

type Fields = (Option<MessageId>, Option<EntryId>, u32, u64, u32);

fn delivery(read: &Read) -> Fields {
    let attempt = &read.attempt;
    let due = attempt.due.get();
    (
        read.id.clone(),
        Some(attempt.entry),
        attempt.number,
        due,
        attempt.crashes,
    )
}

fn fields(delivery: &Delivery) -> Fields {
    let Delivery {
        id,
        attempt,
        due,
        crashes,
        entry,
        ..
    } = delivery;
    (Some(id.clone()), *entry, *attempt, *due, *crashes)
}
