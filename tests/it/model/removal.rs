//! The end of the topic and its return: the calls that remove it, and those that come too late.

use super::calls::Call;
use super::check::declared;
use super::reference::{Reference, Refused, Rules};
use super::run::{IDLE, Run, Stop, same};
use super::steps::{CONSUMERS, Step, What};
use lisa_core::broker::{
    Broker, BrokerError, Declare, ReclaimReport, Removal, ShardRemoval, TopicHandle,
};
use lisa_core::topic::{Shard, TopicSettings};
use lisa_tests::relay::ms;
use lisa_tests::snapshot::{Content, Text};
use redis::cmd;
use std::collections::BTreeMap;
use std::time::Duration;

/// Processes that are late after each removal, half of which know that it has begun.
const LATE: usize = 16;
/// The time for which a removal is remembered.
const REMEMBERED_FOR: Duration = Duration::from_hours(24);
const UPDATE: Declare = Declare::Update;

/// Separates the refusals of a topic that is being removed, or was, from other errors.
pub(super) fn refused<T>(answer: Result<T, BrokerError>) -> Result<Result<T, Refused>, Stop> {
    Ok(Err(match answer {
        Ok(answer) => return Ok(Ok(answer)),
        Err(BrokerError::BeingRemoved(_)) => Refused::BeingRemoved,
        Err(BrokerError::Partly(error)) if matches!(*error, BrokerError::BeingRemoved(_)) => {
            Refused::Partly
        }
        Err(BrokerError::ShardGone { .. }) => Refused::ShardGone,
        Err(BrokerError::UnknownTopic(_)) => Refused::Unknown,
        Err(BrokerError::Epoch { there, .. }) => Refused::Epoch(there),
        Err(error) => return Err(error.into()),
    }))
}

impl Run {
    /// Returns whether the topic is gone: its first shard goes last.
    pub(super) fn is_gone(&self) -> bool {
        self.shards[0].is_gone
    }

    /// The shards that are not gone.
    pub(super) fn there(&mut self) -> impl Iterator<Item = &mut Reference> {
        self.shards.iter_mut().filter(|shard| !shard.is_gone)
    }

    /// Returns the process that does a step, if a late one does. While the topic is there, it makes no call about a group: it may
    /// not know the group yet.
    pub(super) fn late_process(&mut self, step: &Step) -> Option<Broker> {
        let can_be_late = match &step.what {
            What::Send(_)
            | What::Move { .. }
            | What::Cancel(_)
            | What::Reschedule(..)
            | What::Lookup(_)
            | What::Pause(_)
            | What::Join
            | What::Declare
            | What::Configure(_)
            | What::RemoveTopic(..)
            | What::RemoveShards(_)
            | What::Reshard => true,
            What::Clock(_) | What::ClockToDue { .. } | What::Age(_) => false,
            What::LosePayload(_) | What::RemoveConsumer(_) | What::FlushScripts => false,
            _ => self.is_gone(),
        };
        let late = self.late.pop_if(|_| step.late && can_be_late)?;
        late.set_virtual_now(self.relay.now());
        Some(late)
    }

    /// Adds processes that know the topic as it is now.
    async fn add_late(&mut self) -> Result<(), Stop> {
        for _ in 0..LATE / 2 {
            let broker = self.relay.broker();
            let connection = broker.connection().clone();
            let late = Broker::new(connection, broker.namespace().clone(), ms(60_000), None);
            late.topic(self.relay.topic().name()).await?;
            self.late.push(late);
        }
        Ok(())
    }

    pub(super) async fn call_for_removal(&mut self, call: &Call) -> Result<(), Stop> {
        let (broker, name) = (self.broker(), self.relay.topic().name().clone());
        match call {
            Call::RemoveTopic(how, seen) => {
                let begins = !self.is_gone() && self.shards[0].removal.is_none();
                if begins {
                    self.late.clear();
                    self.add_late().await?;
                }
                let begun = broker.remove_topic(&name, *how, *seen).await;
                let expected = self.begin_removal(*how, *seen);
                same("remove_topic", refused(begun)?, expected)?;
                if begins && expected.is_ok() {
                    self.add_late().await?;
                    fastrand::Rng::with_seed(self.created).shuffle(&mut self.late);
                }
            }
            Call::RemoveShards(only) => {
                // A process that is late works with the topic as it knows it.
                let topic = match self.process {
                    Some(_) => broker.topic(&name).await,
                    None => broker.newest(&name).await,
                };
                let topic = match refused(topic)? {
                    Ok(topic) => topic,
                    Err(refusal) => {
                        let expected = self.is_gone().then_some(Refused::Unknown);
                        return same("remove_shard", Some(refusal), expected);
                    }
                };
                let all = (1..self.settings.shards).chain([0]);
                for shard in all.filter(|shard| only.is_none_or(|only| only == *shard)) {
                    let Some(expected) = self.remove_shard(&topic, shard) else {
                        continue;
                    };
                    let removed = broker.remove_shard(&topic, Shard::new(shard)).await?;
                    same("remove_shard", removed, expected)?;
                }
            }
            Call::Reshard(shards) => {
                let expected = match self.shards[0].removal {
                    _ if self.is_gone() => Err(Refused::Unknown),
                    Some(_) => Err(Refused::BeingRemoved),
                    None => Ok(()),
                };
                let resharded = broker.reshard(&name, *shards).await;
                same("reshard", refused(resharded.map(drop))?, expected)?;
            }
            _ => unreachable!("not about removal"),
        }
        Ok(())
    }

    fn begin_removal(&mut self, how: Removal, seen: Option<u64>) -> Result<Removal, Refused> {
        let first = &self.shards[0];
        let how = match first.removal {
            _ if first.is_gone => return Err(Refused::Unknown),
            Some(there) if there == how || there == Removal::Force => there,
            _ if seen.is_some_and(|seen| seen != first.epoch) => {
                return Err(Refused::Epoch(first.epoch));
            }
            _ => how,
        };
        for shard in &mut self.shards {
            shard.begin_removal(how);
        }
        Ok(how)
    }

    /// Removes a shard, for a manager that knows this topic. Returns nothing if it must not ask: it takes a new topic for the one
    /// that was removed, which is a bug to the script.
    fn remove_shard(&mut self, topic: &TopicHandle, shard: u16) -> Option<ShardRemoval> {
        let is_first = shard == 0;
        let others = self.shards.iter().skip(1);
        let others = others.filter(|shard| !shard.is_gone).count() as u64;
        if topic.removal().is_none() {
            return Some(ShardRemoval::Left(1));
        }
        let of_another_topic = self.is_gone() || topic.epoch() < self.created;
        if is_first && others > 0 {
            return Some(ShardRemoval::Left(others));
        } else if is_first && !self.is_gone() && self.shards[0].removal.is_none() {
            return None;
        } else if !is_first && of_another_topic {
            return Some(ShardRemoval::Gone);
        }
        let reference = &mut self.shards[usize::from(shard)];
        Some(match reference.unless_gone(Reference::remove) {
            Ok(left @ 1..) => ShardRemoval::Left(left),
            Ok(0) | Err(_) => ShardRemoval::Gone,
        })
    }

    /// Creates the topic again: a new one, whose epochs go on.
    pub(super) async fn create(&mut self, settings: &TopicSettings) -> Result<(), Stop> {
        let broker = self.broker();
        let (name, first) = (self.relay.topic().name(), &self.shards[0]);
        let epoch = first.epoch + 1;
        let created = broker.declare(name, settings, UPDATE).await?;
        same("epoch", (created.epoch(), created.removal()), (epoch, None))?;
        let names: Vec<_> = settings.groups.iter().map(ToString::to_string).collect();
        let reference = Reference::new(Rules::of(settings), &names);
        self.shards.fill(reference);
        self.shards[0].epoch = epoch;
        self.created = epoch;
        self.settings = settings.clone();
        self.watch.forget_times();
        let before = self.version;
        self.fixed = declared(&self.relay.snapshot().await);
        let conf = self.fixed.hash(&self.relay.short_key(0, "conf"));
        let left = ["removed", "last_epoch"].map(|field| conf.get(field.as_bytes()).cloned());
        same("fields of the record", left, [None, None])?;
        same("end of the topic", self.ms_left().await, -1)?;
        self.version = version_in(&conf);
        same("a newer version", self.version > before, true)
    }

    /// The time until the `conf` of the first shard ends, or -1.
    async fn ms_left(&self) -> i64 {
        self.relay
            .command(cmd("PTTL").arg(self.relay.key("conf")))
            .await
    }

    /// Makes a call for a topic that is gone, also to the shard that has no record of that: it answers that the topic is unknown.
    pub(super) async fn call_too_late(&mut self, call: &Call) -> Result<(), Stop> {
        let broker = self.broker();
        let answer = match broker.topic(self.relay.topic().name()).await {
            Ok(topic) => answer_too_late(&broker, &topic, call).await,
            Err(error) => Err(error),
        };
        match refused(answer)? {
            Ok(Late::Nothing) | Err(Refused::Unknown) => Ok(()),
            answer => Err(Stop::Violation(format!(
                "the topic is gone: answered {answer:?}"
            ))),
        }
    }

    /// Reads and renews on shards that are gone.
    pub(super) async fn hold_too_late(&mut self) -> Result<(), Stop> {
        let (broker, consumer) = (self.broker(), CONSUMERS[0]);
        let Ok(topic) = broker.topic(self.relay.topic().name()).await else {
            return Ok(());
        };
        let refusal = match self.is_gone() {
            true => Refused::Unknown,
            false => Refused::BeingRemoved,
        };
        for (shard, reference) in topic.shards().zip(&self.shards) {
            for group in topic.groups().iter().filter(|_| reference.is_gone) {
                let entries = ["1-1".parse().expect("an entry")];
                let held = broker
                    .renew(&topic, shard, group, consumer, &entries)
                    .await?;
                same("late renew", held, Vec::new())?;
                let reader = broker.connection().any().reader().await;
                let mut reader = reader.expect("a reader");
                let read = broker.read(&mut reader, &topic, shard, group, consumer, 1, ms(1));
                let read = refused(read.await.map(|reads| reads.len()))?;
                same("late read", read, Err(refusal))?;
            }
        }
        Ok(())
    }

    /// Changes what is expected of each `conf` to what the removal leaves of it. Checks that the record ends.
    pub(super) async fn expect_record(
        &self,
        keys: &mut BTreeMap<String, Content>,
    ) -> Result<(), Stop> {
        for (index, reference) in (0..).zip(&self.shards) {
            let name = self.relay.short_key(index, "conf");
            if reference.is_gone {
                keys.remove(&name);
            }
        }
        if self.is_gone() {
            let record = [
                ("removed", "gone".to_owned()),
                ("last_epoch", self.shards[0].epoch.to_string()),
                ("version", self.version.to_string()),
            ];
            let record = record.map(|(field, value)| (Text::from(field), Text::from(&value[..])));
            let name = self.relay.short_key(0, "conf");
            keys.insert(name, Content::Hash(record.into()));
            let left = self.ms_left().await;
            let is_kept = (1..=REMEMBERED_FOR.as_millis() as i64).contains(&left);
            same("the record ends within a day", is_kept, true)?;
        }
        Ok(())
    }
}

/// The version of the settings in a `conf`.
pub(super) fn version_in(conf: &BTreeMap<Text, Text>) -> u64 {
    let version = conf.get(b"version".as_slice()).map(ToString::to_string);
    version.map_or(0, |version| version.parse().expect("ms"))
}

/// The answer of a call that found no topic.
#[derive(Debug)]
enum Late {
    /// There is nothing to do, or nothing to read.
    Nothing,
    Done,
}

impl Late {
    fn done<T>(_: T) -> Self {
        Self::Done
    }

    fn if_not(is_nothing: bool) -> Self {
        match is_nothing {
            true => Self::Nothing,
            false => Self::Done,
        }
    }
}

/// Makes a call with a topic that the process knows, and that is gone.
async fn answer_too_late(
    broker: &Broker,
    topic: &TopicHandle,
    call: &Call,
) -> Result<Late, BrokerError> {
    let last = topic.shards().last().expect("a shard");
    match call {
        Call::Send(sends) => match sends.last() {
            Some((shard, messages)) => broker.send(topic, *shard, messages).await.map(Late::done),
            None => Ok(Late::Nothing),
        },
        Call::Move(batch) => {
            let moved = broker.move_due(topic, last, *batch, IDLE).await;
            moved.map(Late::done)
        }
        Call::Cancel(id) => broker.cancel(topic, id, None).await.map(Late::done),
        Call::Reschedule(id, when) => {
            let rescheduled = broker.reschedule(topic, id, None, *when).await;
            rescheduled.map(Late::done)
        }
        Call::Lookup(id) => broker.lookup(topic, id, None).await.map(Late::done),
        Call::Pause(paused) => broker.pause(topic, *paused).await.map(Late::done),
        Call::Join(group) => broker.join(topic, group).await.map(Late::done),
        // A manager's way to bring a topic back that was lost.
        Call::PurgeOld => {
            let declared = broker.redeclare_lost().await?;
            Ok(Late::if_not(declared.is_empty()))
        }
        _ => answer_about_group(broker, topic, last, call).await,
    }
}

async fn answer_about_group(
    broker: &Broker,
    topic: &TopicHandle,
    shard: Shard,
    call: &Call,
) -> Result<Late, BrokerError> {
    let (any, groups) = (topic.groups().first(), topic.groups());
    match (call, any) {
        (Call::Settle(group, settles), _) if groups.contains(group) => match settles.last() {
            Some((shard, items)) => {
                let settled = broker.settle(topic, *shard, group, items).await;
                settled.map(Late::done)
            }
            None => Ok(Late::Nothing),
        },
        (Call::Requeue(group, seen), _) if groups.contains(group) => {
            broker.requeue(topic, group, seen).await.map(Late::done)
        }
        (Call::Purge(group, seen), _) if groups.contains(group) => {
            broker.purge(topic, group, seen).await.map(Late::done)
        }
        (Call::PauseGroup(group, paused), _) if groups.contains(group) => {
            let changed = broker.pause_group(topic, group, *paused).await;
            changed.map(Late::done)
        }
        (Call::Retire(group, how), _) if groups.contains(group) => {
            broker.retire(topic, group, *how).await.map(Late::done)
        }
        (Call::AckLate(group, id), _) if groups.contains(group) => {
            let late = broker.ack_late(topic, shard, group, id).await;
            late.map(Late::done)
        }
        (Call::Hide(group, id, delay), _) if groups.contains(group) => {
            let hidden = broker.hide(topic, shard, group, id, *delay).await;
            hidden.map(Late::done)
        }
        (Call::RemoveGroup(group, batch), _) if groups.contains(group) => {
            let removed = broker.remove_group_by(topic, shard, group, *batch).await;
            removed.map(Late::done)
        }
        (Call::Clean, Some(group)) => {
            let forgotten = broker.forget(topic, shard).await?;
            if forgotten.dropped + forgotten.left > 0 {
                return Ok(Late::Done);
            }
            let cleaned = broker.clean(topic, shard, group, None).await;
            cleaned.map(Late::done)
        }
        (Call::Reclaim, Some(group)) => {
            let report = broker.reclaim(topic, shard, group, true).await?;
            Ok(Late::if_not(report == ReclaimReport::default()))
        }
        (Call::DropConsumer(name), Some(group)) => {
            // It is gone, as was asked for.
            broker.drop_consumer(topic, shard, group, name).await?;
            Ok(Late::Nothing)
        }
        // The process knows no such group.
        _ => Ok(Late::Nothing),
    }
}
