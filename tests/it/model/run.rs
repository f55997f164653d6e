//! One run: each step is done on Redis and in the reference, and their answers are compared; `check` does the rest.

use super::calls::Call;
use super::mix::Mix;
use super::reference::{Reference, Rules};
use super::steps::{CONSUMERS, Ending, Seen, Sent, Step, Time, What};
use super::watch::Watch;
use lisa_core::broker::{
    Broker, BrokerError, Declare, MAX_GENERAL_BATCH, Settlement, TopicHandle, Verdict,
};
use lisa_core::message::{EntryId, Expiry, MessageId, Options, PreparedMessage, Record};
use lisa_core::redis::{Connection, Reader};
use lisa_core::retry::RetryPolicy;
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::{Group, Shard, TopicSettings};
use lisa_tests::relay::{id, ms};
use lisa_tests::{Relay, Server, Snapshot};
use redis::cmd;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// The time after which a mover looks again if nothing becomes due before.
pub(super) const IDLE: Duration = ms(5000);
/// Idle times are real times: a reclaim that came later than this after they were set proves nothing.
pub(super) const STEADY: Duration = ms(900);

/// The reason why a run ended early.
pub(super) enum Stop {
    /// Redis and the reference differ.
    Violation(String),
    /// The machine was too slow for this run to show anything.
    Slow,
}

impl From<BrokerError> for Stop {
    fn from(error: BrokerError) -> Self {
        Self::Violation(error.to_string())
    }
}

/// Messages in garbage, and since when.
pub(super) type InGarbage = Vec<(MessageId, UnixMs)>;

/// A message of a shard in a group.
type Delivered = (usize, Group, MessageId);

pub(super) struct Run {
    pub(super) relay: Relay,
    pub(super) shards: Vec<Reference>,
    /// The registry and each `conf` as declared.
    pub(super) fixed: Snapshot,
    pub(super) watch: Watch,
    /// The settings as they were declared last.
    pub(super) settings: TopicSettings,
    /// The names of the groups of the run, also of those that are gone.
    pub(super) groups: Vec<Group>,
    /// The epoch at which the topic was created.
    pub(super) created: u64,
    /// The version of its settings.
    pub(super) version: u64,
    /// Processes that know the topic as it was when a removal began, and have noticed nothing since.
    pub(super) late: Vec<Broker>,
    /// The one of them that does this step, if one does.
    pub(super) process: Option<Broker>,
    large_steps_back: bool,
    pub(super) reader: Option<Reader>,
    /// True if some of the last send was not stored: it exceeded a limit, or another message stands for it.
    pub(super) unstored: bool,
    /// The ids of all messages that were sent.
    pub(super) sent: BTreeSet<MessageId>,
    /// The entries that each message was read from in each group, and the record it had then.
    pub(super) past: BTreeMap<Delivered, Vec<(EntryId, Record)>>,
}

pub(super) fn same<T: PartialEq + Debug>(what: &str, got: T, expected: T) -> Result<(), Stop> {
    if got == expected {
        return Ok(());
    }
    let text = format!("{what}: answered {got:?}, expected {expected:?}");
    Err(Stop::Violation(text))
}

impl Run {
    pub(super) async fn start(server: &Server, connection: &Connection, mix: &Mix) -> Self {
        let relay = Relay::on(server, connection, "model", mix.settings.clone()).await;
        let () = relay.command(cmd("FLUSHALL").arg("SYNC")).await;
        let topic = relay.topic().name();
        let declared = relay
            .broker()
            .declare(topic, &mix.settings, Declare::Create);
        declared.await.expect("declared");
        let fixed = relay.snapshot().await;
        let groups = mix.groups();
        let names = mix.settings.groups.iter();
        let names: Vec<_> = names.map(ToString::to_string).collect();
        let reference = Reference::new(Rules::of(&mix.settings), &names);
        Self {
            relay,
            shards: vec![reference; usize::from(mix.settings.shards)],
            fixed,
            watch: Watch::default(),
            groups,
            created: 1,
            version: 0,
            late: Vec::new(),
            process: None,
            settings: mix.settings.clone(),
            large_steps_back: mix.large_steps_back,
            reader: None,
            sent: BTreeSet::new(),
            unstored: false,
            past: BTreeMap::new(),
        }
    }

    /// The process that does this step.
    pub(super) fn broker(&self) -> Broker {
        let process = self.process.as_ref();
        process.unwrap_or(self.relay.broker()).clone()
    }

    /// The newest handle of the topic: its groups change.
    pub(super) async fn topic(&self) -> Result<Arc<TopicHandle>, Stop> {
        let name = self.relay.topic().name();
        Ok(self.broker().topic(name).await?)
    }

    /// Runs a step, perhaps twice, and compares after each time.
    pub(super) async fn step(&mut self, step: &Step) -> Result<(), Stop> {
        self.process = self.late_process(step);
        let done = self.step_of_process(step).await;
        if self.process.take().is_some() {
            // The usual one reads the registry now and then.
            self.relay.broker().refresh().await?;
        }
        done
    }

    async fn step_of_process(&mut self, step: &Step) -> Result<(), Stop> {
        let Some(call) = self.choose(&step.what).await? else {
            return self.compare().await;
        };
        self.unstored = false;
        self.call(&call).await?;
        self.compare().await?;
        let is_cut = self.shards.iter().any(Reference::is_cut);
        if step.twice {
            let before: Vec<_> = self.shards.iter().map(Reference::states).collect();
            self.call(&call).await?;
            self.compare().await?;
            let after: Vec<_> = self.shards.iter().map(Reference::states).collect();
            // A repeat may have more to do in these cases. A second move or removal may take more; a second reschedule
            // gets a new arrival. An item refused as too much may find room, and one that another message stood for may
            // find that it lapsed. The follow-up work of a call may be too much for one. Every other repeat must find
            // that it was done.
            let goes_on = matches!(
                call,
                Call::Move(_)
                    | Call::Reschedule(..)
                    | Call::RemoveGroup(..)
                    | Call::RemoveShards(_)
            );
            if before != after && !(goes_on || self.unstored || is_cut) {
                let text = "doing it again changed where messages are";
                return Err(Stop::Violation(text.to_owned()));
            }
        }
        Ok(())
    }

    /// Turns a step into a call; performs at once a step that is no call of a script.
    async fn choose(&mut self, what: &What) -> Result<Option<Call>, Stop> {
        let clock = self.relay.now().get();
        Ok(Some(match what {
            What::Send(items) => {
                let messages = items.iter().map(|item| self.message(item));
                let mut sends: BTreeMap<Shard, Vec<PreparedMessage>> = BTreeMap::new();
                for message in messages {
                    let shard = self.relay.topic().shard_of_message(&message);
                    if !self.lost_its_payload(shard, &message.id) {
                        sends.entry(shard).or_default().push(message);
                    }
                }
                Call::Send(sends.into_iter().collect())
            }
            What::Move { batch } => Call::Move(*batch),
            What::Read { .. } | What::Renew(..) | What::Lease { .. } if self.is_gone() => {
                self.hold_too_late().await?;
                return Ok(None);
            }
            What::Read {
                consumer,
                count,
                each,
            } => {
                self.read(CONSUMERS[*consumer], *count, *each).await?;
                return Ok(None);
            }
            What::Settle {
                group,
                items,
                stale,
            } => {
                let group = &self.groups[*group];
                let topic = self.relay.topic();
                let mut settles = Vec::new();
                for shard in topic.shards() {
                    let found = items.iter().filter_map(|(id, ending)| {
                        self.settlement(shard, group, id, *ending, *stale)
                    });
                    let found: Vec<_> = found.collect();
                    if !found.is_empty() {
                        settles.push((shard, found));
                    }
                }
                Call::Settle(group.clone(), settles)
            }
            What::Renew(ids, mark) => {
                self.renew(ids, *mark).await?;
                return Ok(None);
            }
            What::Lease {
                ids,
                consumer,
                lease,
            } => {
                self.lease(ids, CONSUMERS[*consumer], *lease).await?;
                return Ok(None);
            }
            What::Age(ids) => {
                self.age(ids);
                return Ok(None);
            }
            What::Reclaim => Call::Reclaim,
            What::AckLate(group, name) => {
                let group = self.groups[*group].clone();
                Call::AckLate(group, id(name))
            }
            What::Hide(group, name, delay) => {
                let group = self.groups[*group].clone();
                Call::Hide(group, id(name), ms(*delay))
            }
            What::LosePayload(name) => {
                self.lose_payload(&id(name)).await;
                return Ok(None);
            }
            What::RemoveConsumer(consumer) => {
                self.remove_consumer(CONSUMERS[*consumer]).await;
                return Ok(None);
            }
            What::DropConsumer(consumer) => Call::DropConsumer(CONSUMERS[*consumer]),
            What::Cancel(name) => Call::Cancel(id(name)),
            What::Reschedule(name, time) => Call::Reschedule(id(name), self.when(*time)),
            What::Requeue {
                group,
                ids,
                outdated,
            } => {
                let group = &self.groups[*group];
                Call::Requeue(group.clone(), self.seen(group, ids, *outdated).await?)
            }
            What::Purge {
                group,
                ids,
                outdated,
            } => {
                let group = &self.groups[*group];
                Call::Purge(group.clone(), self.seen(group, ids, *outdated).await?)
            }
            What::PurgeOld => Call::PurgeOld,
            What::Clean => Call::Clean,
            What::Pause(paused) => Call::Pause(*paused),
            What::PauseGroup(group, paused) => {
                Call::PauseGroup(self.groups[*group].clone(), *paused)
            }
            What::Retire(group, how) => Call::Retire(self.groups[*group].clone(), *how),
            What::RemoveGroup(group, batch) => {
                Call::RemoveGroup(self.groups[*group].clone(), *batch)
            }
            // The last one is that of the instance.
            What::Join => match self.groups.last() {
                Some(group) => Call::Join(group.clone()),
                None => return Ok(None),
            },
            What::Declare => Call::Declare(Box::new(self.settings.clone())),
            What::Configure(seed) => {
                let others = Mix::new(*seed, self.settings.shards).settings;
                let groups = self.settings.groups.clone();
                Call::Declare(Box::new(TopicSettings { groups, ..others }))
            }
            What::RemoveTopic(how, seen) => {
                let epoch = self.shards[0].epoch;
                let seen = seen.map(|seen| match seen {
                    Seen::Current => epoch,
                    Seen::Old => epoch - 1,
                });
                Call::RemoveTopic(*how, seen)
            }
            What::RemoveShards(only) => Call::RemoveShards(*only),
            What::Reshard => {
                let is_there = !self.is_gone() && self.shards[0].removal.is_none();
                Call::Reshard(self.settings.shards + u16::from(!is_there))
            }
            What::Clock(by) => {
                let held = self.shards.iter().filter_map(|shard| shard.last_time).max();
                let held = held.map_or(i64::MIN, |last| last as i64 - 1000 - clock as i64);
                let least = if self.large_steps_back {
                    i64::MIN
                } else {
                    held.min(0)
                };
                self.relay.step(*by.max(&least));
                return Ok(None);
            }
            What::ClockToDue { before } => {
                let times = self.shards.iter().flat_map(Reference::times);
                if let Some(due) = times.filter(|due| *due > clock + 1).min() {
                    let early = i64::from(*before);
                    self.relay.step((due - clock) as i64 - early);
                }
                return Ok(None);
            }
            What::FlushScripts => {
                let () = self.relay.command(cmd("SCRIPT").arg("FLUSH")).await;
                return Ok(None);
            }
            What::Lookup(name) => Call::Lookup(id(name)),
        }))
    }

    fn message(&self, sent: &Sent) -> PreparedMessage {
        let mut message = lisa_tests::relay::message(&sent.id, self.when(sent.time));
        message.record.caller_id = sent.id.starts_with('c');
        message.record.max_attempts = sent.max_attempts;
        message.record.retry = sent.retry.map(|delay| RetryPolicy::Fixed {
            delay: ms(delay),
            jitter: 0.0,
        });
        message.record.payload = format!("{} {}", sent.id, sent.nonce).into();
        message.options = Options {
            key: sent.key.parse().ok(),
            merge_key: sent.merge.parse().ok(),
            priority: sent.priority,
            expiry: sent.ttl.map(|ttl| match self.when(ttl) {
                When::After(ttl) => Expiry::After(ttl),
                When::At(at) => Expiry::At(at),
            }),
            replace: sent.replace.as_deref().map(id),
            even_if_cancelled: sent.nonce.is_multiple_of(4),
        };
        message
    }

    /// Returns whether the message is in some state without its payload. A repeated send would store it twice, which is
    /// left untested: Redis loses whole keys, never one field.
    fn lost_its_payload(&self, shard: Shard, id: &MessageId) -> bool {
        let message = self.shards[usize::from(shard.get())].messages.get(id);
        message.is_some_and(|message| message.record.is_none())
    }

    fn when(&self, time: Time) -> When {
        match time {
            Time::After(delay) => When::After(ms(delay)),
            Time::At(offset) => When::At(self.relay.at(offset)),
        }
    }

    fn settlement(
        &self,
        shard: Shard,
        group: &Group,
        name: &str,
        ending: Ending,
        stale: bool,
    ) -> Option<Settlement> {
        let id = id(name);
        let delivered = (usize::from(shard.get()), group.clone(), id.clone());
        let past = self.past.get(&delivered)?;
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
            Ending::HandBack(time) => Verdict::HandBack {
                when: self.when(time),
            },
            Ending::Reject => Verdict::Reject { error },
            Ending::Expired => Verdict::Expired,
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

    /// Asks which of the ids are in a group's garbage; `outdated` uses times that were never valid.
    async fn seen(&self, group: &Group, ids: &[String], outdated: bool) -> Result<InGarbage, Stop> {
        if self.is_gone() {
            // They were seen before.
            let now = self.relay.now();
            return Ok(ids.iter().map(|name| (id(name), now)).collect());
        }
        let topic = self.topic().await?;
        if self.shards[0].place_of(group).is_none() {
            return Ok(InGarbage::new());
        }
        let ids: Vec<_> = ids.iter().map(|name| id(name)).collect();
        let mut seen = self.broker().in_garbage(&topic, group, &ids).await?;
        let mut expected = InGarbage::new();
        for id in &ids {
            for shard in topic.shards_of(id, None) {
                let reference = &self.shards[usize::from(shard.get())];
                let Some(g) = reference.place_of(group) else {
                    continue;
                };
                let in_garbage = reference.groups[g].in_garbage(id);
                expected.extend(
                    in_garbage.map(|in_garbage| (id.clone(), UnixMs::new(in_garbage.time))),
                );
            }
        }
        same("in_garbage", &seen, &expected)?;
        for (_, time) in seen.iter_mut().filter(|_| outdated) {
            *time = UnixMs::new(time.get() - 1);
        }
        Ok(seen)
    }

    /// Returns the calls of a change of garbage: the shard, and up to [`MAX_GENERAL_BATCH`] messages. Each shard that an id may be
    /// on is asked about it, even if it was seen on another.
    pub(super) fn calls_by_shard(&self, seen: &InGarbage) -> Vec<(usize, InGarbage)> {
        let mut shards: BTreeMap<usize, InGarbage> = BTreeMap::new();
        for item in seen {
            for shard in self.relay.topic().shards_of(&item.0, None) {
                let shard = usize::from(shard.get());
                if !self.shards[shard].is_gone {
                    shards.entry(shard).or_default().push(item.clone());
                }
            }
        }
        let calls = shards.iter().flat_map(|(shard, seen)| {
            let calls = seen.chunks(MAX_GENERAL_BATCH);
            calls.map(|seen| (*shard, seen.to_vec()))
        });
        calls.collect()
    }
}
