//! Moves due messages to their streams: one loop for each shard that this manager holds.
//!
//! A loop sleeps until the next message is due, or until a sender of something earlier wakes it. Wakes may be lost: no
//! loop sleeps for longer than two seconds and a half.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lisa_shared::broker::{Broker, BrokerError, Moved};
use lisa_shared::link::{Link, Progress};
use lisa_shared::metrics::Metrics;
use lisa_shared::shutdown::Shutdown;
use lisa_shared::supervise::{Beat, Part, PartName};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::giving_up::GivingUp;
use crate::share::{Held, Share, Shares};

/// Messages a call: 200 ids keep Redis busy for about half a millisecond.
const BATCH: u16 = 200;
/// The longest sleep of a loop.
pub(crate) const IDLE: Duration = Duration::from_millis(2500);
/// A loop without success for longer than this is not well, and shows two seconds later.
const SILENCE: Duration = Duration::from_secs(4);
const SHOWS_AFTER: Duration = Duration::from_secs(2);
/// How often the loops are looked after.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long new loops wait for their subscriptions: a wake before that would be lost.
const SUBSCRIBE_WITHIN: Duration = Duration::from_millis(300);
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The loops of one manager.
#[derive(Clone, Debug)]
pub(crate) struct Movers {
    pub(crate) broker: Broker,
    pub(crate) metrics: Metrics,
    pub(crate) shares: Shares,
}

/// A running loop, as its owner sees it.
struct Loop {
    wake: Arc<Notify>,
    progress: Arc<Progress>,
    part: Arc<Part>,
    stop: tokio::task::AbortHandle,
}

impl Movers {
    /// Moves until the shutdown: starts and stops loops as the share changes, and wakes them.
    pub(crate) async fn keep(&self, beat: Beat, shutdown: &Shutdown) -> Result<(), String> {
        let mut subscriber = self.broker.link().subscriber();
        let mut share = self.shares.watch();
        share.mark_changed();
        let mut loops: BTreeMap<String, Loop> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        let outage = Arc::new(Outage::default());
        let mut ticks = interval(LOOK_EVERY);
        beat.within(SHOWS_AFTER);
        loop {
            tokio::select! {
                changed = share.changed() => {
                    changed.map_err(|_| "nobody keeps the share any more".to_owned())?;
                    let now = share.borrow_and_update().clone();
                    stop_lost(&mut loops, &now);
                    let new: Vec<&Held> = now
                        .held
                        .iter()
                        .filter(|held| !loops.contains_key(held.channel()))
                        .collect();
                    // Channels of shards that went to others stay subscribed: their wakes find no loop here.
                    for held in &new {
                        subscriber.ssubscribe(held.channel());
                    }
                    if !new.is_empty() {
                        let _ = timeout(SUBSCRIBE_WITHIN, subscriber.subscribed()).await;
                    }
                    for held in new {
                        let started = self.start(held, &beat, &outage, &mut tasks, shutdown.draining());
                        loops.insert(held.channel().to_owned(), started);
                    }
                }
                channel = subscriber.next() => match channel {
                    Some(channel) => {
                        if let Some(mover) = loops.get(&channel) {
                            mover.wake.notify_one();
                        }
                    }
                    None => return Err("the link is closed".to_owned()),
                },
                _ = ticks.tick() => {
                    let link = self.broker.link();
                    if loops.values().all(|mover| !mover.is_stuck(link)) {
                        beat.ok();
                    }
                }
                // Each restarts itself: only those that were stopped end.
                Some(_) = tasks.join_next() => {}
                () = shutdown.draining().cancelled() => return Ok(()),
            }
        }
    }

    /// Starts the loop of a shard. A panic ends this loop alone, which starts again by itself.
    fn start(
        &self,
        held: &Held,
        beat: &Beat,
        outage: &Arc<Outage>,
        tasks: &mut JoinSet<()>,
        draining: &CancellationToken,
    ) -> Loop {
        let (wake, progress) = (Arc::new(Notify::new()), Arc::<Progress>::default());
        let part = Arc::new(beat.part(PartName {
            kind: "mover",
            topic: held.topic.name().clone(),
            group: None,
            shard: Some(held.shard),
        }));
        let make = {
            let (movers, held, outage) = (self.clone(), held.clone(), outage.clone());
            let (wake, progress) = (wake.clone(), progress.clone());
            move || {
                progress.made();
                let mover = Mover {
                    broker: movers.broker.clone(),
                    metrics: movers.metrics.clone(),
                    held: held.clone(),
                    wake: wake.clone(),
                    progress: progress.clone(),
                    trouble: Trouble::new(outage.clone()),
                    giving_up: GivingUp::default(),
                };
                mover.run()
            }
        };
        let (kept, draining) = (part.clone(), draining.clone());
        let stop = tasks.spawn(async move { kept.keep(&draining, make).await });
        Loop {
            wake,
            progress,
            part,
            stop,
        }
    }
}

impl Loop {
    fn is_stuck(&self, link: &Link) -> bool {
        !self.part.is_down() && self.progress.is_stuck(link, SILENCE)
    }
}

fn stop_lost(loops: &mut BTreeMap<String, Loop>, share: &Share) {
    let held: BTreeSet<&str> = share.held.iter().map(Held::channel).collect();
    loops.retain(|channel, mover| {
        let kept = held.contains(channel.as_str());
        if !kept {
            mover.stop.abort();
        }
        kept
    });
}

impl Held {
    fn channel(&self) -> &str {
        self.topic.wake_channel(self.shard)
    }
}

/// One loop. Dropping its future is safe at any point: a move that reached Redis is whole.
struct Mover {
    broker: Broker,
    metrics: Metrics,
    held: Held,
    wake: Arc<Notify>,
    progress: Arc<Progress>,
    trouble: Trouble,
    giving_up: GivingUp,
}

impl Mover {
    async fn run(mut self) -> Result<(), Infallible> {
        let mut backoff = SHORTEST_PAUSE;
        loop {
            let pause = match self.step().await {
                Ok(pause) => {
                    backoff = SHORTEST_PAUSE;
                    self.trouble.over(&self.held);
                    pause
                }
                Err(error) => {
                    self.trouble.met(&self.held, &error);
                    // Redis answered, if only "not now": this loop is not stuck, and no restart would help.
                    if error.is_answered() {
                        self.progress.made();
                    }
                    sleep(backoff).await;
                    backoff = (backoff * 2).min(LONGEST_PAUSE);
                    continue;
                }
            };
            if pause.is_zero() {
                // More is due: at once again, but after the other shards had their turn.
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = self.wake.notified() => {}
            }
        }
    }

    /// Moves one batch, or hands one over; gives how long to sleep.
    async fn step(&mut self) -> Result<Duration, BrokerError> {
        let pause = match self
            .giving_up
            .step(&self.broker, &self.metrics, &self.held)
            .await?
        {
            Some(pause) => pause,
            None => {
                let pause = move_once(&self.broker, &self.metrics, &self.held, IDLE).await?;
                pause.unwrap_or(IDLE)
            }
        };
        self.progress.made();
        Ok(pause)
    }
}

/// Moves one batch of a shard. Gives how long until the next look, zero if more is due; nothing while it is paused.
pub(crate) async fn move_once(
    broker: &Broker,
    metrics: &Metrics,
    held: &Held,
    idle: Duration,
) -> Result<Option<Duration>, BrokerError> {
    match broker
        .move_due(&held.topic, held.shard, BATCH, idle)
        .await?
    {
        Moved::Moved { count, pause } => {
            if count > 0 {
                metrics.moved(held.topic.name().as_str(), count);
            }
            Ok(Some(pause))
        }
        Moved::Paused => Ok(None),
    }
}

/// Loops that cannot reach Redis: an outage is one event, not one for each shard.
#[derive(Default)]
struct Outage {
    loops: AtomicUsize,
}

/// What one loop has said about its troubles.
struct Trouble {
    outage: Arc<Outage>,
    away: bool,
    /// A failure that is this shard's own.
    own: Option<String>,
}

impl Trouble {
    fn new(outage: Arc<Outage>) -> Self {
        Self {
            outage,
            away: false,
            own: None,
        }
    }

    fn met(&mut self, held: &Held, error: &BrokerError) {
        let (topic, shard) = (held.topic.name(), held.shard);
        if error.is_retryable() {
            if !std::mem::replace(&mut self.away, true)
                && self.outage.loops.fetch_add(1, Ordering::Relaxed) == 0
            {
                tracing::warn!(%topic, %shard, %error, "cannot move due messages; retrying");
            }
            return;
        }
        let text = error.to_string();
        if self.own.as_ref() != Some(&text) {
            tracing::error!(%topic, %shard, %error, "cannot move due messages; retrying");
            self.own = Some(text);
        }
    }

    fn over(&mut self, held: &Held) {
        if self.leave_outage() {
            tracing::info!("moving again");
        }
        if self.own.take().is_some() {
            let (topic, shard) = (held.topic.name(), held.shard);
            tracing::info!(%topic, %shard, "moving again");
        }
    }

    /// Says whether this was the last loop of an outage.
    fn leave_outage(&mut self) -> bool {
        std::mem::take(&mut self.away) && self.outage.loops.fetch_sub(1, Ordering::Relaxed) == 1
    }
}

impl Drop for Trouble {
    fn drop(&mut self) {
        self.leave_outage();
    }
}
