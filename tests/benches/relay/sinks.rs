//! Sinks beside the client libraries that they use, which publish the same messages, and beside a handler that does
//! nothing.

mod amqp;
mod kafka;
mod nats;
mod redis_stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lisa_consumer::Handler;
use lisa_core::topic::TopicSettings;
use lisa_producer::NewMessage;

pub(crate) use self::kafka::{SERVE_KAFKA, serve};
use crate::lab::{Lab, Sample, Spread, Variant, machine_cpu};
use crate::lisa::{ARMED_WITH, Lisa, at_once, nothing, payload};
use crate::report::{Reach, Report, Section, number};

/// Deliveries at a time, and publishes of a client library that wait for their confirms.
const CONCURRENCY: usize = 500;
/// Messages before each timed stretch: they open the connection, and the limit of the sink reaches the concurrency.
const WARM_UP: u64 = 4000;
const SIZE: usize = 100;
/// The due time in the headers, as a sink writes it.
const DUE_AT: &str = "2026-11-23T12:00:00.000Z";
const DUE_AT_MS: u64 = 1_795_435_200_000;

/// A system that messages are published to: by the client library, and through a sink.
trait Target: Send + Sync + 'static {
    /// The type of its sink.
    const SINK: &str;

    /// Removes all messages.
    async fn clear(&self);

    /// Returns the number of messages that were published since it was cleared.
    async fn stored(&self) -> u64;

    /// Publishes a message with the client library as the sink does, and waits for its confirm.
    ///
    /// # Panics
    /// Panics if it is not confirmed.
    fn publish(&self, id: String) -> impl Future<Output = ()> + Send;

    /// Creates a new sink.
    fn sink(&self) -> impl Handler;
}

/// A timed stretch, and the processor time of all that ran on the machine meanwhile, in seconds.
struct Round {
    sample: Sample,
    machine: f64,
}

impl Round {
    async fn timed(lab: &Lab, n: u64, work: impl Future<Output = ()>) -> Self {
        let before = machine_cpu();
        let sample = lab.timed(n, work).await;
        let machine = machine_cpu() - before;
        Self { sample, machine }
    }

    fn rate(&self) -> f64 {
        self.sample.rate()
    }

    fn client_us(&self) -> f64 {
        self.sample.client_us()
    }

    fn machine_us(&self) -> f64 {
        self.machine * 1e6 / self.sample.n as f64
    }
}

/// Measures all sinks, each with its own server.
pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let header = [
        "sink",
        "of the lower rate",
        "of what the cores allow",
        "library, messages/s",
        "empty, messages/s",
        "sink, messages/s",
        "min–max",
        "library, client µs",
        "empty, client µs",
        "sink, client µs",
        "library, all µs",
        "empty, all µs",
        "sink, all µs",
    ];
    let mut section = Section::new("Sinks", "", &header);
    let n = lab.options.pick(50_000, 10_000);
    let mut missing = String::new();
    compare(lab, n, redis_stream::start().await, report, &mut section).await;
    match amqp::start().await {
        Some(target) => compare(lab, n, target, report, &mut section).await,
        None => missing += " RabbitMQ was not available, so `amqp` is missing.",
    }
    match nats::start().await {
        Some(target) => compare(lab, n, target, report, &mut section).await,
        None => missing += " NATS was not available, so `nats` is missing.",
    }
    compare(lab, n, kafka::start().await, report, &mut section).await;
    section.note = format!(
        "{} messages of {SIZE} B, after {} to warm up. The library has {CONCURRENCY} publishes with the headers of the sink \
         in flight, each until its confirm. Lisa drains a topic at concurrency {CONCURRENCY}, with a handler that does nothing \
         (empty) and through the sink, which does the work of both. The columns \"client\" are the processor time of the \
         benchmark for a message, the columns \"all\" that of the whole machine, with all servers. {} cores allow at most the \
         rate at which they do the work of the library and of the empty sink without ever being idle. Kafka is the mock cluster of librdkafka, with one broker, in its own \
         process.{missing}",
        number(n as f64),
        number(WARM_UP as f64),
        cores(),
    );
    report.section(section);
}

/// Measures one sink: adds its row, and its figure to the table of the goals.
async fn compare<T: Target>(
    lab: &Lab,
    n: u64,
    target: T,
    report: &mut Report,
    section: &mut Section,
) {
    let target = Arc::new(target);
    let (library, sink) = (&target, &target);
    let rounds = lab
        .alternate(&[
            Variant::new(format!("{}: the client library", T::SINK), move || {
                library_alone(lab, n, library)
            }),
            Variant::new(format!("{}: an empty sink", T::SINK), move || {
                drain(lab, n, nothing)
            }),
            Variant::new(format!("{}: the sink", T::SINK), move || async move {
                sink.clear().await;
                let round = drain(lab, n, || sink.sink()).await;
                assert_eq!(sink.stored().await, ARMED_WITH + WARM_UP + n);
                round
            }),
        ])
        .await;
    let [library, empty, sink] = [&rounds[0], &rounds[1], &rounds[2]];
    let share_of = |most: fn(&Round, &Round) -> f64| {
        let rounds = library.iter().zip(empty).zip(sink);
        let shares = rounds.map(|((library, empty), sink)| sink.rate() / most(library, empty));
        100.0 * Spread::of(shares).median
    };
    let share = share_of(|library, empty| library.rate().min(empty.rate()));
    let of_cores = share_of(|library, empty| {
        cores() as f64 * 1e6 / (library.machine_us() + empty.machine_us())
    });
    let all = [library, empty, sink];
    let rates = all.map(|rounds| Spread::of(rounds.iter().map(Round::rate)));
    let median = |figure: fn(&Round) -> f64| {
        all.map(|rounds| number(Spread::of(rounds.iter().map(figure)).median))
    };
    let [client, machine] = [median(Round::client_us), median(Round::machine_us)];
    let row = [
        T::SINK.to_owned(),
        format!("{} %", number(share)),
        format!("{} %", number(of_cores)),
        number(rates[0].median),
        number(rates[1].median),
        number(rates[2].median),
        format!("{}–{}", number(rates[2].min), number(rates[2].max)),
    ];
    section.row(row.into_iter().chain(client).chain(machine));
    report.reach(Reach::at_least(
        format!(
            "sink `{}`, rate of its client library or of an empty sink, the lower one",
            T::SINK
        ),
        (80.0, 95.0),
        " %",
        share,
    ));
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Times the client library.
async fn library_alone<T: Target>(lab: &Lab, n: u64, target: &Arc<T>) -> Round {
    target.clear().await;
    publish(target.clone(), WARM_UP).await;
    let round = Round::timed(lab, n, publish(target.clone(), n)).await;
    assert_eq!(target.stored().await, WARM_UP + n);
    round
}

/// Publishes `n` messages, each with an id that no other message of this process has.
async fn publish<T: Target>(target: Arc<T>, n: u64) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let all = async move {
        let target = &*target;
        let publish = |_| {
            // As long as the ids that Lisa generates.
            target.publish(format!("{:022}", NEXT.fetch_add(1, Ordering::Relaxed)))
        };
        let mut confirmed = stream::iter(0..n)
            .map(publish)
            .buffer_unordered(CONCURRENCY);
        while confirmed.next().await.is_some() {}
    };
    at_once(std::iter::once(all)).await;
}

/// Times Lisa with a new handler, from the backlog to the last ack.
async fn drain<H: Handler>(lab: &Lab, n: u64, handler: impl Fn() -> H) -> Round {
    let lisa = Lisa::new(lab, TopicSettings::default()).await;
    let consumer = lisa.consumer_of(CONCURRENCY, handler);
    lisa.arm_consumer(&consumer).await;
    let due = |_| NewMessage::new(payload(SIZE)).delay(Duration::from_millis(1));
    lisa.send_batches(WARM_UP, due).await;
    lisa.drain(&consumer, WARM_UP).await;
    lisa.pause(true).await;
    lisa.send_batches(n, due).await;
    let round = Round::timed(lab, n, lisa.drain(&consumer, n)).await;
    lisa.end().await;
    round
}
