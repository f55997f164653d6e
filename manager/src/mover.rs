//! Moves due messages to their streams: one loop for each shard that this manager holds.
//!
//! A loop sleeps until the next message is due, or until the sender of an earlier message wakes it. Wakes may be lost, so
//! each loop looks at its shard every 2.5 s: with a probe, or with the script if a probe cannot judge the shard.

mod probes;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_timer::Delay;
use lisa_core::broker::{Broker, BrokerError, Moved, Probe, TopicHandle};
use lisa_core::outage::Outage;
use lisa_core::time::UnixMs;
use lisa_service::metrics::Metrics;
use lisa_service::shutdown::Shutdown;
use lisa_service::supervise::{DEFAULT_LIMIT, Heartbeat, Part, PartName};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::assignment::{AssignedShard, Assignment, Assignments};
use crate::mover::probes::Probes;
use crate::reshard::Resharding;
use crate::wakes::Wakes;

/// The largest number of messages per call: 200 keep Redis busy for about half a millisecond.
const BATCH: u16 = 200;
/// The longest time between two looks at a shard.
pub(crate) const IDLE: Duration = Duration::from_millis(2500);
/// The longest time between two calls of the script for a shard that probes can judge. Until then, a send of anything due
/// earlier than the known messages publishes a wake.
pub(crate) const REST: Duration = Duration::from_secs(300);
/// The shortest rest between two calls for a shard, as a multiple of the duration of the last call. A full call is followed by
/// none. Under load, a fast server is called every millisecond, and a busy one less often, for more messages.
const GAP: u32 = 4;
/// The upper limit of that rest.
const LONGEST_GAP: Duration = Duration::from_millis(1);
/// The last part of a pause, which a more precise timer measures. Tokio's timer is late by less than this.
const FINE: Duration = Duration::from_millis(2);
/// The difference between the expected and the actual time of Redis beyond which its clock has jumped.
const JUMP: Duration = Duration::from_secs(1);
/// The time after which the task counts as stuck, once one of its loops made no progress.
const SHOWS_AFTER: Duration = Duration::from_secs(2);
/// The interval between checks of the loops.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The longest time that new loops wait for their subscriptions. A wake before that would be lost.
const SUBSCRIBE_WITHIN: Duration = Duration::from_millis(300);

/// The movers of one manager.
#[derive(Clone, Debug)]
pub(crate) struct Movers {
    pub(crate) broker: Broker,
    pub(crate) metrics: Metrics,
    pub(crate) assignments: Assignments,
    pub(crate) wakes: Arc<Wakes>,
}

/// A handle to a running loop.
struct Loop {
    wake: Arc<Notify>,
    part: Arc<Part>,
    stop: tokio::task::AbortHandle,
}

impl Movers {
    /// Runs the loops until the shutdown begins: starts and stops them as the assignment changes, and wakes them.
    pub(crate) async fn keep(
        &self,
        heartbeat: Heartbeat,
        shutdown: &Shutdown,
    ) -> Result<(), String> {
        let mut subscriber = self.broker.connection().subscriber();
        subscriber.ssubscribe(self.broker.registry_channel());
        let mut assignment = self.assignments.watch();
        assignment.mark_changed();
        let mut loops: BTreeMap<String, Loop> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        let (probes, answering) = probes::start(&self.broker);
        tasks.spawn(answering);
        let outage = Arc::new(Outage::new("move due messages"));
        let mut ticks = interval(LOOK_EVERY);
        heartbeat.within(SHOWS_AFTER);
        loop {
            tokio::select! {
                changed = assignment.changed() => {
                    changed.map_err(|_| "the assignment is no longer updated".to_owned())?;
                    let now = assignment.borrow_and_update().clone();
                    stop_lost(&mut loops, &now);
                    let new: Vec<&AssignedShard> = now
                        .shards
                        .iter()
                        .filter(|assigned| !loops.contains_key(assigned.channel()))
                        .collect();
                    // Channels of shards that moved to other managers stay subscribed: their wakes have no effect here.
                    for assigned in &new {
                        subscriber.ssubscribe(assigned.channel());
                    }
                    if !new.is_empty() {
                        let _ = timeout(SUBSCRIBE_WITHIN, subscriber.subscribed()).await;
                    }
                    for assigned in new {
                        let started = self.start(assigned, &probes, &heartbeat, &outage, &mut tasks, shutdown.draining());
                        loops.insert(assigned.channel().to_owned(), started);
                    }
                }
                channel = subscriber.next() => match channel {
                    Some(channel) if channel == self.broker.registry_channel() => {
                        self.assignments.registry_changed();
                    }
                    Some(channel) => {
                        if let Some(mover) = loops.get(&channel) {
                            self.wakes.woken(&channel);
                            mover.wake.notify_one();
                        }
                    }
                    None => return Err("the subscriber connection is closed".to_owned()),
                },
                _ = ticks.tick() => {
                    let connection = self.broker.connection();
                    if loops.values().all(|mover| mover.part.is_fresh(connection, DEFAULT_LIMIT)) {
                        heartbeat.ok();
                    }
                }
                // A loop that fails is restarted. A loop ends only when it was stopped.
                Some(_) = tasks.join_next() => {}
                () = shutdown.draining().cancelled() => return Ok(()),
            }
        }
    }

    /// Starts the loop of a shard. A panic ends only this loop, which is then restarted.
    fn start(
        &self,
        assigned: &AssignedShard,
        probes: &Probes,
        heartbeat: &Heartbeat,
        outage: &Arc<Outage>,
        tasks: &mut JoinSet<()>,
        draining: &CancellationToken,
    ) -> Loop {
        let wake = Arc::new(Notify::new());
        let part = Arc::new(heartbeat.part(PartName {
            kind: "mover",
            topic: assigned.topic.name().clone(),
            group: None,
            shard: Some(assigned.shard),
        }));
        let make = {
            let (movers, assigned, outage) = (self.clone(), assigned.clone(), outage.clone());
            let (wake, part, probes) = (wake.clone(), part.clone(), probes.clone());
            move || {
                let mover = Mover {
                    broker: movers.broker.clone(),
                    metrics: movers.metrics.clone(),
                    assigned: assigned.clone(),
                    probes: probes.clone(),
                    nap: IDLE.mul_f64(fastrand::f64()),
                    has_messages: false,
                    wake: wake.clone(),
                    part: part.clone(),
                    outage: outage.of(assigned.topic.name(), None, assigned.shard),
                    reshard: Resharding::default(),
                };
                mover.run()
            }
        };
        let (kept, draining) = (part.clone(), draining.clone());
        let stop = tasks.spawn(async move { kept.keep(&draining, make).await });
        Loop { wake, part, stop }
    }
}

fn stop_lost(loops: &mut BTreeMap<String, Loop>, assignment: &Assignment) {
    let assigned: BTreeSet<&str> = assignment
        .shards
        .iter()
        .map(AssignedShard::channel)
        .collect();
    loops.retain(|channel, mover| {
        let kept = assigned.contains(channel.as_str());
        if !kept {
            mover.stop.abort();
        }
        kept
    });
}

impl AssignedShard {
    pub(crate) fn channel(&self) -> &str {
        self.topic.wake_channel(self.shard)
    }
}

/// One loop. Dropping its future is safe at any point: each move is atomic in Redis.
struct Mover {
    broker: Broker,
    metrics: Metrics,
    assigned: AssignedShard,
    probes: Probes,
    /// The time until the next probe. The first time is random, which spreads the probes of many shards.
    nap: Duration,
    /// True if the last probe found messages: then the next one is not shared with other shards.
    has_messages: bool,
    wake: Arc<Notify>,
    part: Arc<Part>,
    outage: Outage,
    reshard: Resharding,
}

impl Mover {
    async fn run(mut self) -> Result<(), Infallible> {
        loop {
            let pause = match self.step().await {
                Ok(pause) => {
                    self.outage.recovered();
                    pause
                }
                Err(error) => {
                    // Redis answered, even if with an error: this loop is not stuck, and a restart would not help.
                    if error.is_answered() {
                        self.part.ok();
                    }
                    sleep(self.outage.failed(&error)).await;
                    continue;
                }
            };
            if pause.is_zero() {
                // More is due: continues immediately, but lets other shards run first.
                tokio::task::yield_now().await;
                continue;
            }
            self.rest(pause).await;
        }
    }

    /// Moves one batch, or migrates one out. Returns how long to rest.
    async fn step(&mut self) -> Result<Duration, BrokerError> {
        let pause = match self
            .reshard
            .step(&self.broker, &self.metrics, &self.assigned)
            .await?
        {
            Some(pause) => pause,
            None => {
                let idle = if self.can_probe() { REST } else { IDLE };
                let begun = Instant::now();
                let pause = move_once(&self.broker, &self.metrics, &self.assigned, idle).await?;
                let gap = LONGEST_GAP.min(begun.elapsed() * GAP);
                // The move may have shown that probes cannot judge the shard.
                let longest = if self.can_probe() { REST } else { IDLE };
                match pause.unwrap_or(IDLE).min(longest) {
                    Duration::ZERO => Duration::ZERO,
                    pause => pause.max(gap),
                }
            }
        };
        self.part.ok();
        Ok(pause)
    }

    /// Waits until the next step: after `pause`, or as soon as a wake arrives or a look at the shard shows that something
    /// is due earlier.
    async fn rest(&mut self, pause: Duration) {
        let begun = Instant::now();
        let started = self
            .broker
            .now_at(&self.assigned.topic, self.assigned.shard);
        let mut until = begun + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let nap = std::mem::replace(&mut self.nap, probes::EVERY);
            let is_last = left <= nap;
            let slept = async {
                if is_last {
                    sleep_exactly(until).await;
                } else {
                    sleep(nap).await;
                }
            };
            tokio::select! {
                () = slept => {}
                () = self.wake.notified() => return,
            }
            if is_last {
                return;
            }
            let seen = tokio::select! {
                seen = self.probe() => seen,
                () = sleep_exactly(until) => return,
                () = self.wake.notified() => return,
            };
            match seen {
                Some(Probe::Empty) => self.has_messages = false,
                Some(Probe::Waits { now, next_due })
                    if is_steady(started, begun.elapsed(), now) =>
                {
                    self.has_messages = true;
                    until = until.min(Instant::now() + next_due.since(now));
                }
                _ => return,
            }
            self.part.ok();
        }
    }

    /// Looks at the shard without a script. Returns `None` if the script has to be called.
    async fn probe(&self) -> Option<Probe> {
        if !self.can_probe() {
            return None;
        }
        let (topic, shard) = (self.topic(), self.assigned.shard);
        self.probes.ask(topic, shard, self.has_messages).await
    }

    /// Returns true if probes can judge the shard. A topic that is being resharded needs each step.
    fn can_probe(&self) -> bool {
        let topic = self.topic();
        !topic.is_resharding()
            && topic.removal().is_none()
            && topic.retired().is_none()
            && self.broker.can_probe(&topic, self.assigned.shard)
    }

    fn topic(&self) -> Arc<TopicHandle> {
        self.assigned.current(&self.broker)
    }
}

/// Sleeps until an instant, precise to about 0.1 ms. Tokio's timer counts whole milliseconds and is up to 2 ms late.
async fn sleep_exactly(until: Instant) {
    let left = || until.saturating_duration_since(Instant::now());
    if let Some(most) = left().checked_sub(FINE) {
        sleep(most).await;
    }
    Delay::new(left()).await;
}

/// Returns true if Redis's clock has advanced like the clock of this host.
fn is_steady(started: UnixMs, elapsed: Duration, now: UnixMs) -> bool {
    let expected = started.plus(elapsed);
    expected.since(now).max(now.since(expected)) < JUMP
}

/// Moves one batch of a shard. Returns the time until the next call, zero if more is due; `None` while it is paused.
pub(crate) async fn move_once(
    broker: &Broker,
    metrics: &Metrics,
    assigned: &AssignedShard,
    idle: Duration,
) -> Result<Option<Duration>, BrokerError> {
    match broker
        .move_due(&assigned.topic, assigned.shard, BATCH, idle)
        .await?
    {
        Moved::Moved { count, pause } => {
            if count > 0 {
                metrics.moved(assigned.topic.name().as_str(), count);
            }
            Ok(Some(pause))
        }
        Moved::Paused => Ok(None),
    }
}
