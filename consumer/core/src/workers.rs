//! Runs a subscription: waits for its topic, then runs one worker for each shard.

use crate::process::Process;
use crate::subscription::Subscription;
use crate::worker;
use crate::worker::fetch::BLOCK;
use crate::worker::state::{Permits, ShardWorker};
use lisa_core::broker::{BrokerError, Membership, TopicHandle};
use lisa_core::topic::{Group, Shard};
use lisa_service::metrics::DeliveryMetrics;
use lisa_service::shutdown::Shutdown;
use lisa_service::supervise::{Heartbeat, Part, PartName};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

/// The interval between checks for a missing topic or group.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The interval at which the log repeats what a subscription waits for.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// The interval between checks of the workers.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// The longest time between two reads of a worker: the time that a read blocks, and a margin for its reply.
const PROGRESS_WITHIN: Duration = BLOCK.saturating_add(Duration::from_millis(1500));

/// The time without progress, in addition to a worker's own limit, after which the task counts as stuck.
const SILENCE: Duration = Duration::from_secs(2);

/// The error that ends a subscription's task. The task is then restarted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubscriptionError {
    /// The group of this process is being removed because the process was silent for longer than `instance_ttl`.
    #[error(
        "group of this process expired after instance_ttl: it missed messages that became due since"
    )]
    Lapsed,
    /// The topic is no longer known: it was removed, or has another layout.
    #[error("the topic was removed or cannot be read; waiting for it")]
    Gone,
}

/// Serves a subscription until the shutdown has drained it. Waits for a topic that was removed until it is created again.
pub(crate) async fn run(
    process: Arc<Process>,
    subscription: Arc<Subscription>,
    shutdown: Shutdown,
    heartbeat: Heartbeat,
) -> Result<(), SubscriptionError> {
    loop {
        let (process, shutdown) = (process.clone(), shutdown.clone());
        let served = serve(process, subscription.clone(), shutdown, heartbeat.clone());
        match served.await {
            Err(error @ SubscriptionError::Gone) => tracing::warn!(%subscription, "{error}"),
            ended => return ended,
        }
    }
}

async fn serve(
    process: Arc<Process>,
    subscription: Arc<Subscription>,
    shutdown: Shutdown,
    heartbeat: Heartbeat,
) -> Result<(), SubscriptionError> {
    let _hold = shutdown.hold();
    heartbeat.unlimited();
    let wanted = subscription.clone();
    let (topic, subscription) = tokio::select! {
        found = registered(&process, subscription) => found,
        () = shutdown.draining().cancelled() => return Ok(()),
    };
    process.waits_for(wanted.to_string(), None);
    tracing::info!(topic = %subscription.topic(), group = %subscription.group(), consumer = process.name, "consuming");
    let semaphore = || Arc::new(Semaphore::new(subscription.limit()));
    let permits = Permits {
        handlers: match subscription.handler().target() {
            Some(target) => target.permits(&subscription.to_string(), subscription.limit()),
            None => semaphore(),
        },
        reads: Arc::default(),
        hooks: semaphore(),
    };
    let metrics = process.metrics.as_ref().map(|metrics| {
        let (topic, group) = (subscription.topic(), subscription.group());
        Arc::new(metrics.deliveries(topic.as_str(), group.as_str()))
    });
    let mut workers = Workers {
        process: process.clone(),
        subscription: subscription.clone(),
        permits,
        metrics,
        shutdown: shutdown.clone(),
        heartbeat: heartbeat.clone(),
        running: JoinSet::new(),
        workers: BTreeMap::new(),
    };
    workers.follow(&topic);
    let _gauges = Gauges {
        process: process.clone(),
        subscription: subscription.clone(),
    };
    heartbeat.within(SILENCE);
    let lapsed = stay(&process, &subscription);
    tokio::pin!(lapsed);
    let mut watch = tokio::time::interval(WATCH_EVERY);
    let mut changes = process.broker.changes();
    // New shards may lack the group of this process. It must be created there before the old shards migrate out.
    let mut is_joined = true;
    loop {
        tokio::select! {
            // A worker that fails is restarted. A worker ends only when it was stopped or has drained its shard.
            ended = workers.running.join_next() => if ended.is_none() {
                return Ok(());
            },
            () = &mut lapsed => return Err(SubscriptionError::Lapsed),
            Ok(()) = changes.changed() => {
                let Some(topic) = process.broker.known(subscription.topic()) else {
                    return Err(SubscriptionError::Gone);
                };
                if !shutdown.draining().is_cancelled() {
                    if subscription.is_of_instance() && !workers.cover(&topic) {
                        is_joined = join(&process, &subscription, &topic).await;
                    }
                    workers.follow(&topic);
                }
            }
            _ = watch.tick() => {
                if let Some(metrics) = &process.metrics {
                    let (topic, group) = (subscription.topic().as_str(), subscription.group().as_str());
                    subscription.suspects().report(metrics, topic, group);
                    if let Some(target) = subscription.handler().target() {
                        target.report(metrics, topic, group);
                    }
                }
                if !is_joined && let Some(topic) = process.broker.known(subscription.topic()) {
                    is_joined = join(&process, &subscription, &topic).await;
                }
                let connection = process.broker.connection();
                if shutdown.draining().is_cancelled() {
                    heartbeat.unlimited();
                } else if workers.workers.values().all(|worker| worker.part.is_fresh(connection, PROGRESS_WITHIN)) {
                    heartbeat.ok();
                }
            }
        }
    }
}

/// Removes the gauges of a subscription on drop, since the group of an instance may never be read again.
struct Gauges {
    process: Arc<Process>,
    subscription: Arc<Subscription>,
}

impl Drop for Gauges {
    fn drop(&mut self) {
        if let Some(metrics) = &self.process.metrics {
            let (topic, group) = (self.subscription.topic(), self.subscription.group());
            metrics.forget_suspects(topic.as_str(), group.as_str());
            metrics.forget_sink(topic.as_str(), group.as_str());
        }
    }
}

/// The workers of a subscription, one for each shard of its topic.
struct Workers {
    process: Arc<Process>,
    subscription: Arc<Subscription>,
    permits: Permits,
    metrics: Option<Arc<DeliveryMetrics>>,
    shutdown: Shutdown,
    heartbeat: Heartbeat,
    running: JoinSet<()>,
    workers: BTreeMap<Shard, Running>,
}

/// A handle to a running worker.
struct Running {
    part: Arc<Part>,
    stop: AbortHandle,
}

impl Workers {
    /// Starts a worker for each new shard of the topic, and stops the workers of removed shards: nothing is in flight there.
    fn follow(&mut self, topic: &Arc<TopicHandle>) {
        self.workers.retain(|shard, worker| {
            let stays = topic.has(*shard);
            if !stays {
                worker.stop.abort();
            }
            stays
        });
        for shard in topic.shards() {
            if !self.workers.contains_key(&shard) {
                let started = self.start(topic, shard);
                self.workers.insert(shard, started);
            }
        }
    }

    /// Starts the worker of a shard. A panic in one of its loops ends only this worker, which is then restarted.
    fn start(&mut self, topic: &Arc<TopicHandle>, shard: Shard) -> Running {
        let part = Arc::new(self.heartbeat.part(PartName {
            kind: "worker",
            topic: topic.name().clone(),
            group: Some(self.subscription.group().clone()),
            shard: Some(shard),
        }));
        let (process, subscription) = (self.process.clone(), self.subscription.clone());
        let (permits, worker_part) = (self.permits.clone(), part.clone());
        let metrics = self.metrics.clone();
        let (shutdown, topic) = (self.shutdown.clone(), topic.clone());
        let make = move || {
            let mut worker = ShardWorker::new(
                process.clone(),
                subscription.clone(),
                topic.clone(),
                shard,
                permits.clone(),
                worker_part.clone(),
                shutdown.clone(),
            );
            worker.metrics = metrics.clone();
            worker::run(Arc::new(worker))
        };
        let (kept, draining) = (part.clone(), self.shutdown.draining().clone());
        let stop = self.running.spawn(async move {
            kept.keep(&draining, make).await;
        });
        Running { part, stop }
    }

    /// Returns whether every shard of the topic has a worker.
    fn cover(&self, topic: &TopicHandle) -> bool {
        topic
            .shards()
            .all(|shard| self.workers.contains_key(&shard))
    }
}

/// Creates the group of this process on the new shards of its topic. Returns whether that succeeded.
async fn join(process: &Process, subscription: &Subscription, topic: &TopicHandle) -> bool {
    let joined = process.broker.join(topic, subscription.group()).await;
    tracing::debug!(?joined, %subscription, "joining new shards");
    joined.is_ok()
}

/// Renews the group of this process every fifth of `instance_ttl`, at least 500 ms apart. Returns once the group is being
/// removed all the same; never for a named group.
async fn stay(process: &Process, subscription: &Subscription) {
    if !subscription.is_of_instance() {
        return std::future::pending().await;
    }
    let broker = &process.broker;
    let mut said = Instant::now();
    loop {
        let ttl = match broker.known(subscription.topic()) {
            Some(topic) => topic.settings().instance_ttl,
            None => Duration::ZERO,
        };
        tokio::time::sleep((ttl / 5).max(LOOK_EVERY)).await;
        let Some(topic) = broker.known(subscription.topic()) else {
            continue;
        };
        match broker.join(&topic, subscription.group()).await {
            Ok(Membership::Member) => {
                let silent = said.elapsed();
                if silent > ttl {
                    // If the group was removed already, this call created it again. The reply does not say so.
                    tracing::warn!(
                        %subscription,
                        ?silent,
                        "silent for longer than instance_ttl: if the group of this process was removed in the \
                         meantime, it missed messages"
                    );
                }
                said = Instant::now();
            }
            Ok(Membership::Lapsed) => return,
            Err(error) => {
                tracing::debug!(%error, %subscription, "cannot renew the group of this process; retrying")
            }
        }
    }
}

/// Waits until the topic is registered and has the group; creates a group of this process. Logs what is missing, again after
/// [`SAY_EVERY`].
async fn registered(
    process: &Process,
    mut subscription: Arc<Subscription>,
) -> (Arc<TopicHandle>, Arc<Subscription>) {
    let wanted = subscription.clone();
    let mut said: Option<(String, Instant)> = None;
    let (mut changes, mut suggestion) = (process.broker.changes(), None);
    loop {
        let missing = match process.broker.topic(subscription.topic()).await {
            Ok(topic) if subscription.is_of_instance() => {
                match process.broker.join(&topic, subscription.group()).await {
                    Ok(Membership::Member) => {
                        let topic = process.broker.known(topic.name()).unwrap_or(topic);
                        return (topic, subscription);
                    }
                    Ok(Membership::Lapsed) => {
                        subscription = Arc::new(subscription.in_fresh_group());
                        continue;
                    }
                    Err(error) => format!("group {subscription}: cannot create it: {error}"),
                }
            }
            Ok(topic) if topic.groups().contains(subscription.group()) => {
                return (topic, subscription);
            }
            Ok(topic) => {
                let groups: Vec<_> = topic.groups().iter().map(Group::as_str).collect();
                format!(
                    "group {} of topic {}, which has only {}",
                    subscription.group(),
                    subscription.topic(),
                    groups.join(", ")
                )
            }
            Err(BrokerError::UnknownTopic(topic)) => {
                // The search compares many names, so it is repeated only after the known topics have changed.
                if suggestion.is_none() || changes.has_changed().is_ok_and(|changed| changed) {
                    changes.mark_unchanged();
                    suggestion = Some(process.broker.suggest_topic(&topic));
                }
                let suggestion = suggestion.as_deref().unwrap_or_default();
                format!("topic {topic}, which is not registered{suggestion}")
            }
            Err(error @ BrokerError::Layout { .. }) => error.to_string(),
            Err(error) => {
                tracing::debug!(%error, "cannot look up a topic; retrying");
                format!("topic {}: cannot look it up", subscription.topic())
            }
        };
        process.waits_for(wanted.to_string(), Some(format!("waiting for {missing}")));
        let is_news = match &said {
            Some((text, at)) => *text != missing || at.elapsed() >= SAY_EVERY,
            None => true,
        };
        if is_news {
            tracing::warn!(consumer = process.name, "waiting for {missing}");
            said = Some((missing, Instant::now()));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
