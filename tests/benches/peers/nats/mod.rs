//! NATS JetStream before 2.12, which has no schedules: a worker returns a message that is not due with `nak` and the rest
//! of its delay. Publishing is pipelined: 500 at a time in bulk, or 50 callers of one client.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, Consumer, pull};
use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};
use async_nats::jetstream::{AckKind, Context};
use futures_util::StreamExt;
use futures_util::future::{join_all, try_join_all};

use crate::protocol::{self, CALLERS, Mode, Plan, Tally};

const NAME: &str = "bench";
const BATCH: usize = 500;

/// Runs as the program of this peer.
pub(crate) async fn run(address: &str, mode: Mode) {
    let client = async_nats::connect(address).await.expect("NATS accepts");
    let jetstream = async_nats::jetstream::new(client);
    let config = Config {
        name: NAME.to_owned(),
        subjects: vec![NAME.to_owned()],
        retention: RetentionPolicy::WorkQueue,
        storage: StorageType::Memory,
        ..Config::default()
    };
    let stream = jetstream.get_or_create_stream(config).await;
    let stream = stream.expect("a stream");
    match mode {
        Mode::Send(plan) => send(&jetstream, plan).await,
        Mode::Work => {
            let config = pull::Config {
                durable_name: Some(NAME.to_owned()),
                ack_policy: AckPolicy::Explicit,
                // Messages that wait for their due time count too.
                max_ack_pending: -1,
                memory_storage: true,
                ..pull::Config::default()
            };
            let consumer = stream.get_or_create_consumer(NAME, config).await;
            work(consumer.expect("a consumer")).await;
        }
    }
}

async fn send(jetstream: &Context, plan: Plan) {
    protocol::await_go();
    let start = Instant::now();
    if plan.rate > 0 {
        let batch = async |size| batch(jetstream, size, plan.delay).await;
        protocol::send_at_rate(start, plan, batch).await;
    } else if plan.bulk {
        for out in (0..plan.n).step_by(BATCH) {
            batch(jetstream, BATCH.min(plan.n - out), plan.delay).await;
        }
    } else {
        let callers = (0..CALLERS).map(|_| async {
            for _ in 0..plan.n / CALLERS {
                batch(jetstream, 1, plan.delay).await;
            }
        });
        join_all(callers).await;
    }
    protocol::sent(start);
}

/// Publishes messages, then waits until all are stored.
async fn batch(jetstream: &Context, size: usize, delay: Duration) {
    let mut stored = Vec::with_capacity(size);
    for _ in 0..size {
        let published = jetstream.publish(NAME, protocol::message(delay).into());
        stored.push(published.await.expect("published").into_future());
    }
    try_join_all(stored).await.expect("stored");
}

async fn work(consumer: Consumer<pull::Config>) {
    let tally = Tally::default();
    protocol::await_go();
    tally.watch();
    let messages = consumer.stream().max_messages_per_batch(BATCH).messages();
    let mut messages = messages.await.expect("messages");
    while let Some(message) = messages.next().await {
        let message = message.expect("a message");
        let wait = protocol::due_ms(&message.payload) as f64 - protocol::now_ms();
        let reply = if wait > 0.0 {
            AckKind::Nak(Some(Duration::from_secs_f64(wait / 1e3)))
        } else {
            tally.handle(&message.payload);
            AckKind::Ack
        };
        message.ack_with(reply).await.expect("acknowledged");
    }
}
