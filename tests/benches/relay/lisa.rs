//! Lisa through its public Rust API: a relay in this process, in its own namespace.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lisa_consumer::{Consumer, RunReport, Subscription};
use lisa_consumer::{Context, Delivery, Handler, Outcome, delivery_fn};
use lisa_core::broker::{Broker, Declare, Migration, Resharded, TopicHandle};
use lisa_core::topic::{Shard, Topic, TopicSettings};
use lisa_manager::Manager;
use lisa_producer::{NewMessage, Producer};
use lisa_service::config::Config;
use lisa_service::role::Runtime;
use lisa_service::shutdown::Shutdown;
use tokio::task::JoinSet;

use crate::lab::Lab;

/// The topic of every relay.
pub(crate) const TOPIC: &str = "bench";
/// The most messages of a call.
pub(crate) const BATCH: u64 = 500;
/// Batches in flight at a time.
pub(crate) const SENDERS: u64 = 4;
/// A delay so long that nothing becomes due while a send is measured.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// The delay that all stages at once have to wait for.
pub(crate) const SOON: Duration = Duration::from_millis(20);

/// The messages a shard with which a consumer shows that it works.
pub(crate) const ARMED_WITH: u64 = 8;

/// Makes a message of its number.
pub(crate) trait Make: Fn(u64) -> NewMessage + Copy + Send + Sync + 'static {}

impl<F: Fn(u64) -> NewMessage + Copy + Send + Sync + 'static> Make for F {}

/// A relay whose topic is declared.
pub(crate) struct Lisa {
    /// The runtime that it runs on.
    pub(crate) runtime: Runtime,
    /// The producer that it sends with.
    pub(crate) producer: Producer,
    settings: TopicSettings,
}

impl Lisa {
    /// Begins a relay on the lab's server; nothing moves yet.
    pub(crate) async fn new(lab: &Lab, settings: TopicSettings) -> Self {
        Self::within(lab, &lab.server().namespace("bench"), settings).await
    }

    /// The same in a namespace that others use as well.
    pub(crate) async fn within(lab: &Lab, namespace: &str, settings: TopicSettings) -> Self {
        let mut config = Config::default();
        config.redis.url = lab.url().parse().expect("an address");
        config.namespace = namespace.parse().expect("a namespace");
        let shutdown = Shutdown::manual(Duration::from_secs(5));
        let runtime = Runtime::with_shutdown("bench", config, shutdown).expect("a runtime");
        let topic: Topic = TOPIC.parse().expect("a topic");
        runtime
            .broker
            .declare(&topic, &settings, Declare::Create)
            .await
            .expect("declared");
        Self {
            producer: Producer::new(runtime.broker.clone()),
            runtime,
            settings,
        }
    }

    /// Its broker.
    pub(crate) fn broker(&self) -> Broker {
        self.runtime.broker.clone()
    }

    /// Sends `n` messages in batches of 500, four at a time. `make` gets the number of the message.
    pub(crate) async fn send_batches(&self, n: u64, make: impl Make) {
        let next = Arc::new(AtomicU64::new(0));
        let sender = |_| {
            let (producer, next) = (self.producer.clone(), next.clone());
            async move {
                loop {
                    let from = next.fetch_add(BATCH, Ordering::Relaxed);
                    if from >= n {
                        break;
                    }
                    let batch = (from..n.min(from + BATCH)).map(make).collect();
                    let sent = producer.send_batch(TOPIC, batch).await;
                    for receipt in sent.expect("sent") {
                        receipt.expect("accepted");
                    }
                }
            }
        };
        at_once((0..SENDERS).map(sender)).await;
    }

    /// Sends `n` messages one by one, from this many callers at a time.
    pub(crate) async fn send_single(&self, callers: u64, n: u64, make: impl Make) {
        let next = Arc::new(AtomicU64::new(0));
        let caller = |_| {
            let (producer, next) = (self.producer.clone(), next.clone());
            async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= n {
                        break;
                    }
                    let sent = producer.send_message(TOPIC, make(number)).await;
                    sent.expect("accepted");
                }
            }
        };
        at_once((0..callers).map(caller)).await;
    }

    /// Starts a manager: what is due begins to move.
    pub(crate) fn start_manager(&self) {
        Manager::of(&self.runtime).start(&self.runtime.supervisor);
    }

    /// Makes a consumer with a handler that does nothing, for all groups of the topic.
    pub(crate) fn consumer(&self, concurrency: usize) -> Consumer {
        self.consumer_of(concurrency, nothing)
    }

    /// Makes a consumer with a new handler for each group of the topic.
    pub(crate) fn consumer_of<H: Handler>(
        &self,
        concurrency: usize,
        handler: impl Fn() -> H,
    ) -> Consumer {
        let mut consumer = Consumer::builder(self.broker());
        for group in &self.settings.groups {
            let topic = TOPIC.parse().expect("a topic");
            consumer = consumer.subscription(
                Subscription::new(topic, group.clone(), handler()).concurrency(concurrency),
            );
        }
        consumer.build().expect("a consumer")
    }

    /// Starts such a consumer.
    pub(crate) fn start_consumer(&self, concurrency: usize) -> Consumer {
        let consumer = self.consumer(concurrency);
        consumer.start(&self.runtime.supervisor, &self.runtime.shutdown);
        consumer
    }

    /// Starts manager and consumer, checks that they work, and pauses the topic: later sends gather.
    pub(crate) async fn arm(&self, concurrency: usize) -> Consumer {
        let consumer = self.consumer(concurrency);
        self.arm_consumer(&consumer).await;
        consumer
    }

    /// The same with this consumer. It gets [`ARMED_WITH`] messages a shard.
    pub(crate) async fn arm_consumer(&self, consumer: &Consumer) {
        self.start_manager();
        consumer.start(&self.runtime.supervisor, &self.runtime.shutdown);
        let first = ARMED_WITH * u64::from(self.settings.shards);
        let soon = Duration::from_millis(1);
        self.send_batches(first, move |_| NewMessage::new(payload(1)).delay(soon))
            .await;
        settled(consumer, first * self.settings.groups.len() as u64).await;
        self.pause(true).await;
    }

    /// Resumes an armed relay, and waits until this many deliveries are settled.
    pub(crate) async fn drain(&self, consumer: &Consumer, deliveries: u64) {
        let before = consumer.report().acked;
        self.pause(false).await;
        settled(consumer, before + deliveries).await;
    }

    /// Opens new shards; no message goes there yet.
    pub(crate) async fn reshard(&self, shards: u16) -> Arc<TopicHandle> {
        let topic = TOPIC.parse().expect("a topic");
        match self.broker().reshard(&topic, shards).await {
            Ok(Resharded::UnderWay(topic)) => topic,
            other => panic!("{other:?}"),
        }
    }

    /// Migrates all messages of the first `old` shards, each in its own task.
    pub(crate) async fn migrate_out(&self, topic: &Arc<TopicHandle>, old: u16) {
        let shard = |shard| {
            let (broker, topic) = (self.broker(), topic.clone());
            async move {
                let mut migration = Migration::default();
                loop {
                    let step = broker.migrate_out(&topic, Shard::new(shard), &mut migration);
                    if step.await.expect("migrated").left == 0 {
                        break;
                    }
                }
            }
        };
        at_once((0..old).map(shard)).await;
    }

    /// Pauses or resumes the topic.
    ///
    /// # Panics
    /// Panics if it was so already.
    pub(crate) async fn pause(&self, paused: bool) {
        let broker = self.broker();
        let topic = TOPIC.parse().expect("a topic");
        let topic = broker.topic(&topic).await.expect("declared");
        assert!(broker.pause(&topic, paused).await.expect("paused"));
    }

    /// Ends it, and waits until all its tasks have ended.
    pub(crate) async fn end(self) {
        self.runtime.shutdown.end();
        let ended = self.runtime.supervisor.join().await;
        ended.expect("all tasks ended well");
    }
}

/// Runs tasks on the runtime's workers, until all have ended.
///
/// # Panics
/// Panics if one of them does.
pub(crate) async fn at_once<F>(tasks: impl Iterator<Item = F>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut tasks: JoinSet<()> = tasks.collect();
    while let Some(ended) = tasks.join_next().await {
        ended.expect("a task that ends well");
    }
}

/// Waits until a consumer has settled this many deliveries.
///
/// # Panics
/// Panics if one of them did not end well.
pub(crate) async fn settled(consumer: &Consumer, deliveries: u64) {
    loop {
        let report = consumer.report();
        let mut good = RunReport::default();
        good.acked = report.acked;
        assert_eq!(report, good, "not all is acknowledged");
        if report.acked >= deliveries {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Returns a handler that does nothing.
pub(crate) fn nothing() -> impl Handler {
    delivery_fn(|_: Delivery, _: Context| std::future::ready(Outcome::Ack))
}

/// A payload of this many bytes.
pub(crate) fn payload(size: usize) -> Vec<u8> {
    vec![b'x'; size]
}

/// A message that becomes due at some instant within a time, at random.
pub(crate) fn within(time: Duration, size: usize) -> NewMessage {
    let ms = fastrand::u64(0..time.as_millis() as u64);
    NewMessage::new(payload(size)).delay(Duration::from_millis(ms))
}
