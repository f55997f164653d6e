//! The broker: one async method for each operation on Redis.
//!
//! It turns names and messages into keys and script calls, and replies into outcomes. It is the only caller of the
//! scripts. The roles decide when to call.

mod attempts;
mod audit;
mod change;
mod counters;
mod cursor;
mod deliver;
mod doctor;
mod durability;
mod ended_sessions;
mod error;
mod execute;
mod failures;
mod forecast;
mod garbage;
mod garbage_jobs;
mod groups;
mod history;
mod idle;
mod key_index;
mod list;
mod lookup;
mod ordering_key;
mod parked_keys;
mod probe;
mod pull;
mod reclaim;
mod records;
mod registry;
mod reply;
mod reshard;
mod restore;
mod scan;
mod schedules;
mod shards;
mod snapshot;
mod stats;
mod stored;
mod tail;
mod topic_handle;
mod workers;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use attempts::{FailedAttempt, FailedOutcome};
pub use audit::{AUDIT_KEPT, AUDIT_WITHIN, AuditEntry, Audited};
pub use counters::{COUNTERS, Counter};
pub use cursor::{After, Cursor, EntryPosition, InvalidCursor};
pub use deliver::{Read, ReaderId};
pub use doctor::{Checkup, Examination, Finding, Hint, NO_MANAGER, Outcome, Signs};
pub use error::BrokerError;
pub use failures::{AfterFailure, FAILURES_KEPT, Failure, FailureCursor, FailureFilter};
pub use forecast::{DueBefore, Forecast};
pub use garbage::NewestGarbage;
pub use garbage_jobs::{GarbagePosition, InGarbage, MAX_GARBAGE_JOBS};
pub use groups::Membership;
pub use groups::garbage_hook::PendingHook;
pub use history::{LATENESS_MS, LatenessCounts, Resolution, Sample};
pub use idle::{IdleMark, Recheck};
pub use key_index::{KeyCursor, KeyPage};
pub use list::{ConsumerInfo, GarbageInfo, Page, TimeRange};
pub use lookup::{Details, Found, GroupCopy};
pub use parked_keys::{MAX_PARKED_KEYS, ParkedKeyCursor, ParkedKeyPage};
pub use probe::{Probe, ProbeRequest};
pub use pull::{Leased, SHORT_LEASES};
pub use reclaim::ReclaimReport;
pub use registry::{Alive, Declare};
pub use reshard::Resharded;
pub use reshard::migrate::{Migration, MigrationStep};
pub use shards::{AllShards, unless_gone};
pub use snapshot::{CountedTopic, Counts, Snapshot};
pub use stats::{GroupStats, TopicStats};
pub use stored::{ListedMessage, MessageInGroup, Payload, StoredMessage};
pub use tail::{Event, EventCursor, ShardTail, TailOptions, TailStart};
pub use topic_handle::TopicHandle;
pub use workers::{
    GONE_AFTER, REPORT_EVERY, ShardsReport, SubscriptionReport, Worker, WorkerReport,
};

pub use crate::state::{Settlement, Verdict};

pub use crate::scripts::{
    Cleaned, Fault, Fired, Forgotten, Holder, JobChange, Moved, ParkedKey, Removed, Retired,
    Retirement,
};

use redis::{Cmd, Value};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use durability::Wait;
use execute::{Repeat, Tries};
use reply::command;

use crate::durability::Durability;
use crate::keys::{GroupView, Key, RegistryKeys};
use crate::message::{MessageId, PreparedMessage};
use crate::redis::{Connection, ConnectionError, ConnectionErrorKind, Server};
use crate::scripts::{MoveDue, MoveDuePlain, Refusal, SendPlain, SendScript, Tombstones};
use crate::state::Accepted;
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::time::{UnixMs, millis};
use crate::topic::{Namespace, Shard, Topic};

/// Observes the scripts that a broker runs, for metrics.
pub trait Observer: Send + Sync {
    /// Records a script call that got a reply, and the time from the call to the reply.
    fn script(&self, script: &str, took: Duration);
    /// Records a script call that failed. `code` comes from the table of known error codes, never from the wire.
    fn redis_error(&self, code: &str);
}

/// The maximum number of messages in one read, move, or ack: longer calls would keep Redis busy for too long.
pub const MAX_BATCH: usize = 200;

/// The maximum number of messages in one send. Each takes up to 17 µs while five million messages wait.
pub const MAX_SEND_BATCH: usize = 100;

/// The maximum number of messages in one call of a general script other than send, move and ack, which costs more per message.
pub const MAX_GENERAL_BATCH: usize = 50;

/// The maximum number of messages in one send, move, or ack of a general topic. These scripts handle most batches as a whole.
pub(crate) const MAX_GENERAL_HOT_BATCH: usize = 100;

/// The maximum number of messages in one send that merges: each may first remove another message from every group.
pub const MAX_MERGING_BATCH: usize = 25;

/// The maximum number of messages in one send that replaces: each removes another message from every group.
pub const MAX_REPLACING_BATCH: usize = 15;

/// The time from the start of a send for which Redis need not look up its generated ids. It covers the transit to Redis.
const FRESH_FOR: Duration = Duration::from_millis(250);

/// The maximum number of requests that one read has under way at a time.
pub const CONCURRENT_READS: usize = 64;

/// The `max_ready` of a topic whose messages have priorities or merge keys, if the setting is unset.
const DEFAULT_MAX_READY: u64 = 100;

/// A client for all operations on Redis, for one namespace. Cheap to clone.
///
/// Every method is safe to repeat, and atomic unless its errors say otherwise. It times out after the broker's call
/// timeout. Methods on a group return [`BrokerError::UnknownGroup`] if the topic has no such group. Dropping a method's
/// future does not undo the call: it may have reached Redis.
#[derive(Clone)]
pub struct Broker {
    inner: Arc<Inner>,
    /// The durability that calls wait for after their scripts.
    wait: Option<Wait>,
}

struct Inner {
    connection: Connection,
    namespace: Namespace,
    registry: RegistryKeys,
    topics: RwLock<BTreeMap<Topic, Arc<TopicHandle>>>,
    /// The topics that this process declares.
    expected: OnceLock<BTreeSet<Topic>>,
    /// The last logged error of each unreadable topic, by name.
    unreadable: Mutex<BTreeMap<String, String>>,
    changes: watch::Sender<u64>,
    observer: Option<Arc<dyn Observer>>,
    call_timeout: Duration,
    virtual_now: AtomicU64,
    /// The deliveries of this process by lateness that it has not reported yet.
    lateness: Mutex<BTreeMap<Topic, Arc<LatenessCounts>>>,
    /// The connections of sends that wait for durability, one for each durability.
    waiting: Mutex<BTreeMap<Durability, Connection>>,
}

impl Broker {
    /// Creates a broker on a connection. `call_timeout` bounds each call, including its retries.
    pub fn new(
        connection: Connection,
        namespace: Namespace,
        call_timeout: Duration,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        let inner = Inner {
            connection,
            registry: RegistryKeys::new(&namespace),
            namespace,
            topics: RwLock::default(),
            expected: OnceLock::new(),
            unreadable: Mutex::default(),
            changes: watch::Sender::new(0),
            observer,
            call_timeout,
            virtual_now: AtomicU64::new(0),
            lateness: Mutex::default(),
            waiting: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
            wait: None,
        }
    }

    /// Returns the underlying connection.
    pub fn connection(&self) -> &Connection {
        &self.inner.connection
    }

    /// Returns the namespace of all keys.
    pub fn namespace(&self) -> &Namespace {
        &self.inner.namespace
    }

    /// Returns the time of Redis's clock, as estimated by this process.
    pub fn now(&self) -> UnixMs {
        match self.virtual_now() {
            0 => UnixMs::new(self.inner.connection.clock().now_ms()),
            now => UnixMs::new(now),
        }
    }

    /// Returns the time of the server that holds a shard, as estimated by this process. Falls back to [`Broker::now`] if
    /// the topic has no such shard.
    pub fn now_at(&self, topic: &TopicHandle, shard: Shard) -> UnixMs {
        match (self.virtual_now(), self.server(topic, shard)) {
            (0, Ok(server)) => UnixMs::new(server.clock().now_ms()),
            _ => self.now(),
        }
    }

    /// Returns the server that holds a shard.
    ///
    /// # Errors
    /// [`BrokerError::ShardGone`] if the topic has no such shard.
    pub fn server(&self, topic: &TopicHandle, shard: Shard) -> Result<Server<'_>, BrokerError> {
        Ok(self.inner.connection.at(&topic.keys(shard)?.conf))
    }

    /// Sends a command about a key to the server that holds it.
    async fn call(&self, key: &Key, cmd: &Cmd) -> Result<Value, ConnectionError> {
        self.inner
            .connection
            .at(key)
            .call(cmd, self.inner.call_timeout)
            .await
    }

    /// Sets the time that every script uses, for tests. Zero (1970) restores Redis's clock.
    pub fn set_virtual_now(&self, now: UnixMs) {
        self.inner.virtual_now.store(now.get(), Ordering::Relaxed);
    }

    fn virtual_now(&self) -> u64 {
        self.inner.virtual_now.load(Ordering::Relaxed)
    }

    /// Stores messages; due ones go straight to the stream. Returns one outcome per message, in order. All must have the
    /// same durability, which the call waits for.
    ///
    /// Redeclares a topic that was wiped, with the settings known to this process.
    ///
    /// # Errors
    /// [`BrokerError`]; nothing of the batch is stored unless [`BrokerError::maybe_applied`] returns true.
    ///
    /// # Panics
    /// If there are more than [`MAX_SEND_BATCH`] messages; in debug builds, also if an id occurs twice or the durabilities
    /// differ. Either is a bug of the caller.
    pub async fn send(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        messages: &[PreparedMessage],
    ) -> Result<Vec<Accepted>, BrokerError> {
        assert!(
            messages.len() <= MAX_SEND_BATCH,
            "a send of {} messages",
            messages.len()
        );
        debug_assert!(
            messages
                .iter()
                .map(|m| &m.id)
                .collect::<std::collections::BTreeSet<_>>()
                .len()
                == messages.len(),
            "duplicate id in one send"
        );
        let Some(first) = messages.first() else {
            return Ok(Vec::new());
        };
        debug_assert!(
            messages.iter().all(|m| m.durability == first.durability),
            "different durabilities in one send"
        );
        let is_known = |message: &&PreparedMessage| !message.new_id.take();
        // Does not stop at the first one: each message must lose its mark, since it is not new in another call.
        let are_new = messages.iter().filter(is_known).count() == 0;
        let limit = topic.settings().durability_timeout;
        let waiting = self.with_durability(first.durability, limit).await?;
        let handle = self.topic(topic.name()).await?;
        let mut answers = vec![None; messages.len()];
        if !handle.is_resharding() && handle.has(shard) {
            answers = waiting.send_to(&handle, shard, messages, are_new).await?;
        }
        if answers.iter().any(Option::is_none) {
            waiting
                .send_around(topic.name(), messages, &mut answers)
                .await?;
        }
        waiting.confirm_durability(answers.into_iter().flatten().collect())
    }

    /// Sends to one shard. Returns `None` for messages that a retiring shard does not know, and for all of them if the
    /// shard is gone.
    async fn send_to(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        messages: &[PreparedMessage],
        mut are_new: bool,
    ) -> Result<Vec<Option<Accepted>>, BrokerError> {
        let is_plain = messages.iter().all(|message| message.options.is_plain());
        // Read once: a later cancellation stands, however often the call is repeated.
        let again = self.cancelled_before(topic, shard, messages).await?;
        let mut tries = Tries::new(topic);
        loop {
            let handle = self.topic(topic.name()).await?;
            if !handle.has(shard) {
                return Ok(vec![None; messages.len()]);
            }
            let wants_plain = is_plain && !handle.needs_general(shard);
            let only = handle.keys(shard)?.only_group().filter(|_| wants_plain);
            let needs_general = only.is_none();
            let sent = match only {
                Some(keys) => {
                    let dedup = handle.settings().dedup_window;
                    let are_new = std::mem::take(&mut are_new);
                    self.send_plain(keys, dedup, messages, &again, are_new)
                        .await?
                }
                None => self.send_general(&handle, shard, messages, &again).await?,
            };
            let refusal = match sent {
                Ok(accepted) => return Ok(accepted),
                Err(refusal) => refusal,
            };
            if refusal == Refusal::Class {
                handle.set_needs_general(shard, !needs_general);
            }
            self.recover(&mut tries, &handle, shard, refusal).await?;
        }
    }

    /// Looks up the tombstones of messages that are sent even if one of the same id was cancelled.
    ///
    /// Skips messages that another message of the batch replaces: a repeat would undo the replacement.
    async fn cancelled_before(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        messages: &[PreparedMessage],
    ) -> Result<Tombstones, BrokerError> {
        let asking = messages.iter().filter(|m| m.options.even_if_cancelled);
        let mut ids: Vec<&MessageId> = asking.map(|message| &message.id).collect();
        if !ids.is_empty() {
            let replaced: HashSet<_> = messages
                .iter()
                .filter_map(|m| m.options.replace.as_ref())
                .collect();
            ids.retain(|id| !replaced.contains(id));
        }
        if ids.is_empty() {
            return Ok(Tombstones::new());
        }
        let tomb = &topic.keys(shard)?.tomb;
        let asking = command("ZMSCORE", tomb).ids(ids.iter().copied());
        let scores: Vec<Option<f64>> = self.ask(asking).await.map_err(|error| match error {
            // Nothing has been sent yet.
            BrokerError::Connection(error) => BrokerError::Connection(ConnectionError {
                maybe_applied: false,
                ..error
            }),
            other => other,
        })?;
        let known = ids.into_iter().zip(scores);
        let known = known.filter_map(|(id, score)| Some((id.clone(), score? as u64)));
        Ok(known.collect())
    }

    /// Sends with the plain script, to a topic that uses no features. If all ids are new, Redis looks up none.
    async fn send_plain(
        &self,
        keys: GroupView<'_>,
        dedup: Duration,
        messages: &[PreparedMessage],
        again: &Tombstones,
        are_new: bool,
    ) -> Result<Result<Vec<Option<Accepted>>, Refusal>, BrokerError> {
        let mut call = SendPlain {
            now: self.virtual_now(),
            group: &keys.group.name,
            dedup,
            messages,
            again,
            fresh: 0,
        };
        // The connection itself repeats a call that waits for a durability.
        let sent = if are_new && self.wait.is_none() {
            let started = Instant::now();
            let call_timeout = self.inner.call_timeout;
            let fresh_for = FRESH_FOR.min(call_timeout / 4);
            let now = match self.virtual_now() {
                0 => self.inner.connection.at(&keys.shard.conf).clock().now_ms(),
                now => now,
            };
            call.fresh = now + millis(fresh_for);
            let sent = self
                .run_within(call_timeout, Repeat::Unsafe, &keys, &call)
                .await;
            match sent {
                Err(BrokerError::Connection(error))
                    if error.maybe_applied && error.kind == ConnectionErrorKind::Unavailable =>
                {
                    // Redis may still receive the first call. If that runs after its repeat, it must look up the ids, so
                    // `fresh` must be over. The second half of the pause covers an error in the estimate of Redis's clock.
                    sleep_until(started + 2 * fresh_for).await;
                    call.fresh = 0;
                    let rest = call_timeout.saturating_sub(started.elapsed());
                    if rest.is_zero() {
                        return Err(BrokerError::Connection(error));
                    }
                    let repeated = self.run_within(rest, Repeat::Safe, &keys, &call).await;
                    repeated.map_err(BrokerError::of_repeat)
                }
                sent => sent,
            }
        } else {
            self.run(&keys, &call).await
        };
        Ok(sent?.map(|accepted| accepted.into_iter().map(Some).collect()))
    }

    /// Sends with the general script, to a topic that uses features. Splits a longer batch into parts.
    async fn send_general(
        &self,
        handle: &TopicHandle,
        shard: Shard,
        messages: &[PreparedMessage],
        again: &Tombstones,
    ) -> Result<Result<Vec<Option<Accepted>>, Refusal>, BrokerError> {
        let most = messages.iter().map(|message| match &message.options {
            options if options.replace.is_some() => MAX_REPLACING_BATCH,
            options if options.merge_key.is_some() => MAX_MERGING_BATCH,
            _ => MAX_GENERAL_HOT_BATCH,
        });
        let most = most.min().unwrap_or(MAX_GENERAL_HOT_BATCH);
        let is_batch_plain = messages.iter().all(|message| message.options.is_plain());
        let mut accepted = Vec::with_capacity(messages.len());
        for messages in messages.chunks(most) {
            let call = SendScript {
                default_max_ready: handle.settings().per_shard(DEFAULT_MAX_READY),
                dedup: handle.settings().dedup_window,
                messages,
                again,
            };
            let is_first = accepted.is_empty();
            let mut sent = self.general_once(handle, shard, None, &call).await;
            let is_plain = messages.iter().all(|message| message.options.is_plain());
            let is_part = !is_first || !is_batch_plain;
            if is_part
                && is_plain
                && matches!(sent, Ok(Err(Refusal::Class)))
                && let Some(keys) = handle.keys(shard)?.only_group()
            {
                // The shard uses no features yet, or no longer does, and neither does this part. A batch that uses none
                // is resent as a whole.
                let dedup = handle.settings().dedup_window;
                sent = self.send_plain(keys, dedup, messages, again, false).await;
            }
            match sent {
                Ok(Ok(part)) => accepted.extend(part),
                Ok(Err(refusal)) if is_first => return Ok(Err(refusal)),
                Ok(Err(_)) => {
                    let error = BrokerError::Changing(handle.name().clone());
                    return Err(BrokerError::Partly(error.into()));
                }
                Err(error) if is_first => return Err(error),
                Err(error) => return Err(BrokerError::Partly(error.into())),
            }
        }
        handle.set_needs_general(shard, true);
        Ok(Ok(accepted))
    }

    /// Moves up to `batch` (at most [`MAX_BATCH`]) due messages to the stream, or into the backlog or the parked set of
    /// groups that hold them back. Returns when to look again, after `idle` at the latest. A send of anything due
    /// earlier publishes a wake.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn move_due(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        batch: u16,
        idle: Duration,
    ) -> Result<Moved, BrokerError> {
        let mut tries = Tries::new(topic);
        loop {
            let handle = self.topic(topic.name()).await?;
            if !handle.has(shard) {
                return Ok(Moved::Paused);
            }
            let keys = handle.keys(shard)?.only_group();
            let plain = keys.filter(|_| !handle.needs_general(shard));
            let needs_general = plain.is_none();
            let moved = if let Some(keys) = plain {
                let call = MoveDuePlain {
                    now: self.virtual_now(),
                    group: &keys.group.name,
                    batch,
                    idle,
                };
                self.run(&keys, &call).await?
            } else {
                let batch = batch.min(MAX_GENERAL_HOT_BATCH as u16);
                let call = MoveDue { batch, idle };
                self.general_once(&handle, shard, None, &call).await?
            };
            let refusal = match moved {
                Ok(moved) => return Ok(moved),
                Err(refusal) => refusal,
            };
            if refusal == Refusal::Class {
                handle.set_needs_general(shard, !needs_general);
            }
            self.recover(&mut tries, &handle, shard, refusal).await?;
        }
    }

    fn topics(&self) -> RwLockReadGuard<'_, BTreeMap<Topic, Arc<TopicHandle>>> {
        self.inner.topics.read()
    }

    fn topics_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<Topic, Arc<TopicHandle>>> {
        self.inner.topics.write()
    }
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broker")
            .field("namespace", &self.inner.namespace)
            .finish_non_exhaustive()
    }
}
