//! How fast this machine relays: `make bench`. A private Redis, everything through the public API,
//! medians of three rounds. Figures of one run compare with each other, not with those of another day.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lisa_consumer::Consumer;
use lisa_consumer::handler::{Context, Delivery, Outcome, delivery_fn};
use lisa_manager::Manager;
use lisa_producer::{Outgoing, Producer};
use lisa_shared::broker::{Broker, Declare};
use lisa_shared::config::Config;
use lisa_shared::role::Runtime;
use lisa_shared::shutdown::Shutdown;
use lisa_shared::topic::{Topic, TopicSettings};
use lisa_tests::server::Server;
use tokio::sync::mpsc;

const ROUNDS: usize = 3;
const MESSAGES: usize = 50_000;
const PAYLOAD: usize = 100;
const HOUR: Duration = Duration::from_secs(3600);

fn main() {
    // `cargo test --benches` and `cargo bench --no-run` only want to see that this builds.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(bench());
}

async fn bench() {
    let server = Server::start();
    println!("payload {PAYLOAD} B, {MESSAGES} messages a round, median of {ROUNDS} rounds\n");
    println!(
        "{:<44} {:>12} {:>22}",
        "stage", "messages/s", "server CPU, µs/message"
    );
    throughput(&server, "send, one caller", 5_000, |bench, n| async move {
        for _ in 0..n {
            bench
                .producer
                .send_bytes("bench", payload())
                .delay(HOUR)
                .await
                .expect("sent");
        }
    })
    .await;
    throughput(
        &server,
        "send, 50 callers",
        MESSAGES,
        |bench, n| async move {
            let callers = (0..50).map(|_| async {
                for _ in 0..n / 50 {
                    bench
                        .producer
                        .send_bytes("bench", payload())
                        .delay(HOUR)
                        .await
                        .expect("sent");
                }
            });
            join_all(callers).await;
        },
    )
    .await;
    throughput(
        &server,
        "send, batches of 500",
        MESSAGES,
        |bench, n| async move {
            bench.send_batches(n, HOUR).await;
        },
    )
    .await;
    throughput(
        &server,
        "move, read, handle, settle (concurrency 100)",
        MESSAGES,
        |bench, n| async move {
            // All were sent before: see `Bench::prepare`.
            bench.drain(n).await;
        },
    )
    .await;
    println!();
    println!(
        "{:<44} {:>8} {:>8} {:>8} {:>8}",
        "lateness, due to handler start", "p50 ms", "p99 ms", "max ms", "early"
    );
    for rate in [20, 500, 2_000] {
        lateness(&server, rate).await;
    }
}

/// One relay on a namespace of its own.
struct Bench {
    producer: Producer,
    runtime: Runtime,
}

impl Bench {
    async fn new(server: &Server) -> Arc<Self> {
        let mut config = Config::default();
        config.redis.url = server.socket_url().parse().expect("a socket");
        config.namespace = server.namespace("bench").parse().expect("a namespace");
        let shutdown = Shutdown::manual(Duration::from_secs(5));
        let runtime = Runtime::with_shutdown("bench", config, shutdown).expect("a runtime");
        let topic: Topic = "bench".parse().expect("a topic");
        let settings = TopicSettings::default();
        runtime
            .broker
            .declare(&topic, &settings, Declare::Create)
            .await
            .expect("declared");
        Arc::new(Self {
            producer: Producer::new(runtime.broker.clone()),
            runtime,
        })
    }

    fn broker(&self) -> Broker {
        self.runtime.broker.clone()
    }

    async fn send_batches(&self, n: usize, delay: Duration) {
        for _ in 0..n / 500 {
            let batch = (0..500)
                .map(|_| Outgoing::new(payload()).delay(delay))
                .collect();
            for sent in self
                .producer
                .send_batch("bench", batch)
                .await
                .expect("sent")
            {
                sent.expect("accepted");
            }
        }
    }

    fn start_manager(&self) {
        let runtime = &self.runtime;
        Manager::new(
            &runtime.broker,
            &runtime.metrics,
            &runtime.shutdown,
            &runtime.config,
        )
        .start(&runtime.supervisor);
    }

    async fn drain(&self, n: usize) {
        let (done, mut all_done) = mpsc::channel(1);
        let handled = Arc::new(AtomicU64::new(0));
        let handler = delivery_fn(move |_: Delivery, _: Context| {
            if handled.fetch_add(1, Ordering::Relaxed) + 1 == n as u64 {
                let _ = done.try_send(());
            }
            std::future::ready(Outcome::Ack)
        });
        self.start_manager();
        let consumer = Consumer::builder(self.broker())
            .topic("bench", handler)
            .concurrency(100);
        consumer
            .build()
            .expect("a consumer")
            .start(&self.runtime.supervisor, &self.runtime.shutdown);
        all_done.recv().await;
    }
}

fn payload() -> Vec<u8> {
    vec![b'x'; PAYLOAD]
}

async fn throughput<F, R>(server: &Server, name: &str, n: usize, stage: F)
where
    F: Fn(Arc<Bench>, usize) -> R,
    R: Future<Output = ()>,
{
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        flush(server).await;
        let bench = Bench::new(server).await;
        if name.starts_with("move") {
            bench.send_batches(n, Duration::from_millis(1)).await;
        }
        let (cpu, started) = (server_cpu(server).await, Instant::now());
        stage(bench.clone(), n).await;
        let (seconds, cpu) = (
            started.elapsed().as_secs_f64(),
            server_cpu(server).await - cpu,
        );
        rounds.push((n as f64 / seconds, cpu * 1e6 / n as f64));
        bench.runtime.shutdown.end();
    }
    rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (rate, _) = rounds[ROUNDS / 2];
    rounds.sort_by(|a, b| a.1.total_cmp(&b.1));
    println!("{name:<44} {rate:>12.0} {:>22.2}", rounds[ROUNDS / 2].1);
}

async fn lateness(server: &Server, rate: u64) {
    flush(server).await;
    let bench = Bench::new(server).await;
    let (sender, mut late) = mpsc::unbounded_channel();
    let handler = delivery_fn(move |delivery: Delivery, _: Context| {
        let _ = sender.send(delivery.delivered_at.get() as i64 - delivery.due_at.get() as i64);
        std::future::ready(Outcome::Ack)
    });
    bench.start_manager();
    let consumer = Consumer::builder(bench.broker())
        .topic("bench", handler)
        .concurrency(100);
    consumer
        .build()
        .expect("a consumer")
        .start(&bench.runtime.supervisor, &bench.runtime.shutdown);
    let n = rate * 5;
    let mut tick =
        tokio::time::interval(Duration::from_millis(10).max(Duration::from_secs(1) / rate as u32));
    let mut sent = 0;
    while sent < n {
        tick.tick().await;
        let sends = (0..(rate / 100).max(1)).map(|_| {
            let delay = Duration::from_millis(fastrand::u64(0..3000));
            bench
                .producer
                .send_bytes("bench", payload())
                .delay(delay)
                .into_future()
        });
        sent += join_all(sends).await.len() as u64;
    }
    let mut all = Vec::new();
    while (all.len() as u64) < sent {
        all.push(late.recv().await.expect("a delivery"));
    }
    bench.runtime.shutdown.end();
    all.sort_unstable();
    let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize];
    let early = all.iter().filter(|ms| **ms < 0).count();
    let name = format!("{rate} messages/s, random delays up to 3 s");
    println!(
        "{name:<44} {:>8} {:>8} {:>8} {early:>8}",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

async fn flush(server: &Server) {
    let mut connection = server.connection().await;
    redis::cmd("FLUSHALL")
        .exec_async(&mut connection)
        .await
        .expect("flushed");
}

/// CPU seconds of the server's main thread.
async fn server_cpu(server: &Server) -> f64 {
    let mut connection = server.connection().await;
    let info: String = redis::cmd("INFO")
        .arg("cpu")
        .query_async(&mut connection)
        .await
        .expect("INFO");
    info.lines()
        .filter(|line| line.starts_with("used_cpu_") && line.contains("main_thread"))
        .filter_map(|line| line.split_once(':')?.1.trim().parse::<f64>().ok())
        .sum()
}
