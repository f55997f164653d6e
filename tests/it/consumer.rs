//! The consumer's library on a real Redis: every outcome, leases, suspects, shutdown, and faults of Redis. The tests
//! act as the manager.

mod answers;
mod binary;
mod blocking;
mod callbacks;
mod ending;
mod garbage;
mod gateways;
mod idle_shards;
mod instances;
mod large;
mod later;
mod leases;
mod new_groups;
mod outcomes;
mod pull;
mod pull_dev;
mod pull_outage;
mod pulled_keys;
mod server;
mod settle_and_pull;
mod sqs;
mod suspects;

use lisa_consumer::{
    Consumer, ConsumerError, Context, Delivery, Handler, Outcome, RunReport, delivery_fn,
};
use lisa_core::broker::{Declare, Moved};
use lisa_core::message::PreparedMessage;
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::{Shard, TopicSettings};
use lisa_tests::relay::{self, Relay, message, ms, nameless, settings};
use lisa_tests::{Binary, Process, SOON, Server, Stopwatch, eventually, unless_held_up};
use redis::cmd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A relay on Redis's own clock.
async fn relay(stem: &str) -> Relay {
    relay_with(stem, settings()).await
}

async fn relay_with(stem: &str, settings: TopicSettings) -> Relay {
    let relay = Relay::with(stem, settings).await;
    relay.broker().set_virtual_now(UnixMs::new(0));
    relay
}

/// A running consumer, and the means to stop it.
struct Running {
    consumer: Consumer,
    stop: CancellationToken,
    run: JoinHandle<Result<RunReport, ConsumerError>>,
}

impl Running {
    fn start(consumer: Consumer) -> Self {
        let stop = CancellationToken::new();
        let run = consumer
            .clone()
            .run()
            .with_graceful_shutdown(stop.clone().cancelled_owned());
        Self {
            consumer,
            stop,
            run: tokio::spawn(run.into_future()),
        }
    }

    async fn until(&self, what: impl Fn(&RunReport) -> bool) {
        let look = async || match self.consumer.report() {
            report if what(&report) => Ok(()),
            report => Err(format!("{report:?}")),
        };
        eventually(SOON, look).await;
    }

    async fn stop(self) -> RunReport {
        self.stop.cancel();
        self.run.await.expect("no panic").expect("a good end")
    }
}

/// A handler that reports what it received, then waits until it may end with an ack.
struct Desk {
    seen: mpsc::UnboundedReceiver<(Delivery, Context)>,
    go: Arc<Semaphore>,
}

impl Desk {
    fn new() -> (Self, impl lisa_consumer::Handler) {
        let (tell, seen) = mpsc::unbounded_channel();
        let go = Arc::new(Semaphore::new(0));
        let held = go.clone();
        let handler = delivery_fn(move |delivery: Delivery, context: Context| {
            let (tell, held) = (tell.clone(), held.clone());
            async move {
                tell.send((delivery, context)).expect("a test that listens");
                held.acquire().await.expect("never closed").forget();
            }
        });
        (Self { seen, go }, handler)
    }

    async fn next(&mut self) -> (Delivery, Context) {
        let next = tokio::time::timeout(SOON, self.seen.recv());
        next.await.expect("a delivery in time").expect("a consumer")
    }

    fn let_go(&self, count: usize) {
        self.go.add_permits(count);
    }
}

/// Lets the lease of a delivery that a running consumer holds end, and reclaims it. As the consumer may renew it in
/// between, this is retried.
async fn lapse(relay: &Relay, running: &Running, delivery: &Delivery) {
    let (entry, name) = (delivery.entry, running.consumer.name());
    eventually(SOON, async || {
        relay.age(entry, name, ms(2000)).await;
        match relay.reclaim().await.retry {
            1 => Ok(()),
            other => Err(format!("{other} reclaimed")),
        }
    })
    .await;
}

fn numbered(count: usize) -> Vec<PreparedMessage> {
    (0..count)
        .map(|n| nameless(&format!("m{n}"), When::NOW))
        .collect()
}
