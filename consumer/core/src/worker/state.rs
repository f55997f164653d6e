//! The state that the tasks of a shard worker share.

use crate::process::Process;
use crate::shared_reads::SharedReads;
use crate::subscription::Subscription;
use crate::worker::failures::Failures;
use crate::worker::lease::{Lease, Leases};
use crate::worker::payload_limits::Sizes;
use lisa_core::broker::{LatenessCounts, Settlement, TopicHandle, Verdict};
use lisa_core::message::MessageId;
use lisa_core::outage::Outage;
use lisa_core::state::Settled;
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::Shard;
use lisa_service::metrics::DeliveryMetrics;
use lisa_service::shutdown::Shutdown;
use lisa_service::spans::{CommonAttributes, Span};
use lisa_service::supervise::{Part, contain};
use std::sync::Arc;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The permits that all shards of a subscription share.
#[derive(Clone)]
pub(crate) struct Permits {
    /// One for each handler that may run.
    pub(crate) handlers: Arc<Semaphore>,
    /// The reads that hold some of these.
    pub(crate) reads: Arc<SharedReads>,
    /// One for each garbage hook that may run.
    pub(crate) hooks: Arc<Semaphore>,
}

/// The worker of one shard of one subscription.
pub(crate) struct ShardWorker {
    pub(crate) process: Arc<Process>,
    pub(crate) subscription: Arc<Subscription>,
    pub(crate) shard: Shard,
    /// Cancelled when the shutdown begins.
    pub(crate) draining: Arc<CancellationToken>,
    pub(crate) permits: Permits,
    /// Notified when this worker has moved a message to garbage.
    pub(crate) garbage_added: Notify,
    /// Cancelled when the hooks are enabled, or if there are none. Nothing is read before.
    pub(crate) hooks_enabled: CancellationToken,
    pub(crate) leases: Arc<Leases>,
    /// The failed attempts that are logged.
    pub(crate) failures: Failures,
    /// The supervised loop, to which reads report their progress.
    pub(crate) part: Arc<Part>,
    pub(crate) sizes: Sizes,
    /// The deliveries of the topic by lateness, for its history.
    pub(crate) lateness: Arc<LatenessCounts>,
    /// The metrics of the subscription's deliveries.
    pub(crate) metrics: Option<Arc<DeliveryMetrics>>,
    /// Cancelled at the end of the grace period, and when the worker is dropped. Handlers are then dropped.
    pub(crate) stop: CancellationToken,
    /// Cancelled when the worker must make no further calls to Redis.
    pub(crate) too_late: CancellationToken,
    first: Arc<TopicHandle>,
}

impl ShardWorker {
    /// Counts a delivery as stale: it lost its lease, and its message has moved on.
    pub(crate) fn count_stale(&self) {
        self.process.counters.settled(Settled::Stale);
        if let Some(metrics) = &self.metrics {
            metrics.ended(Settled::Stale);
        }
    }

    /// Returns the time on the clock of the shard's server.
    pub(crate) fn now(&self, topic: &TopicHandle) -> UnixMs {
        self.process.broker.now_at(topic, self.shard)
    }

    pub(crate) fn new(
        process: Arc<Process>,
        subscription: Arc<Subscription>,
        topic: Arc<TopicHandle>,
        shard: Shard,
        permits: Permits,
        part: Arc<Part>,
        shutdown: Shutdown,
    ) -> Self {
        let leases = Arc::default();
        process.add_worker(subscription.topic(), subscription.group(), &leases);
        let lateness = process.broker.lateness_of(subscription.topic());
        Self {
            process,
            subscription,
            shard,
            permits,
            part,
            garbage_added: Notify::new(),
            hooks_enabled: CancellationToken::new(),
            leases,
            failures: Failures::default(),
            sizes: Sizes::default(),
            lateness,
            metrics: None,
            stop: shutdown.now().child_token(),
            draining: Arc::new(shutdown.draining().clone()),
            too_late: CancellationToken::new(),
            first: topic,
        }
    }

    /// Creates the outage of a loop of this worker; `task` completes "cannot …".
    pub(crate) fn outage(&self, task: &'static str) -> Outage {
        let (topic, group) = (self.subscription.topic(), self.subscription.group());
        Outage::new(task).of(topic, Some(group), self.shard)
    }

    /// Returns the topic with its newest settings.
    pub(crate) fn topic(&self) -> Arc<TopicHandle> {
        let known = self.process.broker.known(self.first.name());
        known.unwrap_or_else(|| self.first.clone())
    }

    /// Returns what the spans of its deliveries have in common.
    pub(crate) fn common(&self) -> CommonAttributes<'_> {
        CommonAttributes {
            topic: self.subscription.topic(),
            group: Some(self.subscription.group()),
            shard: Some(self.shard),
            client: Some(&self.process.name),
        }
    }

    pub(crate) fn draining(&self) -> &CancellationToken {
        &self.draining
    }
}

/// The tracker of delivery tasks, and the queue of their outcomes. While a clone is alive, outcomes may arrive.
#[derive(Clone)]
pub(crate) struct SettleQueue {
    pub(crate) worker: Arc<ShardWorker>,
    pub(crate) outcomes: mpsc::Sender<Queued>,
    pub(crate) deliveries: TaskTracker,
}

impl SettleQueue {
    /// Runs a task of deliveries. A panic ends only this task: it is logged and counted, and its messages are delivered again
    /// after their lease.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let worker = self.worker.clone();
        self.deliveries.spawn(async move {
            let metrics = worker.process.metrics.as_ref();
            if let Err(reason) = contain("delivery", metrics, task).await {
                let topic = worker.topic();
                tracing::error!(topic = %topic.name(), shard = %worker.shard, %reason, "a task of deliveries panicked");
            }
        });
    }

    /// Queues an outcome. Waits while the queue is full. The lease is renewed until Redis has answered, and the span ends then.
    pub(crate) async fn settle(&self, settlement: Settlement, lease: Lease, span: Option<Span>) {
        lease.settling();
        let queued = Queued {
            settlement,
            lease,
            span,
        };
        if self.outcomes.send(queued).await.is_err() {
            self.worker.process.counters.unsettled(1);
        }
    }

    /// Hands a delivery back, so that another consumer can get it immediately. No attempt is counted.
    pub(crate) async fn hand_back(&self, id: MessageId, lease: Lease) {
        self.put_off(id, lease, When::NOW).await;
    }

    /// Hands a delivery back, to be delivered again at `when`. No attempt is counted.
    pub(crate) async fn put_off(&self, id: MessageId, lease: Lease, when: When) {
        let settlement = Settlement {
            entry: lease.entry(),
            id,
            // A hand-back uses neither of the two.
            caller_id: false,
            max_attempts: u32::MAX,
            verdict: Verdict::HandBack { when },
        };
        self.settle(settlement, lease, None).await;
    }
}

/// An outcome on its way to Redis.
pub(crate) struct Queued {
    pub(crate) settlement: Settlement,
    pub(crate) lease: Lease,
    /// The span of the settlement, if it has one.
    pub(crate) span: Option<Span>,
}
