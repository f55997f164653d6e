//! The assignment of shards to managers, and the heartbeats that keep it up to date.
//!
//! Managers have no leader. Each one sends heartbeats to Redis, which returns the live managers, and computes its own
//! shards. An assignment only avoids duplicate work: every script is safe in any number of managers. So two managers may
//! hold the same shard for a moment, and a manager keeps its old assignment while Redis is unavailable.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::{Broker, BrokerError, ShardsReport, TopicHandle};
use lisa_core::outage::Outage;
use lisa_core::redis::{Connection, Progress};
use lisa_core::topic::{Shard, Topic};
use lisa_service::shutdown::Shutdown;
use lisa_service::supervise::Heartbeat;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

/// The interval between heartbeats. A manager counts as alive for twice as long. The others notice its death at their next
/// heartbeat, so the shards of a killed manager are taken over within 2 s.
const HEARTBEAT_EVERY: Duration = Duration::from_millis(600);
/// The interval of a manager that knows no other manager, which could take over its shards.
const HEARTBEAT_ALONE: Duration = Duration::from_millis(1200);
/// The shortest time from a heartbeat to one that is early because of a change: each reads the whole registry.
const EARLY_AFTER: Duration = Duration::from_millis(50);
/// The longest time that Redis may leave a heartbeat unanswered while it answers other calls. After that, the task
/// reports no progress, and counts as stuck [`SHOWS_AFTER`] later.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
/// The time without progress after which a task counts as stuck.
pub(crate) const SHOWS_AFTER: Duration = Duration::from_secs(3);
/// The time limit for leaving at shutdown, so that others take over immediately. If Redis is unavailable, they take over
/// when the heartbeat expires.
const LEAVE_WITHIN: Duration = Duration::from_millis(500);

/// One shard of a topic.
#[derive(Clone, Debug)]
pub struct AssignedShard {
    /// The topic.
    pub topic: Arc<TopicHandle>,
    /// The shard.
    pub shard: Shard,
}

/// The shards of a manager, and the live managers, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Assignment {
    /// The live managers, sorted.
    pub managers: Vec<String>,
    /// All registered topics, by name.
    pub topics: Vec<Arc<TopicHandle>>,
    /// The shards that this manager serves.
    pub shards: Vec<AssignedShard>,
    version: u64,
}

/// The assignment of one manager, kept up to date by its heartbeats.
#[derive(Clone, Debug)]
pub struct Assignments {
    name: Arc<str>,
    broker: Broker,
    assignment: watch::Sender<Arc<Assignment>>,
    changed: Arc<Notify>,
}

impl Assignment {
    /// Returns the shards that this manager serves, by topic.
    pub(crate) fn by_topic(&self) -> Vec<ShardsReport> {
        let mut all: Vec<ShardsReport> = Vec::new();
        for AssignedShard { topic, shard } in &self.shards {
            match all.last_mut().filter(|last| last.topic == *topic.name()) {
                Some(last) => last.shards.push(*shard),
                None => all.push(ShardsReport {
                    topic: topic.name().clone(),
                    shards: vec![*shard],
                }),
            }
        }
        all
    }
}

impl Assignments {
    /// Creates an empty assignment for the manager of this name, which must be unique.
    pub fn new(name: impl Into<Arc<str>>, broker: Broker) -> Self {
        Self {
            name: name.into(),
            broker,
            assignment: watch::Sender::default(),
            changed: Arc::default(),
        }
    }

    /// Makes the next heartbeat early, because another process has changed the registry.
    pub(crate) fn registry_changed(&self) {
        self.changed.notify_one();
    }

    /// Returns the manager's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the current assignment.
    pub fn now(&self) -> Arc<Assignment> {
        self.assignment.borrow().clone()
    }

    /// Returns a receiver of each new assignment.
    pub fn watch(&self) -> watch::Receiver<Arc<Assignment>> {
        self.assignment.subscribe()
    }

    /// Keeps the assignment up to date until the shutdown begins, then leaves.
    pub(crate) async fn keep(
        &self,
        heartbeat: Heartbeat,
        shutdown: &Shutdown,
    ) -> Result<(), BrokerError> {
        let mut pause = Duration::ZERO;
        // A topic that this process declares itself, for example through its producer, is served immediately.
        let mut changes = self.broker.changes();
        let mut outage = Outage::new("send heartbeats");
        heartbeat.within(SHOWS_AFTER);
        loop {
            let early = async {
                sleep(EARLY_AFTER.min(pause)).await;
                tokio::select! {
                    _ = changes.changed() => {}
                    () = self.changed.notified() => {}
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = early => {}
                () = shutdown.draining().cancelled() => break,
            }
            let renewed = watched(&heartbeat, self.broker.connection(), self.renew()).await;
            pause = self.pace();
            match renewed {
                Ok(()) => {
                    heartbeat.ok();
                    outage.recovered();
                }
                Err(error) => {
                    if error.is_answered() {
                        heartbeat.ok();
                    }
                    // The manager keeps its assignment.
                    outage.failed(&error);
                }
            }
        }
        if let Ok(Err(error)) = timeout(
            LEAVE_WITHIN,
            self.broker.heartbeat(&self.name, Duration::ZERO),
        )
        .await
        {
            tracing::debug!(%error, "cannot leave; other managers take over when the heartbeat expires");
        }
        Ok(())
    }

    fn pace(&self) -> Duration {
        if self.now().managers.len() > 1 {
            HEARTBEAT_EVERY
        } else {
            HEARTBEAT_ALONE
        }
    }

    /// Sends one heartbeat, and updates the assignment if something changed.
    pub(crate) async fn renew(&self) -> Result<(), BrokerError> {
        let alive = self.broker.heartbeat(&self.name, self.pace() * 2).await?;
        let before = self.now();
        if alive.version == before.version
            && alive.managers == before.managers
            && alive.version != 0
        {
            return Ok(());
        }
        if alive.version == before.version && alive.version != 0 {
            let topics = before.topics.clone();
            self.assign(alive.version, alive.managers, topics);
            return Ok(());
        }
        let (topics, unreached) = self.reload().await?;
        let mut version = alive.version;
        if let Some(error) = unreached {
            if before.version != 0 {
                tracing::warn!(%error, "cannot read all topics; keeping the known ones");
            }
            // They are read again at the next heartbeat.
            version = 0;
        }
        self.assign(version, alive.managers, topics);
        Ok(())
    }

    /// Reads the registry again, and declares topics that are missing in Redis. For topics whose server does not answer,
    /// returns the known settings, and the first such failure in addition.
    pub(crate) async fn reload(
        &self,
    ) -> Result<(Vec<Arc<TopicHandle>>, Option<BrokerError>), BrokerError> {
        let lost = self.broker.redeclare_lost().await?;
        if !lost.is_empty() {
            tracing::warn!(topics = ?lost, "topics were missing in Redis; declared them again");
        }
        self.broker.refresh_reached().await
    }

    fn assign(&self, version: u64, managers: Vec<String>, topics: Vec<Arc<TopicHandle>>) {
        let shards = assigned_to(&self.name, &managers, &topics);
        let mut before = BTreeSet::new();
        self.assignment.send_modify(|assignment| {
            before = assignment.shards.iter().map(AssignedShard::id).collect();
            *assignment = Arc::new(Assignment {
                managers,
                topics,
                shards,
                version,
            });
        });
        let assignment = self.now();
        if before != assignment.shards.iter().map(AssignedShard::id).collect() {
            tracing::info!(
                shards = assignment.shards.len(),
                managers = assignment.managers.len(),
                "assignment changed"
            );
        }
    }
}

impl AssignedShard {
    /// Returns whether this is the topic's first shard. Its holder does the work that is done once for each topic.
    pub(crate) fn is_first(&self) -> bool {
        self.shard == self.topic.first_shard()
    }

    /// Returns the topic as this process knows it now. It may have changed since the assignment.
    pub(crate) fn current(&self, broker: &Broker) -> Arc<TopicHandle> {
        let known = broker.known(self.topic.name());
        known.unwrap_or_else(|| self.topic.clone())
    }

    /// Returns the topic and number of the shard, which identify it.
    pub(crate) fn id(&self) -> (Topic, Shard) {
        (self.topic.name().clone(), self.shard)
    }
}

/// Waits for a call to Redis. Meanwhile reports progress, unless the call is unanswered while Redis answers other calls.
pub(crate) async fn watched<T>(
    heartbeat: &Heartbeat,
    connection: &Connection,
    asked: impl Future<Output = T>,
) -> T {
    let progress = Progress::default();
    tokio::pin!(asked);
    loop {
        tokio::select! {
            answer = &mut asked => return answer,
            () = sleep(HEARTBEAT_EVERY) => {
                if !progress.is_stuck(connection, ANSWERED_WITHIN) {
                    heartbeat.ok();
                }
            }
        }
    }
}

/// Returns the shards whose owner is `name`, by rendezvous hashing: a manager that joins or leaves moves only its own
/// shards.
fn assigned_to(name: &str, managers: &[String], topics: &[Arc<TopicHandle>]) -> Vec<AssignedShard> {
    let all = topics.iter().flat_map(|topic| {
        topic.shards().map(|shard| AssignedShard {
            topic: topic.clone(),
            shard,
        })
    });
    all.filter(|assigned| owner(managers, assigned.topic.name(), assigned.shard) == Some(name))
        .collect()
}

fn owner<'a>(managers: &'a [String], topic: &Topic, shard: Shard) -> Option<&'a str> {
    let weight = |manager: &&String| (weight(manager, topic, shard), (*manager).clone());
    managers.iter().max_by_key(weight).map(String::as_str)
}

/// Returns a hash that is the same in every process and version: FNV-1a, with its bits mixed at the end because names differ
/// little.
fn weight(manager: &str, topic: &Topic, shard: Shard) -> u64 {
    let text = format!("{manager}\0{topic}\0{shard}");
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(managers: &[String]) -> Vec<String> {
        let topic: Topic = "orders".parse().unwrap();
        (0..300)
            .map(|shard| {
                owner(managers, &topic, Shard::new(shard))
                    .unwrap()
                    .to_owned()
            })
            .collect()
    }

    #[test]
    fn shards_are_spread_and_only_those_of_a_lost_manager_move() {
        let all: Vec<String> = (0..5).map(|n| format!("host-{n}-1")).collect();
        let before = owners(&all);
        for manager in &all {
            let count = before.iter().filter(|owner| *owner == manager).count();
            assert!((30..=90).contains(&count), "{manager} has {count} of 300");
        }
        let after = owners(&all[1..]);
        for (was, is) in before.iter().zip(&after) {
            assert!(was == is || *was == all[0]);
        }
    }

    #[test]
    fn without_managers_a_shard_has_no_owner() {
        assert_eq!(owner(&[], &"t".parse().unwrap(), Shard::new(0)), None);
    }
}
