//! One async method for each thing that Redis can be asked to do, and nothing else.
//!
//! The broker turns names and messages into keys and script calls, and replies into outcomes. It
//! decides nothing about when to call; the roles do. It is the only user of the scripts.

mod admin;
mod deliver;
mod error;
mod notices;
mod read;
mod reclaim;
mod registry;
mod stats;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

pub use deliver::{Read, Settlement, Verdict};
pub use error::BrokerError;
pub use notices::Notice;
pub use read::{ConsumerInfo, DeadLetter, Found, Listed, Page};
pub use reclaim::ReclaimReport;
pub use registry::{Alive, Declare, TopicHandle};
pub use stats::{GroupStats, TopicStats};

pub use crate::scripts::Moved;

use tokio::sync::watch;

use crate::keys::RegistryKeys;
use crate::link::{Link, Script};
use crate::message::NewMessage;
use crate::metrics::Metrics;
use crate::scripts::{Args, MoveDue, Operation, Refusal, Reply, Send};
use crate::state::{Accepted, SendOutcome};
use crate::time::UnixMs;
use crate::topic::{Namespace, Shard, Topic};

/// The most messages a send, a move or an ack may hold: longer calls keep Redis busy for too long.
pub const MAX_BATCH: usize = 500;

/// What may be asked of Redis, for one namespace. Cheap to clone.
///
/// Every method is atomic and safe to repeat, and gives up after the broker's patience. Dropping a
/// method's future does not undo the call: it may have reached Redis.
#[derive(Clone)]
pub struct Broker {
    inner: Arc<Inner>,
}

struct Inner {
    link: Link,
    namespace: Namespace,
    registry: RegistryKeys,
    topics: RwLock<BTreeMap<Topic, Arc<TopicHandle>>>,
    /// What was said of topics that cannot be read, by name.
    unreadable: Mutex<BTreeMap<String, String>>,
    changes: watch::Sender<u64>,
    metrics: Option<Metrics>,
    patience: Duration,
    virtual_now: AtomicU64,
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
            unreadable: Mutex::default(),
            changes: watch::Sender::new(0),
            metrics,
            patience,
            virtual_now: AtomicU64::new(0),
        };
        Self {
            inner: Arc::new(inner),
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

    /// Lets every script take `now` for the time, for tests. 1970 gives Redis's clock back.
    pub fn set_virtual_now(&self, now: UnixMs) {
        self.inner.virtual_now.store(now.get(), Ordering::Relaxed);
    }

    fn virtual_now(&self) -> u64 {
        self.inner.virtual_now.load(Ordering::Relaxed)
    }

    /// Stores messages; those due now go straight to the stream. One outcome each, in order.
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
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let send = Send {
            now: self.virtual_now(),
            group: topic.group(),
            messages,
        };
        let reply = self.run_declared(topic, shard, &send).await?;
        let mut accepted: Vec<Accepted> = messages
            .iter()
            .map(|message| {
                let due = message.when.due(reply.now);
                let ready = due <= reply.now && reply.open;
                Accepted {
                    outcome: if ready {
                        SendOutcome::Ready
                    } else {
                        SendOutcome::Waiting
                    },
                    due: Some(due),
                    ended: None,
                }
            })
            .collect();
        for (index, due, ended) in reply.duplicates {
            if let Some(slot) = accepted.get_mut(index) {
                *slot = Accepted {
                    outcome: SendOutcome::Duplicate,
                    due,
                    ended,
                };
            }
        }
        Ok(accepted)
    }

    /// Puts up to `batch` (at most [`MAX_BATCH`]) due messages on the stream and says when to look
    /// again, at the latest after `idle`. Sends of anything due before that publish a wake.
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
        let group = topic.group();
        let call = MoveDue {
            now: self.virtual_now(),
            group,
            batch,
            idle,
        };
        self.run_declared(topic, shard, &call).await
    }

    /// Runs a script on a shard; declares the topic again if it was wiped.
    async fn run_declared<O, T>(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        call: &O,
    ) -> Result<T, BrokerError>
    where
        O: Operation<Place = crate::keys::ShardKeys, Reply = Result<T, Refusal>>,
    {
        let keys = topic.keys(shard);
        match self.run(keys, call).await? {
            Ok(reply) => return Ok(reply),
            Err(Refusal::Class) => return Err(BrokerError::Class(topic.name().clone())),
            Err(Refusal::Undeclared) => {}
        }
        tracing::warn!(topic = %topic.name(), "the topic is gone from redis: declaring it again");
        self.declare_again(topic).await?;
        match self.run(keys, call).await? {
            Ok(reply) => Ok(reply),
            Err(_) => Err(BrokerError::UnknownTopic(topic.name().clone())),
        }
    }

    /// Runs a script and reads its reply.
    async fn run<O: Operation>(&self, place: &O::Place, call: &O) -> Result<O::Reply, BrokerError> {
        let script = O::script();
        let keys: Vec<_> = O::KEYS.iter().map(|(_, key)| key(place)).collect();
        let mut args = Args::default();
        call.args(&mut args);
        let started = Instant::now();
        let reply = self
            .inner
            .link
            .eval(script, &keys, args.as_slice(), self.inner.patience)
            .await;
        self.measure(script, started, &reply);
        Reply::new(reply?)
            .and_then(|mut reply| call.parse(&mut reply))
            .map_err(|error| BrokerError::Reply {
                what: script.name(),
                error,
            })
    }

    fn measure<T>(
        &self,
        script: &Script,
        started: Instant,
        reply: &Result<T, crate::link::LinkError>,
    ) {
        let Some(metrics) = &self.inner.metrics else {
            return;
        };
        match reply {
            Ok(_) => metrics.script(script.name(), started.elapsed()),
            Err(error) => metrics.redis_error(error.known_code()),
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
