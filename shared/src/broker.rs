//! One async method for each thing that Redis can be asked to do, and nothing else.
//!
//! The broker turns names and messages into keys and script calls, and replies into outcomes. It
//! decides nothing about when to call; the roles do. It is the only user of the scripts.

mod admin;
mod deliver;
mod doctor;
mod durable;
mod each_shard;
mod error;
mod groups;
mod hand_over;
mod handle;
mod keyed;
mod lookup;
mod notices;
mod old_first;
mod place;
mod read;
mod reclaim;
mod records;
mod registry;
mod reshard;
mod restore;
mod run;
mod scan;
mod schedules;
mod stats;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

pub use deliver::{Read, ReaderId, Settlement, Verdict};
pub use doctor::{Checkup, Examination, Finding, Hint, NO_MANAGER, Outcome, Signs};
pub use each_shard::{EachShard, unless_gone};
pub use error::BrokerError;
pub use groups::Membership;
pub use hand_over::{Departure, HandedOver};
pub use handle::TopicHandle;
pub use keyed::{InvalidCursor, KeyCursor, KeyPage};
pub use lookup::{Copy, Details, Found};
pub use notices::Notice;
pub use read::{ConsumerInfo, DeadLetter, Listed, Page};
pub use reclaim::ReclaimReport;
pub use registry::{Alive, Declare};
pub use reshard::Resharded;
pub use stats::{GroupStats, TopicStats};

pub use crate::scripts::{Cleaned, Fault, Fired, Forgotten, Moved, Removed, Retired, Retirement};

use redis::{Cmd, Value};
use tokio::sync::watch;

use durable::Wait;
use run::Tries;

use crate::durability::Durability;
use crate::keys::{GroupView, Key, RegistryKeys};
use crate::link::{Link, LinkError, Server};
use crate::message::{MessageId, NewMessage};
use crate::metrics::Metrics;
use crate::scripts::{MoveDue, MoveDuePlain, Refusal, Send, SendPlain, Tombstones, unexpected};
use crate::state::Accepted;
use crate::time::UnixMs;
use crate::topic::{Namespace, Shard, Topic};

/// The most messages a send, a move or an ack may hold: longer calls keep Redis busy for too long.
pub const MAX_BATCH: usize = 200;

/// The most that one call of a general script handles: they take longer for a message.
pub(crate) const MAX_FULL_BATCH: usize = 50;

/// The most that one send handles where messages are merged or replaced: each may first take another one out of every
/// group.
const MAX_MOVING_BATCH: usize = 25;

/// The most requests of one read that are under way at a time.
pub const CONCURRENT_READS: usize = 64;

/// `max_ready` of a topic whose messages have priorities or merge keys, if it is not set.
const DEFAULT_MAX_READY: u64 = 100;

/// What may be asked of Redis, for one namespace. Cheap to clone.
///
/// Every method is atomic and safe to repeat, and gives up after the broker's patience. Methods on a
/// group answer [`BrokerError::UnknownGroup`] where the topic has no such group. Dropping a
/// method's future does not undo the call: it may have reached Redis.
#[derive(Clone)]
pub struct Broker {
    inner: Arc<Inner>,
    /// What calls wait for after their scripts.
    wait: Option<Wait>,
}

struct Inner {
    link: Link,
    namespace: Namespace,
    registry: RegistryKeys,
    topics: RwLock<BTreeMap<Topic, Arc<TopicHandle>>>,
    /// Topics that this process declares.
    expected: OnceLock<BTreeSet<Topic>>,
    /// What was said of topics that cannot be read, by name.
    unreadable: Mutex<BTreeMap<String, String>>,
    changes: watch::Sender<u64>,
    metrics: Option<Metrics>,
    patience: Duration,
    virtual_now: AtomicU64,
    /// The links of sends that wait, one for each durability.
    waiting: Mutex<BTreeMap<Durability, Link>>,
}

impl Broker {
    /// Makes a broker over a link. `patience` bounds each call, repeats included.
    pub fn new(
        link: Link,
        namespace: Namespace,
        patience: Duration,
        metrics: Option<Metrics>,
    ) -> Self {
        let inner = Inner {
            link,
            registry: RegistryKeys::new(&namespace),
            namespace,
            topics: RwLock::default(),
            expected: OnceLock::new(),
            unreadable: Mutex::default(),
            changes: watch::Sender::new(0),
            metrics,
            patience,
            virtual_now: AtomicU64::new(0),
            waiting: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
            wait: None,
        }
    }

    /// The link below.
    pub fn link(&self) -> &Link {
        &self.inner.link
    }

    /// The namespace of all keys.
    pub fn namespace(&self) -> &Namespace {
        &self.inner.namespace
    }

    /// Redis's clock, as estimated here.
    pub fn now(&self) -> UnixMs {
        match self.virtual_now() {
            0 => UnixMs::new(self.inner.link.clock().now_ms()),
            now => UnixMs::new(now),
        }
    }

    /// The clock of the server that holds a shard, as estimated here; Redis's clock where that is not known yet.
    pub fn now_at(&self, topic: &TopicHandle, shard: Shard) -> UnixMs {
        match (self.virtual_now(), self.server(topic, shard)) {
            (0, Ok(server)) => UnixMs::new(server.clock().now_ms()),
            _ => self.now(),
        }
    }

    /// The server that holds a shard.
    ///
    /// # Errors
    /// [`BrokerError`] for a shard that the topic has not.
    pub fn server(&self, topic: &TopicHandle, shard: Shard) -> Result<Server<'_>, BrokerError> {
        Ok(self.inner.link.at(&topic.keys(shard)?.conf))
    }

    /// Sends a command about a key to the server that holds it.
    async fn call(&self, key: &Key, cmd: &Cmd) -> Result<Value, LinkError> {
        self.inner.link.at(key).call(cmd, self.inner.patience).await
    }

    /// Lets every script take `now` for the time, for tests. 1970 gives Redis's clock back.
    pub fn set_virtual_now(&self, now: UnixMs) {
        self.inner.virtual_now.store(now.get(), Ordering::Relaxed);
    }

    fn virtual_now(&self) -> u64 {
        self.inner.virtual_now.load(Ordering::Relaxed)
    }

    /// Stores messages; those due now go straight to the stream. One outcome each, in order. All must have the same
    /// durability, which the call waits for.
    ///
    /// A topic that was wiped is declared again with the settings known here.
    ///
    /// # Errors
    /// [`BrokerError`]; nothing of the batch is stored unless `maybe_applied` says that it may be.
    ///
    /// # Panics
    /// More than [`MAX_BATCH`] messages, or an id twice: the caller's batches are wrong.
    pub async fn send(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        messages: &[NewMessage],
    ) -> Result<Vec<Accepted>, BrokerError> {
        assert!(
            messages.len() <= MAX_BATCH,
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
            "an id twice in one send"
        );
        let Some(first) = messages.first() else {
            return Ok(Vec::new());
        };
        debug_assert!(
            messages.iter().all(|m| m.durability == first.durability),
            "different durabilities in one send"
        );
        let limit = topic.settings().durability_timeout;
        let waiting = self.that_waits(first.durability, limit).await?;
        let handle = self.topic(topic.name()).await?;
        let mut answers = vec![None; messages.len()];
        if !handle.is_resharding() && handle.has(shard) {
            answers = waiting.send_to(&handle, shard, messages).await?;
        }
        if answers.iter().any(Option::is_none) {
            waiting
                .send_around(topic.name(), messages, &mut answers)
                .await?;
        }
        waiting.told(answers.into_iter().flatten().collect())
    }

    /// Sends to one shard. Gives nothing for messages that it knows nothing of, if it is being given up.
    async fn send_to(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        messages: &[NewMessage],
    ) -> Result<Vec<Option<Accepted>>, BrokerError> {
        let is_plain = messages.iter().all(|message| message.options.is_plain());
        // Read once: whatever is cancelled from now on stays cancelled, however often the call is repeated.
        let again = self.cancelled_before(topic, shard, messages).await?;
        let mut tries = Tries::new(topic);
        loop {
            let handle = self.topic(topic.name()).await?;
            if !handle.has(shard) {
                return Ok(vec![None; messages.len()]);
            }
            let wants_plain = is_plain && !handle.is_full(shard);
            let only = handle.keys(shard)?.only_group().filter(|_| wants_plain);
            let is_full = only.is_none();
            let sent = match only {
                Some(keys) => {
                    let dedup = handle.settings().dedup_window;
                    self.send_plain(keys, dedup, messages, &again).await?
                }
                None => self.send_full(&handle, shard, messages, &again).await?,
            };
            let refusal = match sent {
                Ok(accepted) => return Ok(accepted),
                Err(refusal) => refusal,
            };
            if refusal == Refusal::Class {
                handle.set_full(shard, !is_full);
            }
            self.recover(&mut tries, &handle, shard, refusal).await?;
        }
    }

    /// Looks up the tombstones of messages that are sent although one of their id was cancelled.
    ///
    /// Of those that another message of the batch replaces none counts: a repeat would undo the replacement.
    async fn cancelled_before(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        messages: &[NewMessage],
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
        let mut cmd = deliver::command("ZMSCORE", tomb);
        for id in &ids {
            cmd.arg(id.as_str());
        }
        // Nothing is sent before.
        let reply = self.call(tomb, &cmd).await.map_err(|error| LinkError {
            maybe_applied: false,
            ..error
        })?;
        let scores: Vec<Option<f64>> =
            redis::from_redis_value_ref(&reply).map_err(|_| BrokerError::Reply {
                what: "ZMSCORE",
                error: unexpected("scores", &reply),
            })?;
        let known = ids.into_iter().zip(scores);
        let known = known.filter_map(|(id, score)| Some((id.clone(), score? as u64)));
        Ok(known.collect())
    }

    /// Sends to a topic that uses no features.
    async fn send_plain(
        &self,
        keys: GroupView<'_>,
        dedup: Duration,
        messages: &[NewMessage],
        again: &Tombstones,
    ) -> Result<Result<Vec<Option<Accepted>>, Refusal>, BrokerError> {
        let call = SendPlain {
            now: self.virtual_now(),
            group: &keys.group.name,
            dedup,
            messages,
            again,
        };
        let sent = self.run(&keys, &call).await?;
        Ok(sent.map(|accepted| accepted.into_iter().map(Some).collect()))
    }

    /// Sends to a topic that uses features. A longer batch is sent in parts.
    async fn send_full(
        &self,
        handle: &TopicHandle,
        shard: Shard,
        messages: &[NewMessage],
        again: &Tombstones,
    ) -> Result<Result<Vec<Option<Accepted>>, Refusal>, BrokerError> {
        let moves = |message: &NewMessage| {
            message.options.merge_key.is_some() || message.options.replace.is_some()
        };
        let most = if messages.iter().any(moves) {
            MAX_MOVING_BATCH
        } else {
            MAX_FULL_BATCH
        };
        let is_batch_plain = messages.iter().all(|message| message.options.is_plain());
        let mut accepted = Vec::with_capacity(messages.len());
        for messages in messages.chunks(most) {
            let call = Send {
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
                // The shard uses no features yet, or none any more, and neither does this part. A batch without any is
                // sent again as a whole.
                let dedup = handle.settings().dedup_window;
                sent = self.send_plain(keys, dedup, messages, again).await;
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
        handle.set_full(shard, true);
        Ok(Ok(accepted))
    }

    /// Puts up to `batch` (at most [`MAX_BATCH`]) due messages on the stream, or hands them to groups that hold them
    /// back, and says when to look again, at the latest after `idle`. Sends of anything due before that publish a wake.
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
            let plain = keys.filter(|_| !handle.is_full(shard));
            let is_full = plain.is_none();
            let moved = if let Some(keys) = plain {
                let call = MoveDuePlain {
                    now: self.virtual_now(),
                    group: &keys.group.name,
                    batch,
                    idle,
                };
                self.run(&keys, &call).await?
            } else {
                let batch = batch.min(MAX_FULL_BATCH as u16);
                let call = MoveDue { batch, idle };
                self.general_once(&handle, shard, None, &call).await?
            };
            let refusal = match moved {
                Ok(moved) => return Ok(moved),
                Err(refusal) => refusal,
            };
            if refusal == Refusal::Class {
                handle.set_full(shard, !is_full);
            }
            self.recover(&mut tries, &handle, shard, refusal).await?;
        }
    }

    fn topics(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<Topic, Arc<TopicHandle>>> {
        self.inner
            .topics
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn topics_mut(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<Topic, Arc<TopicHandle>>> {
        self.inner
            .topics
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broker")
            .field("namespace", &self.inner.namespace)
            .finish_non_exhaustive()
    }
}
