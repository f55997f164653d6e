//! One group of one topic, read into one handler: waits for the topic, then runs one feed for each shard.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lisa_shared::broker::{BrokerError, Membership, TopicHandle};
use lisa_shared::config::{SubscriptionGroup, meant};
use lisa_shared::link::Link;
use lisa_shared::shutdown::Shutdown;
use lisa_shared::supervise::{Beat, Part, PartName};
use lisa_shared::topic::{Group, Shard, Topic};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

use crate::consumer::{ConsumerError, DEFAULT_CONCURRENCY, Process};
use crate::feed::{self, Feed, Pulse};
use crate::handler::Handler;
use crate::suspects::Suspects;

/// How often a topic that is not there is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often the log repeats what is waited for.
const SAY_EVERY: Duration = Duration::from_secs(60);
/// How often the feeds are looked after.
const WATCH_EVERY: Duration = Duration::from_millis(500);
/// How long the feeds may be silent before the task counts as stuck, on top of a feed's own limit.
const SILENCE: Duration = Duration::from_secs(2);

/// One group of one topic, read into one handler.
pub struct Subscription {
    topic: Topic,
    group: Group,
    /// Whether the group is this process's own.
    of_instance: bool,
    handler: Arc<dyn Handler>,
    concurrency: usize,
    handler_timeout: Option<Duration>,
    suspects: Arc<Suspects>,
}

impl Subscription {
    /// Takes a handler for a group of a topic; [`DEFAULT_CONCURRENCY`], and the topic's own time-out.
    pub fn new(topic: Topic, group: Group, handler: impl Handler) -> Self {
        Self::shared(topic, SubscriptionGroup::Named(group), Arc::new(handler))
    }

    /// Takes a handler for everything that becomes due in a topic while this process runs, whatever other processes
    /// get: the process has a group of its own, which is gone `instance_ttl` after its end, with all it has not handled.
    pub fn of_instance(topic: Topic, handler: impl Handler) -> Self {
        Self::shared(topic, SubscriptionGroup::Instance, Arc::new(handler))
    }

    pub(crate) fn shared(
        topic: Topic,
        group: SubscriptionGroup,
        handler: Arc<dyn Handler>,
    ) -> Self {
        let of_instance = group == SubscriptionGroup::Instance;
        let group = match group {
            SubscriptionGroup::Named(group) => group,
            SubscriptionGroup::Instance => Group::for_instance(),
        };
        Self {
            topic,
            group,
            of_instance,
            handler,
            concurrency: DEFAULT_CONCURRENCY,
            handler_timeout: None,
            suspects: Arc::default(),
        }
    }

    /// Runs up to so many handlers at once, over all shards; 1 to 10000.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Gives up a handler after so long, whatever the topic says.
    #[must_use]
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.handler_timeout = Some(timeout);
        self
    }

    /// The same, in a fresh group of this process: the one it had is going away.
    fn in_fresh_group(&self) -> Self {
        Self {
            topic: self.topic.clone(),
            group: Group::for_instance(),
            of_instance: true,
            handler: self.handler.clone(),
            concurrency: self.concurrency,
            handler_timeout: self.handler_timeout,
            suspects: self.suspects.clone(),
        }
    }

    pub(crate) fn check(&self, most: usize) -> Result<(), ConsumerError> {
        if !(1..=most).contains(&self.concurrency) {
            return Err(ConsumerError::Concurrency(self.concurrency));
        }
        if self
            .handler_timeout
            .is_some_and(|timeout| timeout.is_zero())
        {
            return Err(ConsumerError::HandlerTimeout);
        }
        Ok(())
    }

    pub(crate) fn topic(&self) -> &Topic {
        &self.topic
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    pub(crate) fn handler(&self) -> &dyn Handler {
        &*self.handler
    }

    pub(crate) fn limit(&self) -> usize {
        self.concurrency
    }

    pub(crate) fn suspects(&self) -> &Suspects {
        &self.suspects
    }

    /// When a handler is given up.
    pub(crate) fn timeout(&self, topic: &TopicHandle) -> Duration {
        self.handler_timeout
            .unwrap_or(topic.settings().handler_timeout)
    }
}

impl fmt::Display for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.group)
    }
}

/// Why a subscription's task fell; it is started again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubscriptionError {
    /// The group of this process went away, as nothing was heard of it for `instance_ttl`.
    #[error("the group of this process is gone after a silence: it missed what became due since")]
    Lapsed,
}

/// Serves a subscription until the shutdown has drained it.
pub(crate) async fn run(
    process: Arc<Process>,
    subscription: Arc<Subscription>,
    shutdown: Shutdown,
    beat: Beat,
) -> Result<(), SubscriptionError> {
    let _hold = shutdown.hold();
    beat.unlimited();
    let wanted = subscription.clone();
    let (topic, subscription) = tokio::select! {
        found = registered(&process, subscription) => found,
        () = shutdown.draining().cancelled() => return Ok(()),
    };
    process.waits_for(&wanted, None);
    tracing::info!(topic = %subscription.topic, group = %subscription.group, consumer = process.name, "consuming");
    let permits = Arc::new(Semaphore::new(subscription.concurrency));
    let hooks = Arc::new(Semaphore::new(subscription.concurrency));
    let mut feeds = Feeds {
        process: process.clone(),
        subscription: subscription.clone(),
        permits,
        hooks,
        shutdown: shutdown.clone(),
        beat: beat.clone(),
        running: JoinSet::new(),
        feeds: BTreeMap::new(),
    };
    feeds.follow(&topic);
    let _gauges = Gauges {
        process: process.clone(),
        subscription: subscription.clone(),
    };
    beat.within(SILENCE);
    let lapsed = stay(&process, &subscription);
    tokio::pin!(lapsed);
    let mut watch = tokio::time::interval(WATCH_EVERY);
    let mut changes = process.broker.changes();
    // New shards may not have the group of this process yet. It must join them before the old ones hand over.
    let mut is_joined = true;
    loop {
        tokio::select! {
            // One that fails restarts itself: only those that were stopped, or have drained their shard, end.
            ended = feeds.running.join_next() => if ended.is_none() {
                return Ok(());
            },
            () = &mut lapsed => return Err(SubscriptionError::Lapsed),
            Ok(()) = changes.changed() => {
                if let Some(topic) = process.broker.known(&subscription.topic)
                    && !shutdown.draining().is_cancelled()
                {
                    if subscription.of_instance && !feeds.cover(&topic) {
                        is_joined = join(&process, &subscription, &topic).await;
                    }
                    feeds.follow(&topic);
                }
            }
            _ = watch.tick() => {
                if let Some(metrics) = &process.metrics {
                    let (topic, group) = (subscription.topic.as_str(), subscription.group.as_str());
                    subscription.suspects.report(metrics, topic, group);
                }
                if !is_joined && let Some(topic) = process.broker.known(&subscription.topic) {
                    is_joined = join(&process, &subscription, &topic).await;
                }
                let link = process.broker.link();
                if shutdown.draining().is_cancelled() {
                    beat.unlimited();
                } else if feeds.feeds.values().all(|feed| feed.is_fresh(link)) {
                    beat.ok();
                }
            }
        }
    }
}

/// The gauges of a subscription, which end with it: the group of an instance may never be read again.
struct Gauges {
    process: Arc<Process>,
    subscription: Arc<Subscription>,
}

impl Drop for Gauges {
    fn drop(&mut self) {
        if let Some(metrics) = &self.process.metrics {
            let Subscription { topic, group, .. } = &*self.subscription;
            metrics.forget_suspects(topic.as_str(), group.as_str());
        }
    }
}

/// The feeds of a subscription, one for each shard of its topic.
struct Feeds {
    process: Arc<Process>,
    subscription: Arc<Subscription>,
    permits: Arc<Semaphore>,
    hooks: Arc<Semaphore>,
    shutdown: Shutdown,
    beat: Beat,
    running: JoinSet<()>,
    feeds: BTreeMap<Shard, Running>,
}

/// A running feed, as its owner sees it.
struct Running {
    pulse: Arc<Pulse>,
    part: Arc<Part>,
    stop: AbortHandle,
}

impl Running {
    /// Says whether the feed gets on, or cannot for now.
    fn is_fresh(&self, link: &Link) -> bool {
        self.part.is_down() || self.pulse.is_fresh(link)
    }
}

impl Feeds {
    /// Starts a feed for each new shard of the topic, and ends those of shards that are gone: nothing is in flight there.
    fn follow(&mut self, topic: &Arc<TopicHandle>) {
        self.feeds.retain(|shard, feed| {
            let stays = topic.has(*shard);
            if !stays {
                feed.stop.abort();
            }
            stays
        });
        for shard in topic.shards() {
            if !self.feeds.contains_key(&shard) {
                let started = self.start(topic, shard);
                self.feeds.insert(shard, started);
            }
        }
    }

    /// Starts the feed of a shard. A panic in one of its loops ends this feed alone, which starts again by itself.
    fn start(&mut self, topic: &Arc<TopicHandle>, shard: Shard) -> Running {
        let pulse: Arc<Pulse> = Arc::default();
        let part = Arc::new(self.beat.part(PartName {
            kind: "feed",
            topic: topic.name().clone(),
            group: Some(self.subscription.group.clone()),
            shard: Some(shard),
        }));
        let (process, subscription) = (self.process.clone(), self.subscription.clone());
        let (permits, hooks) = (self.permits.clone(), self.hooks.clone());
        let (shutdown, topic, beats) = (self.shutdown.clone(), topic.clone(), pulse.clone());
        let make = move || {
            beats.ok();
            let mut feed = Feed::new(
                process.clone(),
                subscription.clone(),
                topic.clone(),
                shard,
                permits.clone(),
                hooks.clone(),
                shutdown.clone(),
            );
            feed.pulse = beats.clone();
            feed::run(Arc::new(feed))
        };
        let (kept, draining) = (part.clone(), self.shutdown.draining().clone());
        let stop = self.running.spawn(async move {
            kept.keep(&draining, make).await;
        });
        Running { pulse, part, stop }
    }

    /// Whether all shards of the topic have a feed.
    fn cover(&self, topic: &TopicHandle) -> bool {
        topic.shards().all(|shard| self.feeds.contains_key(&shard))
    }
}

/// Lets the group of this process join new shards of its topic; says whether that was done.
async fn join(process: &Process, subscription: &Subscription, topic: &TopicHandle) -> bool {
    let joined = process.broker.join(topic, &subscription.group).await;
    tracing::debug!(?joined, %subscription, "joined new shards");
    joined.is_ok()
}

/// Tells Redis now and then that this process is still there; ends when its group has gone away all the same.
async fn stay(process: &Process, subscription: &Subscription) {
    if !subscription.of_instance {
        return std::future::pending().await;
    }
    let broker = &process.broker;
    let mut said = Instant::now();
    loop {
        let ttl = match broker.known(&subscription.topic) {
            Some(topic) => topic.settings().instance_ttl,
            None => Duration::ZERO,
        };
        tokio::time::sleep((ttl / 5).max(LOOK_EVERY)).await;
        let Some(topic) = broker.known(&subscription.topic) else {
            continue;
        };
        match broker.join(&topic, &subscription.group).await {
            Ok(Membership::Member) => {
                let silent = said.elapsed();
                if silent > ttl {
                    // Made again, if it was removed already: that cannot be told from here.
                    tracing::warn!(
                        %subscription,
                        ?silent,
                        "silent for longer than instance_ttl: if the group of this process was removed meanwhile, it \
                         missed what became due"
                    );
                }
                said = Instant::now();
            }
            Ok(Membership::Lapsed) => return,
            Err(error) => {
                tracing::debug!(%error, %subscription, "cannot say that this process runs")
            }
        }
    }
}

/// Waits until the topic is registered and has the group; one of this process is made. Reports what is missing,
/// and repeats that now and then.
async fn registered(
    process: &Process,
    mut subscription: Arc<Subscription>,
) -> (Arc<TopicHandle>, Arc<Subscription>) {
    let wanted = subscription.clone();
    let mut said: Option<(String, Instant)> = None;
    loop {
        let missing = match process.broker.topic(&subscription.topic).await {
            Ok(topic) if subscription.of_instance => {
                match process.broker.join(&topic, &subscription.group).await {
                    Ok(Membership::Member) => {
                        let topic = process.broker.known(topic.name()).unwrap_or(topic);
                        return (topic, subscription);
                    }
                    Ok(Membership::Lapsed) => {
                        subscription = Arc::new(subscription.in_fresh_group());
                        continue;
                    }
                    Err(error) => format!("its group: cannot join {subscription}: {error}"),
                }
            }
            Ok(topic) if topic.groups().contains(&subscription.group) => {
                return (topic, subscription);
            }
            Ok(topic) => {
                let groups: Vec<_> = topic.groups().iter().map(Group::as_str).collect();
                format!(
                    "group {} of topic {}, which has only {}",
                    subscription.group,
                    subscription.topic,
                    groups.join(", ")
                )
            }
            Err(BrokerError::UnknownTopic(topic)) => {
                let known = process.broker.known_topics();
                let names = known.iter().map(|topic| topic.name().as_str());
                let meant = meant(topic.as_str(), names)
                    .map_or(String::new(), |name| format!("; did you mean {name}?"));
                format!("topic {topic}, which is not registered{meant}")
            }
            Err(error @ BrokerError::Layout { .. }) => error.to_string(),
            Err(error) => {
                tracing::debug!(%error, "cannot look for a topic");
                format!("topic {}: cannot look for it", subscription.topic)
            }
        };
        process.waits_for(&wanted, Some(format!("waiting for {missing}")));
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
