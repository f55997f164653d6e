//! apalis-redis: batches of 500, no events, 500 tasks at once on all threads. It uses no leases, as its documentation
//! recommends for tasks that are shorter than a heartbeat, unless `LEASES` is set. Results are stored: otherwise it
//! acknowledges nothing, and all tasks would be delivered again. Its due times are whole seconds.

#[path = "../../protocol.rs"]
mod protocol;

use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use apalis::layers::WorkerBuilderExt;
use apalis::prelude::*;
use apalis_redis::{Config, RedisStorage};
use futures_util::future::join_all;
use futures_util::{Stream, stream};
use protocol::{CALLERS, Mode, Plan, Tally};
use tokio::time::MissedTickBehavior;

const BATCH: usize = 500;
/// The interval at which it looks for due messages; by default it looks once per heartbeat, every 30 s.
const POLL: Duration = Duration::from_millis(10);

type Storage = RedisStorage<String>;

#[tokio::main]
async fn main() {
    let (address, mode) = protocol::arguments(std::env::args().skip(1));
    let url = format!("redis://{address}");
    let connection = apalis_redis::connect(url).await.expect("Redis listens");
    let config = Config::default()
        .queue("bench")
        .batch_size(BATCH)
        .emit_events(false)
        .lock_tasks(std::env::var_os("LEASES").is_some());
    let storage = RedisStorage::new(connection).with_config(config);
    match mode {
        Mode::Send(plan) => send(storage, plan).await,
        Mode::Work => work(storage).await,
    }
}

async fn send(mut storage: Storage, plan: Plan) {
    protocol::await_go();
    let start = Instant::now();
    if plan.rate > 0 {
        let batch = async |size| batch(&mut storage, size, plan.delay).await;
        protocol::send_at_rate(start, plan, batch).await;
    } else if plan.bulk {
        for out in (0..plan.n).step_by(BATCH) {
            batch(&mut storage, BATCH.min(plan.n - out), plan.delay).await;
        }
    } else {
        let callers = (0..CALLERS).map(|_| {
            let mut storage = storage.clone();
            async move {
                for _ in 0..plan.n / CALLERS {
                    storage.push_task(task(plan.delay)).await.expect("pushed");
                }
            }
        });
        join_all(callers).await;
    }
    protocol::sent(start);
}

fn task(delay: Duration) -> Task<String> {
    TaskBuilder::new(protocol::message(delay))
        .run_at_time(SystemTime::now() + delay)
        .build()
}

async fn batch(storage: &mut Storage, size: usize, delay: Duration) {
    let tasks = (0..size).map(|_| task(delay));
    let mut tasks = stream::iter(tasks);
    storage.push_all(&mut tasks).await.expect("pushed");
}

/// Wakes the worker at each tick.
///
/// Its own `poll_with_interval` forgets to arm its timer when a fetch took longer than the interval, and then waits for
/// the next heartbeat; this one is always armed.
fn ticks() -> impl Stream<Item = ()> + Unpin + Send + 'static {
    let mut interval = tokio::time::interval(POLL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    stream::poll_fn(move |context| {
        while interval.poll_tick(context).is_ready() {}
        Poll::Pending
    })
}

async fn work(storage: Storage) {
    let tally = Tally::default();
    let handled = tally.clone();
    let handle = move |text: String| {
        handled.handle(text.as_bytes());
        std::future::ready(())
    };
    let worker = WorkerBuilder::new("bench")
        .backend(storage.poll_with_stream(ticks()))
        .concurrency(500)
        .parallelize(tokio::spawn)
        .build(handle);
    protocol::await_go();
    tally.watch();
    worker.run().await.expect("a worker");
}
