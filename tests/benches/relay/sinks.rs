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
use crate::lab::{Lab, Sample, Spread, Variant};
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

/// Measures all sinks, each with its own server.
pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let header = [
        "sink",
        "of the lower rate",
        "of both in turn",
        "library, messages/s",
        "empty, messages/s",
        "sink, messages/s",
        "min–max",
        "library, client µs",
        "empty, client µs",
        "sink, client µs",
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
         (empty) and through the sink, which does the work of both. All servers share the machine. One busy thread can do at \
         most what the column \"of both in turn\" compares with: the rate of the library and the empty sink one after the \
         other. Kafka is the mock cluster of librdkafka, with one broker, in its own \
         process.{missing}",
        number(n as f64),
        number(WARM_UP as f64),
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
                let sample = drain(lab, n, || sink.sink()).await;
                assert_eq!(sink.stored().await, ARMED_WITH + WARM_UP + n);
                sample
            }),
        ])
        .await;
    let [library, empty, sink] = [&rounds[0], &rounds[1], &rounds[2]];
    let share_of = |goal: fn(f64, f64) -> f64| {
        let rounds = library.iter().zip(empty).zip(sink);
        let shares =
            rounds.map(|((library, empty), sink)| sink.rate() / goal(library.rate(), empty.rate()));
        100.0 * Spread::of(shares).median
    };
    let share = share_of(f64::min);
    let in_turn = share_of(|library, empty| 1.0 / (1.0 / library + 1.0 / empty));
    let all = [library, empty, sink];
    let rates = all.map(|rounds| Spread::of(rounds.iter().map(Sample::rate)));
    let client = all.map(|rounds| Spread::of(rounds.iter().map(Sample::client_us)).median);
    section.row([
        T::SINK.to_owned(),
        format!("{} %", number(share)),
        format!("{} %", number(in_turn)),
        number(rates[0].median),
        number(rates[1].median),
        number(rates[2].median),
        format!("{}–{}", number(rates[2].min), number(rates[2].max)),
        number(client[0]),
        number(client[1]),
        number(client[2]),
    ]);
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

/// Times the client library.
async fn library_alone<T: Target>(lab: &Lab, n: u64, target: &Arc<T>) -> Sample {
    target.clear().await;
    publish(target.clone(), WARM_UP).await;
    let sample = lab.timed(n, publish(target.clone(), n)).await;
    assert_eq!(target.stored().await, WARM_UP + n);
    sample
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
async fn drain<H: Handler>(lab: &Lab, n: u64, handler: impl Fn() -> H) -> Sample {
    let lisa = Lisa::new(lab, TopicSettings::default()).await;
    let consumer = lisa.consumer_of(CONCURRENCY, handler);
    lisa.arm_consumer(&consumer).await;
    let due = |_| NewMessage::new(payload(SIZE)).delay(Duration::from_millis(1));
    lisa.send_batches(WARM_UP, due).await;
    lisa.drain(&consumer, WARM_UP).await;
    lisa.pause(true).await;
    lisa.send_batches(n, due).await;
    let sample = lab.timed(n, lisa.drain(&consumer, n)).await;
    lisa.end().await;
    sample
}
