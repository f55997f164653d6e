//! The broker: one async method for each operation on Redis.
//!
//! It turns names and messages into keys and script calls, and replies into outcomes. It is the only caller of the
//! scripts. The roles decide when to call.

mod attempts;
mod audit;
mod change;
mod counters;
mod creations;
mod cursor;
mod declare;
mod declare_by_call;
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
mod move_due;
mod move_tasks;
mod ordering_key;
mod parked_keys;
mod probe;
mod pull;
mod purges;
mod reclaim;
mod records;
mod registry;
mod removal;
mod reply;
mod reshard;
mod restore;
mod scan;
mod schedules;
mod send;
mod shards;
mod snapshot;
mod stats;
mod stored;
mod tail;
mod tokens;
mod topic_handle;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub use attempts::{FailedAttempt, FailedOutcome};
pub use audit::{AUDIT_KEPT, AUDIT_WITHIN, AuditEntry, Audited};
pub use counters::{COUNTERS, Counter};
pub use cursor::{After, Cursor, EntryPosition, InvalidCursor};
pub use declare::Declare;
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
pub use move_tasks::{MAX_MOVE_TASKS, MoveTasks, StoredMoveTask};
pub use parked_keys::{MAX_PARKED_KEYS, ParkedKeyCursor, ParkedKeyPage};
pub use probe::{Probe, ProbeRequest};
pub use pull::{Leased, SHORT_LEASES};
pub use reclaim::{ENDS_SOON, ReclaimPage, ReclaimReport};
pub use registry::Alive;
pub use removal::ShardRemoval;
pub use reshard::Resharded;
pub use reshard::migrate::{Migration, MigrationStep};
pub use schedules::{MAX_DEFINITION, ScheduleFaults, StoredSchedule};
pub use shards::{AllShards, unless_gone};
pub use snapshot::{CountedTopic, Counts, Snapshot};
pub use stats::{GroupStats, TopicStats};
pub use stored::{ListedMessage, MessageInGroup, Payload, StoredMessage};
pub use tail::{Event, EventCursor, ShardTail, TailOptions, TailStart};
pub use tokens::{AllTokens, MAX_TOKEN_RECORD, MAX_TOKENS, PreviousUse, StoredToken};
pub use topic_handle::TopicHandle;
pub use workers::{
    GONE_AFTER, REPORT_EVERY, ShardsReport, SubscriptionReport, Worker, WorkerReport,
};

pub use crate::state::{Settlement, Verdict};

pub use crate::scripts::{
    Cleaned, Fault, FireResult, Fired, FiredOf, Forgotten, Hidden, Holder, JobChange, LateAck,
    MissedTimes, Moved, ParkedKey, Progress, Removal, Removed, Retired, Retirement, SchedulePut,
    ScheduleRemoved, TakenFire, TakenFires, TakenParked, TokenChange,
};

use redis::{Cmd, Value};
use tokio::sync::watch;

use creations::Creations;
use durability::Wait;

use crate::durability::Durability;
use crate::keys::{Key, RegistryKeys};
use crate::redis::{Connection, ConnectionError, Server};
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::time::UnixMs;
use crate::topic::{Namespace, Shard, Topic};

/// Observes the scripts that a broker runs, for metrics.
pub trait Observer: Send + Sync {
    /// Records a script call that got a reply, and the time from the call to the reply.
    fn script(&self, script: &str, took: Duration);
    /// Records a script call that failed. `code` comes from the table of known error codes, never from the wire.
    fn redis_error(&self, code: &str);
    /// Forgets a topic that was removed.
    fn topic_gone(&self, topic: &str);
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
    /// The topics that this process is restoring.
    restoring: Mutex<BTreeMap<Topic, Arc<tokio::sync::Mutex<()>>>>,
    creations: Creations,
    changes: watch::Sender<u64>,
    /// The time of the last claim of a refresh.
    refresh_claimed: Mutex<Instant>,
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
            restoring: Mutex::default(),
            creations: Creations::default(),
            changes: watch::Sender::new(0),
            refresh_claimed: Mutex::new(Instant::now()),
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
