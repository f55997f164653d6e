//! Lisa through its public Rust API: bulk by batches of 500, single by 50 callers of one producer; a worker is a
//! manager and a consumer with 500 handlers at once.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lisa_consumer::Consumer;
use lisa_consumer::{Context, Delivery, Outcome, delivery_fn};
use lisa_core::broker::Declare;
use lisa_core::topic::{Topic, TopicSettings};
use lisa_manager::Manager;
use lisa_producer::{NewMessage, Producer};
use lisa_service::config::Config;
use lisa_service::role::Runtime;
use lisa_service::shutdown::Shutdown;

use crate::protocol::{self, CALLERS, Mode, Plan, Tally};

/// The topic of all peers of Lisa.
pub(crate) const TOPIC: &str = "bench";
const BATCH: usize = 500;

/// Runs as the program of this peer.
pub(crate) async fn run(address: &str, mode: Mode) {
    let mut config = Config::default();
    config.redis.url = format!("redis://{address}").parse().expect("an address");
    let shutdown = Shutdown::manual(Duration::from_secs(5));
    let runtime = Runtime::with_shutdown("bench", config, shutdown).expect("a runtime");
    let topic: Topic = TOPIC.parse().expect("a topic");
    runtime
        .broker
        .declare(&topic, &TopicSettings::default(), Declare::Create)
        .await
        .expect("declared");
    match mode {
        Mode::Send(plan) => send(Producer::new(runtime.broker.clone()), plan).await,
        Mode::Work => work(&runtime).await,
    }
}

async fn send(producer: Producer, plan: Plan) {
    protocol::await_go();
    let start = Instant::now();
    if plan.rate > 0 {
        let batch = async |size| batch(&producer, size, plan.delay).await;
        protocol::send_at_rate(start, plan, batch).await;
    } else if plan.bulk {
        for out in (0..plan.n).step_by(BATCH) {
            batch(&producer, BATCH.min(plan.n - out), plan.delay).await;
        }
    } else {
        let callers = (0..CALLERS).map(|_| async {
            for _ in 0..plan.n / CALLERS {
                let sending = producer.send_bytes(TOPIC, protocol::message(plan.delay));
                sending.delay(plan.delay).await.expect("sent");
            }
        });
        join_all(callers).await;
    }
    protocol::sent(start);
}

async fn batch(producer: &Producer, size: usize, delay: Duration) {
    let messages = (0..size).map(|_| NewMessage::new(protocol::message(delay)).delay(delay));
    let receipts = producer.send_batch(TOPIC, messages.collect()).await;
    for receipt in receipts.expect("sent") {
        receipt.expect("accepted");
    }
}

async fn work(runtime: &Runtime) {
    let tally = Tally::default();
    let handled = tally.clone();
    let handler = delivery_fn(move |delivery: Delivery, _: Context| {
        handled.handle(&delivery.payload);
        std::future::ready(Outcome::Ack)
    });
    let consumer = Consumer::builder(runtime.broker.clone())
        .topic(TOPIC, handler)
        .concurrency(500)
        .build()
        .expect("a consumer");
    protocol::await_go();
    tally.watch();
    Manager::of(runtime).start(&runtime.supervisor);
    consumer.start(&runtime.supervisor, &runtime.shutdown);
    std::future::pending::<()>().await;
}
