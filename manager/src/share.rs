//! Which shards this manager looks after, and which managers are alive.
//!
//! Managers have no leader: each one tells Redis that it is alive, is told who else is, and works out by itself which
//! shards are its own. A share only saves work. Every script is safe in any number of managers, so two that hold one
//! shard for a moment, or a manager that keeps an old share while Redis is away, do no harm.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lisa_shared::broker::{Broker, BrokerError, TopicHandle};
use lisa_shared::link::{Link, Progress};
use lisa_shared::shutdown::Shutdown;
use lisa_shared::supervise::Beat;
use lisa_shared::topic::{Shard, Topic};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// How often a manager says that it is alive. It counts as alive for twice as long: with the beat of the next one, a
/// killed manager's shards are taken within 2 s.
const BEAT_EVERY: Duration = Duration::from_millis(600);
/// The same for one that knows of no other, who could take its shards.
const BEAT_ALONE: Duration = Duration::from_millis(1200);
/// A beat without an answer for longer than this, while Redis answers others, is not well, and shows three seconds later.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);
pub(crate) const SHOWS_AFTER: Duration = Duration::from_secs(3);
/// At shutdown the others learn of the end; if Redis is away, the lease tells them.
const LEAVE_WITHIN: Duration = Duration::from_millis(500);

/// One shard of a topic.
#[derive(Clone, Debug)]
pub struct Held {
    /// The topic.
    pub topic: Arc<TopicHandle>,
    /// The shard.
    pub shard: Shard,
}

/// What a manager looks after at one moment.
#[derive(Clone, Debug, Default)]
pub struct Share {
    /// The managers alive, sorted.
    pub managers: Vec<String>,
    /// All registered topics, by name.
    pub topics: Vec<Arc<TopicHandle>>,
    /// The shards that are this manager's own.
    pub held: Vec<Held>,
    version: u64,
}

/// The share of one manager, kept up to date by its beats.
#[derive(Clone, Debug)]
pub struct Shares {
    name: Arc<str>,
    broker: Broker,
    share: watch::Sender<Arc<Share>>,
}

impl Shares {
    /// Makes an empty share for a manager of this name, which must be unique.
    pub fn new(name: impl Into<Arc<str>>, broker: Broker) -> Self {
        Self {
            name: name.into(),
            broker,
            share: watch::Sender::default(),
        }
    }

    /// The manager's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The share now.
    pub fn now(&self) -> Arc<Share> {
        self.share.borrow().clone()
    }

    /// Watches the share.
    pub fn watch(&self) -> watch::Receiver<Arc<Share>> {
        self.share.subscribe()
    }

    /// Keeps the share until the shutdown, then leaves.
    pub(crate) async fn keep(&self, beat: Beat, shutdown: &Shutdown) -> Result<(), BrokerError> {
        let mut pause = Duration::ZERO;
        // A topic that this process declares itself, as a producer beside it may, is taken up at once.
        let mut changes = self.broker.changes();
        let mut failing = false;
        beat.within(SHOWS_AFTER);
        loop {
            tokio::select! {
                () = sleep(pause) => {}
                _ = changes.changed() => {}
                () = shutdown.draining().cancelled() => break,
            }
            let renewed = watched(&beat, self.broker.link(), self.renew()).await;
            pause = self.pace();
            match renewed {
                Ok(()) => {
                    beat.ok();
                    if std::mem::take(&mut failing) {
                        tracing::info!(manager = &*self.name, "alive again");
                    }
                }
                Err(error) => {
                    if error.is_answered() {
                        beat.ok();
                    }
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "cannot say that this manager is alive: keeping its share");
                    }
                }
            }
        }
        if let Ok(Err(error)) =
            timeout(LEAVE_WITHIN, self.broker.beat(&self.name, Duration::ZERO)).await
        {
            tracing::debug!(%error, "left without saying so");
        }
        Ok(())
    }

    fn pace(&self) -> Duration {
        if self.now().managers.len() > 1 {
            BEAT_EVERY
        } else {
            BEAT_ALONE
        }
    }

    /// Beats once, and takes in what changed.
    pub(crate) async fn renew(&self) -> Result<(), BrokerError> {
        let alive = self.broker.beat(&self.name, self.pace() * 2).await?;
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
                tracing::warn!(%error, "topics cannot be read: keeping what is known of them");
            }
            // They are read again at the next heartbeat.
            version = 0;
        }
        self.assign(version, alive.managers, topics);
        Ok(())
    }

    /// Reads the registry again, and brings back what was wiped. Topics whose server does not answer are those known before;
    /// the first such failure is given, too.
    pub(crate) async fn reload(
        &self,
    ) -> Result<(Vec<Arc<TopicHandle>>, Option<BrokerError>), BrokerError> {
        let lost = self.broker.redeclare_lost().await?;
        if !lost.is_empty() {
            tracing::warn!(topics = ?lost, "topics were gone from redis: declared again");
        }
        self.broker.refresh_reached().await
    }

    fn assign(&self, version: u64, managers: Vec<String>, topics: Vec<Arc<TopicHandle>>) {
        let held = held(&self.name, &managers, &topics);
        let mut before = BTreeSet::new();
        self.share.send_modify(|share| {
            before = share.held.iter().map(Held::place).collect();
            *share = Arc::new(Share {
                managers,
                topics,
                held,
                version,
            });
        });
        let share = self.now();
        if before != share.held.iter().map(Held::place).collect() {
            tracing::info!(
                shards = share.held.len(),
                managers = share.managers.len(),
                "took a new share"
            );
        }
    }
}

impl Held {
    /// Whether its holder does what is to be done once a topic.
    pub(crate) fn is_first(&self) -> bool {
        self.shard == self.topic.first_shard()
    }

    /// What tells it from other shards.
    pub(crate) fn place(&self) -> (Topic, Shard) {
        (self.topic.name().clone(), self.shard)
    }
}

/// Waits for what is asked of Redis, and is well for as long as Redis is away or says nothing.
pub(crate) async fn watched<T>(beat: &Beat, link: &Link, asked: impl Future<Output = T>) -> T {
    let progress = Progress::default();
    tokio::pin!(asked);
    loop {
        tokio::select! {
            answer = &mut asked => return answer,
            () = sleep(BEAT_EVERY) => {
                if !progress.is_stuck(link, ANSWERED_WITHIN) {
                    beat.ok();
                }
            }
        }
    }
}

/// The shards whose owner is `name`: rendezvous hashing, so that a manager that comes or goes moves only its own part.
fn held(name: &str, managers: &[String], topics: &[Arc<TopicHandle>]) -> Vec<Held> {
    let all = topics.iter().flat_map(|topic| {
        topic.shards().map(|shard| Held {
            topic: topic.clone(),
            shard,
        })
    });
    all.filter(|held| owner(managers, held.topic.name(), held.shard) == Some(name))
        .collect()
}

fn owner<'a>(managers: &'a [String], topic: &Topic, shard: Shard) -> Option<&'a str> {
    let weight = |manager: &&String| (weight(manager, topic, shard), (*manager).clone());
    managers.iter().max_by_key(weight).map(String::as_str)
}

/// A hash that is the same in every process and version: FNV-1a, with its bits mixed at the end as names differ little.
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
    fn shards_are_spread_and_only_the_share_of_a_lost_manager_moves() {
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
    fn nobody_alive_owns_nothing() {
        assert_eq!(owner(&[], &"t".parse().unwrap(), Shard::new(0)), None);
    }
}
