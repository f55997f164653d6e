//! Forwards garbage (dead letters) of topics that name a `garbage.topic`: each message is sent to that topic and then purged.
//!
//! The id of what is sent is derived from the message and the time at which it went to garbage. So a manager that is killed between
//! the two steps, or two managers at a time, send it once. What cannot be sent stays in garbage.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lisa_core::broker::{Broker, BrokerError, GarbagePosition, InGarbage, TopicHandle};
use lisa_core::message::{
    Headers, MessageId, NewId, Options, OrderingKey, PreparedMessage, Record, forwarded,
    visible_ascii,
};
use lisa_core::redis::Extra;
use lisa_core::state::SendOutcome;
use lisa_core::sync::Mutex;
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::{Group, Shard, Topic};
use lisa_service::metrics::Metrics;
use lisa_service::shutdown::Shutdown;
use lisa_service::supervise::Heartbeat;
use tokio::time::{Instant, sleep};

use crate::assignment::{AssignedShard, Assignments};
use crate::jobs::Tools;
use crate::wakes::Wakes;

/// The interval between looks at the garbage of a group without a wake.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The interval between looks for wakes, in memory.
const TICK: Duration = Duration::from_millis(20);
/// The time until garbage that stayed is looked at again, such as that whose hooks had yet to run.
const AGAIN: Duration = Duration::from_secs(2);
/// The time until messages that the other topic does not take are read again.
const UNFIT_AGAIN: Duration = Duration::from_secs(60);
/// The number of messages that one step forwards.
const PAGE: usize = 100;
/// The number of steps for a group in one round: the other groups must not wait for a large one.
const STEPS: usize = 20;
/// The number of groups that are handled at a time.
const GROUPS_AT_A_TIME: usize = 8;
/// The most bytes of records that are read at once, unless a single one is larger.
const MAX_READ: usize = 4 * 1024 * 1024;
/// The number of times that a message is forwarded. Topics can name each other.
const MAX_HOPS: u32 = 8;
/// The shortest time between two log lines about a topic whose garbage cannot be forwarded.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Forwards the garbage of the shards that a manager serves. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Forwarder {
    broker: Broker,
    assignments: Assignments,
    metrics: Metrics,
    /// The wakes that the movers received. What moves a message to garbage of such a topic sends one.
    wakes: Arc<Wakes>,
    /// The times of the last looks.
    looked: Arc<Mutex<HashMap<(Topic, Shard), Instant>>>,
    /// The positions up to which garbage was looked at.
    passes: Arc<Mutex<Passes>>,
    /// The times of the last log lines.
    logged: Arc<Mutex<BTreeMap<Topic, Instant>>>,
}

/// The passes by place.
type Passes = HashMap<(Topic, Shard, Group), Pass>;

/// A pass through the garbage of a group. It goes on where the last look ended, since new garbage is behind it.
#[derive(Clone, Copy, Debug)]
struct Pass {
    position: GarbagePosition,
    /// The time of the next pass, for what has stayed.
    again: Instant,
}

/// The reason why messages stay in garbage.
#[derive(Debug, thiserror::Error)]
enum ForwardError {
    #[error("the topic {0} has reached its max_messages or max_bytes")]
    Full(Topic),
    #[error(
        "{0} messages are larger than max_payload of the topic {1}, or were forwarded {MAX_HOPS} times"
    )]
    Unfit(usize, Topic),
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// The garbage of a group on a shard, and the topic that gets it.
struct Place<'a> {
    topic: &'a TopicHandle,
    shard: Shard,
    group: &'a Group,
    to: Arc<TopicHandle>,
}

impl Pass {
    fn begin() -> Self {
        Self {
            position: GarbagePosition {
                from: UnixMs::default(),
                skip: 0,
            },
            again: Instant::now() + AGAIN,
        }
    }
}

impl Forwarder {
    pub(crate) fn new(tools: &Tools) -> Self {
        Self {
            broker: tools.broker.clone(),
            assignments: tools.assignments.clone(),
            metrics: tools.metrics.clone(),
            wakes: tools.wakes.clone(),
            looked: Arc::default(),
            passes: Arc::default(),
            logged: Arc::default(),
        }
    }

    /// Forwards until the shutdown begins.
    pub(crate) async fn keep(
        &self,
        heartbeat: Heartbeat,
        shutdown: &Shutdown,
    ) -> Result<(), Infallible> {
        heartbeat.unlimited();
        let rounds = async {
            loop {
                self.round().await;
                sleep(TICK).await;
            }
        };
        let _ = shutdown.draining().run_until_cancelled(rounds).await;
        Ok(())
    }

    async fn round(&self) {
        let assignment = self.assignments.now();
        let shards = assignment.shards.iter();
        let forwarding =
            shards.filter(|assigned| assigned.topic.settings().garbage.topic.is_some());
        let due = forwarding.filter(|assigned| self.begin_look(assigned));
        let groups = due.flat_map(|assigned| {
            let to = assigned.topic.settings().garbage.topic.clone();
            let groups = assigned.topic.groups().iter();
            groups.filter_map(move |group| Some((assigned, group, to.clone()?)))
        });
        let calls = groups.map(|(assigned, group, to)| self.forward(assigned, group, to));
        let calls: Vec<_> = calls.collect();
        let mut all = stream::iter(calls).buffer_unordered(GROUPS_AT_A_TIME);
        while let Some((topic, forwarded)) = all.next().await {
            let Err(error) = forwarded else { continue };
            let mut logged = self.logged.lock();
            let is_time = |at: &Instant| at.elapsed() >= LOG_EVERY;
            if logged.get(topic).is_none_or(is_time) {
                logged.insert(topic.clone(), Instant::now());
                tracing::warn!(%topic, %error, "cannot forward garbage; retrying");
            }
        }
        drop(all);
        self.looked
            .lock()
            .retain(|_, at| at.elapsed() < 10 * LOOK_EVERY);
        let old = Instant::now();
        self.passes.lock().retain(|_, pass| pass.again >= old);
        let mut logged = self.logged.lock();
        logged.retain(|_, at| at.elapsed() < LOG_EVERY);
    }

    /// Returns whether it is time to look at a shard.
    fn begin_look(&self, assigned: &AssignedShard) -> bool {
        let mut looked = self.looked.lock();
        let now = Instant::now();
        let key = (assigned.topic.name().clone(), assigned.shard);
        let is_due = looked.get(&key).is_none_or(|at| {
            at.elapsed() >= LOOK_EVERY || self.wakes.since(assigned.channel(), (*at).into())
        });
        if is_due {
            looked.insert(key, now);
        }
        is_due
    }

    /// Forwards the garbage of a group on a shard.
    async fn forward<'a>(
        &self,
        assigned: &'a AssignedShard,
        group: &Group,
        to: Topic,
    ) -> (&'a Topic, Result<(), ForwardError>) {
        let (topic, shard) = (&*assigned.topic, assigned.shard);
        let forwarded = async {
            let key = (topic.name().clone(), shard, group.clone());
            let pass = self.passes.lock().get(&key).copied();
            let pass = pass.filter(|pass| Instant::now() < pass.again);
            let Pass {
                mut position,
                mut again,
            } = pass.unwrap_or_else(Pass::begin);
            let mut unfit = 0;
            for _ in 0..STEPS {
                let last = self.broker.now_at(topic, shard).plus(LOOK_EVERY);
                let page = self
                    .broker
                    .garbage_from(topic, shard, group, position, last, PAGE)
                    .await?;
                if page.is_empty() {
                    break;
                }
                let to = self.broker.topic(&to).await?;
                let place = Place {
                    topic,
                    shard,
                    group,
                    to,
                };
                let gone = self.forward_page(&place, &page, &mut unfit).await?;
                for message in page.iter().filter(|message| !gone.contains(&message.id)) {
                    position.pass(message);
                    position.skip += 1;
                }
                if unfit > 0 {
                    again = again.max(Instant::now() + UNFIT_AGAIN);
                }
                let pass = Pass { position, again };
                self.passes.lock().insert(key.clone(), pass);
                if page.len() < PAGE {
                    break;
                }
            }
            match unfit {
                0 => Ok(()),
                _ => Err(ForwardError::Unfit(unfit, to)),
            }
        };
        (topic.name(), forwarded.await)
    }

    /// Forwards messages, and returns those that have left garbage. Leaves those whose garbage hooks have yet to run.
    async fn forward_page(
        &self,
        place: &Place<'_>,
        page: &[InGarbage],
        unfit: &mut usize,
    ) -> Result<HashSet<MessageId>, ForwardError> {
        let Place {
            topic,
            shard,
            group,
            to,
        } = place;
        let ids: Vec<MessageId> = page.iter().map(|message| message.id.clone()).collect();
        let awaits = self.broker.awaits_garbage_hook(topic, *shard, group, &ids);
        let awaits = awaits.await?;
        let ready = page.iter().zip(awaits).filter(|(_, awaits)| !awaits);
        let ready: Vec<&InGarbage> = ready.map(|(message, _)| message).collect();
        let ids: Vec<MessageId> = ready.iter().map(|message| message.id.clone()).collect();
        let sizes = self.broker.record_sizes(topic, *shard, &ids).await?;
        let (mut gone, mut is_full) = (HashSet::new(), false);
        let mut rest = &ready[..];
        for sizes in batches(&sizes) {
            let (batch, others) = rest.split_at(sizes);
            rest = others;
            let ids: Vec<MessageId> = batch.iter().map(|message| message.id.clone()).collect();
            let records = self.broker.records(topic, *shard, &ids, Extra::Large);
            let keys = self.broker.ordering_keys(topic, *shard, &ids);
            let (records, keys) = tokio::try_join!(records, keys)?;
            let mut messages: BTreeMap<Shard, Vec<(&InGarbage, PreparedMessage)>> = BTreeMap::new();
            for ((message, record), key) in batch.iter().zip(records).zip(keys) {
                // What is damaged stays for the doctor.
                let record = record.and_then(|record| Record::decode(record).ok());
                match record.and_then(|record| place.message(message, record, key)) {
                    Some(forwarded) => {
                        let shard = to.shard_of_message(&forwarded);
                        messages
                            .entry(shard)
                            .or_default()
                            .push((message, forwarded));
                    }
                    None => *unfit += 1,
                }
            }
            for (shard, messages) in messages {
                let (from, messages): (Vec<_>, Vec<_>) = messages.into_iter().unzip();
                let accepted = self.broker.send(to, shard, &messages).await?;
                let sent = from.iter().zip(&accepted);
                let sent = sent.filter(|(_, accepted)| accepted.outcome != SendOutcome::Full);
                let seen = sent.map(|(message, _)| (message.id.clone(), message.time));
                let seen: Vec<_> = seen.collect();
                self.broker.purge(topic, group, &seen).await?;
                let count = seen.len() as u64;
                let (name, group) = (topic.name().as_str(), group.as_str());
                self.metrics
                    .forwarded(name, group, to.name().as_str(), count);
                is_full |= seen.len() < from.len();
                gone.extend(seen.into_iter().map(|(id, _)| id));
            }
            if is_full {
                return Err(ForwardError::Full(to.name().clone()));
            }
        }
        Ok(gone)
    }
}

/// Splits records with these sizes into batches, and returns the number of records of each.
fn batches(sizes: &[usize]) -> Vec<usize> {
    let (mut counts, mut bytes) = (Vec::new(), MAX_READ);
    for size in sizes {
        match counts.last_mut() {
            Some(count) if bytes + size <= MAX_READ => *count += 1,
            _ => {
                counts.push(1);
                bytes = 0;
            }
        }
        bytes += size;
    }
    counts
}

impl Place<'_> {
    /// Returns the message that is sent for one in garbage; `None` if the topic would not take it, or it has come far enough.
    fn message(
        &self,
        from: &InGarbage,
        mut record: Record,
        key: Option<OrderingKey>,
    ) -> Option<PreparedMessage> {
        let settings = self.to.settings();
        let hops = record.headers.get(forwarded::HOPS);
        let hops = hops.and_then(|hops| hops.parse().ok()).unwrap_or(0) + 1;
        if hops > MAX_HOPS || record.payload.len() as u64 > settings.max_payload.get() {
            return None;
        }
        let mut headers = Headers::default();
        let mut set = |name: &str, value: &str| {
            let set = headers.insert_any(name, value);
            debug_assert!(set.is_ok(), "{name}: {value}");
        };
        set(forwarded::TOPIC, self.topic.name().as_str());
        set(forwarded::GROUP, self.group.as_str());
        set(forwarded::ID, from.id.as_str());
        set(forwarded::AT, &from.time.to_string());
        set(forwarded::HOPS, &hops.to_string());
        if let Some(info) = &from.info {
            set(forwarded::REASON, info.reason.as_str());
            set(forwarded::ATTEMPTS, &info.attempts.to_string());
            set(forwarded::ERROR, &visible_ascii(&info.error));
        }
        forwarded::note_origin(&mut record.headers, self.topic.name(), &from.id);
        let of_message = record.headers.iter();
        for (name, value) in of_message.filter(|(name, _)| !name.starts_with(forwarded::PREFIX)) {
            // Headers that exceed the maximum number are omitted.
            let _ = headers.insert_any(name, value);
        }
        record.headers = headers;
        record.caller_id = true;
        // Attempts are those of the other topic.
        record.max_attempts = None;
        record.retry = None;
        let (topic, group) = (self.topic.name(), self.group);
        Some(PreparedMessage {
            id: MessageId::of_forward(topic, group, &from.id, from.time),
            new_id: NewId::default(),
            when: When::NOW,
            options: Options {
                key,
                ..Options::default()
            },
            record,
            durability: settings.durability,
        })
    }
}
