//! One shard of one subscription: what its loops share, and the order in which they end.
//!
//! A feed reads ([`fetch`](crate::fetch)), runs each delivery in a task of its own ([`deliver`](crate::deliver)), keeps
//! leases ([`lease`](crate::lease)), tells Redis the outcomes ([`settle`](crate::settle)), runs the hooks of what was
//! given up ([`notices`](crate::notices)), and reports that it is there ([`presence`](crate::presence)).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lisa_shared::broker::{Settlement, TopicHandle, Verdict};
use lisa_shared::link::{Link, Progress};
use lisa_shared::message::MessageId;
use lisa_shared::shutdown::Shutdown;
use lisa_shared::time::{UnixMs, When};
use lisa_shared::topic::Shard;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinError;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::consumer::Process;
use crate::lease::{Lease, Leases};
use crate::payloads::Sizes;
use crate::subscription::Subscription;
use crate::{fetch, lease, notices, presence, settle};

/// Outcomes that may wait for Redis; a delivery beyond that keeps its permit until there is room.
const QUEUE: usize = 1024;
/// How long a feed may go without a successful read, while Redis answers.
const FRESH: Duration = Duration::from_secs(4);
/// After the end of the grace, outcomes get this long to reach Redis: less than a supervisor waits.
const FLUSH: Duration = Duration::from_millis(1500);
/// And tasks that still do not end, so long after that.
const CUT_OFF: Duration = Duration::from_millis(250);

/// One shard of one subscription.
pub(crate) struct Feed {
    pub(crate) process: Arc<Process>,
    pub(crate) subscription: Arc<Subscription>,
    pub(crate) shard: Shard,
    pub(crate) shutdown: Shutdown,
    /// One for each handler that may run; shared by the subscription's shards.
    pub(crate) permits: Arc<Semaphore>,
    /// One for each hook that may run; shared likewise.
    pub(crate) hooks: Arc<Semaphore>,
    /// Told when a message of this shard was just given up.
    pub(crate) buried: Notify,
    pub(crate) leases: Arc<Leases>,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) sizes: Sizes,
    /// Cancelled at the end of the grace, and when the feed is dropped: handlers are dropped then.
    pub(crate) stop: CancellationToken,
    /// Cancelled when Redis need not be asked any more.
    pub(crate) too_late: CancellationToken,
    first: Arc<TopicHandle>,
}

impl Feed {
    /// The clock of the shard's server.
    pub(crate) fn now(&self, topic: &TopicHandle) -> UnixMs {
        self.process.broker.now_at(topic, self.shard)
    }

    pub(crate) fn new(
        process: Arc<Process>,
        subscription: Arc<Subscription>,
        topic: Arc<TopicHandle>,
        shard: Shard,
        permits: Arc<Semaphore>,
        hooks: Arc<Semaphore>,
        shutdown: Shutdown,
    ) -> Self {
        Self {
            process,
            subscription,
            shard,
            permits,
            hooks,
            buried: Notify::new(),
            leases: Arc::default(),
            pulse: Arc::default(),
            sizes: Sizes::default(),
            stop: shutdown.now().child_token(),
            shutdown,
            too_late: CancellationToken::new(),
            first: topic,
        }
    }

    /// The topic with its newest settings.
    pub(crate) fn topic(&self) -> Arc<TopicHandle> {
        let known = self.process.broker.known(self.first.name());
        known.unwrap_or_else(|| self.first.clone())
    }

    pub(crate) fn draining(&self) -> &CancellationToken {
        self.shutdown.draining()
    }
}

/// Why a feed fell.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FeedError {
    /// A loop of the feed panicked, or ended.
    #[error("the {0} loop ended{why}", why = why(.1.as_ref()))]
    Ended(&'static str, Option<JoinError>),
}

fn why(error: Option<&JoinError>) -> String {
    error.map_or_else(String::new, |error| format!(": {error}"))
}

/// Serves a shard until the shutdown has drained it. If the future is dropped, everything of the feed stops, and what
/// it held comes again after its lease.
pub(crate) async fn run(feed: Arc<Feed>) -> Result<(), FeedError> {
    let _stop = feed.stop.clone().drop_guard();
    let (outcomes, queue) = mpsc::channel(QUEUE);
    let mut settling = AbortOnDropHandle::new(tokio::spawn(settle::run(feed.clone(), queue)));
    let mut renewing = AbortOnDropHandle::new(tokio::spawn(lease::run(feed.clone())));
    let mut noticing = AbortOnDropHandle::new(tokio::spawn(notices::run(feed.clone())));
    let mut present = AbortOnDropHandle::new(tokio::spawn(presence::run(feed.clone())));
    let deliveries = TaskTracker::new();
    let desk = Desk {
        feed: feed.clone(),
        outcomes,
        deliveries: deliveries.clone(),
    };
    tokio::select! {
        () = fetch::run(&desk) => {}
        ended = &mut settling => return Err(FeedError::Ended("settle", ended.err())),
        ended = &mut renewing => return Err(FeedError::Ended("lease", ended.err())),
        Err(error) = &mut noticing => return Err(FeedError::Ended("notices", Some(error))),
        Err(error) = &mut present => return Err(FeedError::Ended("presence", Some(error))),
    }
    let leave = async {
        deliveries.close();
        deliveries.wait().await;
        drop(desk);
        let settled = settling.await;
        settled.map_err(|error| FeedError::Ended("settle", Some(error)))?;
        if !noticing.is_finished() {
            let noticed = noticing.await;
            noticed.map_err(|error| FeedError::Ended("notices", Some(error)))?;
        }
        // Its last report would make the consumer again.
        if !present.is_finished() {
            let ended = present.await;
            ended.map_err(|error| FeedError::Ended("presence", Some(error)))?;
        }
        let (process, topic) = (&feed.process, feed.topic());
        let group = feed.subscription.group();
        let dropped = process
            .broker
            .drop_consumer(&topic, feed.shard, group, &process.name);
        if let Some(Err(error)) = feed.too_late.run_until_cancelled(dropped).await {
            tracing::debug!(%error, "cannot drop the consumer: the manager will");
        }
        Ok(())
    };
    let limit = async {
        feed.stop.cancelled().await;
        sleep(FLUSH).await;
        feed.too_late.cancel();
        sleep(CUT_OFF).await;
    };
    tokio::select! {
        left = leave => left,
        () = limit => {
            tracing::warn!(subscription = %feed.subscription, shard = %feed.shard, "handlers that block a thread are cut off");
            Ok(())
        }
    }
}

/// Where deliveries are started from and report to. While one is alive, outcomes may come.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) feed: Arc<Feed>,
    pub(crate) outcomes: mpsc::Sender<(Settlement, Lease)>,
    pub(crate) deliveries: TaskTracker,
}

impl Desk {
    /// Queues an outcome; waits while the queue is full. The lease is renewed until Redis has answered.
    pub(crate) async fn settle(&self, settlement: Settlement, lease: Lease) {
        lease.settling();
        if self.outcomes.send((settlement, lease)).await.is_err() {
            self.feed.process.tally.unsettled(1);
        }
    }

    /// Gives a delivery back, so that another consumer gets it at once and no attempt is counted.
    pub(crate) async fn hand_back(&self, id: MessageId, lease: Lease) {
        self.put_off(id, lease, When::NOW).await;
    }

    /// Gives a delivery back until then; no attempt is counted.
    pub(crate) async fn put_off(&self, id: MessageId, lease: Lease, when: When) {
        let settlement = Settlement {
            entry: lease.entry(),
            id,
            // Neither is looked at when a message is handed back.
            caller_id: false,
            max_attempts: u32::MAX,
            verdict: Verdict::HandBack { when },
        };
        self.settle(settlement, lease).await;
    }
}

/// When a feed last made progress.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    reads: Progress,
    resting: AtomicBool,
}

impl Pulse {
    /// Notes a successful read, or the end of a rest.
    pub(crate) fn ok(&self) {
        self.reads.made();
        self.resting.store(false, Ordering::Relaxed);
    }

    /// Notes that the feed waits for handlers, for however long they take.
    pub(crate) fn rest(&self) {
        self.resting.store(true, Ordering::Relaxed);
    }

    /// Says whether the feed gets on, or cannot for now.
    pub(crate) fn is_fresh(&self, link: &Link) -> bool {
        self.resting.load(Ordering::Relaxed) || !self.reads.is_stuck(link, FRESH)
    }
}
