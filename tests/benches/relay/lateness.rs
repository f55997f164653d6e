//! The lateness of messages: from the due time to the start of the handler.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use lisa_consumer::Consumer;
use lisa_consumer::{Context, Delivery, Outcome, delivery_fn};
use lisa_core::time::UnixMs;
use lisa_core::topic::TopicSettings;
use lisa_producer::NewMessage;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{MissedTickBehavior, interval};

use crate::lab::{Lab, Sample, Spread, Variant};
use crate::lisa::{Lisa, TOPIC, payload};
use crate::plot;
use crate::report::{Plot, Reach, Report, Section, number, thousands};

/// Messages a second.
const RATES: [u64; 4] = [20, 500, 2_000, 10_000];
/// The rate with targets.
const WATCHED: u64 = 2_000;
/// Delays are random, below this.
const SPREAD_MS: u64 = 3_000;
/// The interval at which the sender looks for messages to send.
const TICK: Duration = Duration::from_millis(10);
/// The time between sending the messages of the burst and their due time.
const AHEAD: Duration = Duration::from_secs(10);
const SIZE: usize = 100;
const CONCURRENCY: usize = 100;

const NOTE: &str = "Producer, manager and consumer through the public Rust API in one process, with a no-op handler, \
concurrency 100, payloads of 100 B. Due times are whole milliseconds on the server's clock; the first line of the \
handler reads the clock of the same machine, in microseconds. So 0.5 ms is half a millisecond after the first moment at \
which it could have been delivered. The sender is a timer that sends what is owed every 10 ms, each message with a random \
delay below 3 s. Percentiles are medians of the rounds, the greatest value is that of all rounds. Early must be 0.";

/// One round: how late each message was in ms, negative if it was early.
struct Round {
    late: Vec<f64>,
    sample: Sample,
}

/// Sends at each rate, then a burst.
pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let seconds = lab.options.pick(10, 3);
    let burst = lab.options.pick(100_000, 20_000);
    let mut variants: Vec<_> = RATES
        .iter()
        .map(|&rate| {
            let name = format!("{} messages/s", thousands(rate as i64));
            Variant::new(name, move || at_rate(lab, rate, seconds))
        })
        .collect();
    let of_burst = format!("{} due at one instant", thousands(burst as i64));
    variants.push(Variant::new(of_burst.clone(), move || at_once(lab, burst)));
    let rounds = lab.alternate(&variants).await;

    let header = [
        "load",
        "p50, ms",
        "p99, ms",
        "p99.9, ms",
        "max, ms",
        "early",
        "server CPU, %",
    ];
    let mut section = Section::new("Lateness", NOTE, &header);
    let names = RATES
        .iter()
        .map(|rate| format!("{} messages/s", thousands(*rate as i64)));
    let mut curves = Vec::new();
    for (name, rounds) in names.chain([of_burst]).zip(&rounds) {
        let at = |share| Spread::of(rounds.iter().map(|round| percentile(&round.late, share)));
        let cpu = rounds
            .iter()
            .map(|round| round.sample.cpu * 100.0 / round.sample.seconds);
        let early = rounds
            .iter()
            .flat_map(|round| &round.late)
            .filter(|ms| **ms < 0.0);
        section.row([
            name.clone(),
            number(at(0.5).median),
            number(at(0.99).median),
            number(at(0.999).median),
            number(at(1.0).max),
            early.count().to_string(),
            number(Spread::of(cpu).median),
        ]);
        curves.push((
            name,
            rounds.iter().flat_map(|round| round.late.clone()).collect(),
        ));
    }
    let watched = RATES
        .iter()
        .zip(&rounds)
        .filter(|(rate, _)| **rate == WATCHED);
    for (_, rounds) in watched {
        for (name, share, bounds) in [("p50", 0.5, (1.0, 0.8)), ("p99", 0.99, (2.5, 1.8))] {
            let of = rounds.iter().map(|round| percentile(&round.late, share));
            let figure = format!(
                "lateness {name} at {} messages/s",
                thousands(WATCHED as i64)
            );
            report.reach(Reach::at_most(figure, bounds, " ms", Spread::of(of).median));
        }
    }
    // The burst is about throughput: its curve would compress the others.
    curves.truncate(RATES.len());
    section.plots.push(Plot {
        file: "lateness".to_owned(),
        title: "How late messages come, by rate".to_owned(),
        svg: plot::cdf(
            "How late messages come",
            "from due to the start of the handler, ms",
            &curves,
        ),
    });
    report.section(section);
}

/// The least value that this share of the sorted values does not exceed.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

async fn at_rate(lab: &Lab, rate: u64, seconds: u64) -> Round {
    let (lisa, mut late) = begin(lab).await;
    let n = rate * seconds;
    let mut all = Vec::new();
    let work = async { all = send_at_rate(&lisa, &mut late, rate, n).await };
    let sample = lab.timed(n, work).await;
    finish(lisa, all, sample).await
}

/// Sends `n` messages at a rate, and returns how late each was.
pub(crate) async fn send_at_rate(
    lisa: &Lisa,
    late: &mut UnboundedReceiver<i64>,
    rate: u64,
    n: u64,
) -> Vec<f64> {
    let mut tick = interval(TICK);
    // Messages that could not be sent in time are sent at once: the rate holds.
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut ticks, mut sent) = (0, 0);
    while sent < n {
        tick.tick().await;
        ticks += 1;
        let owed = (rate * ticks * TICK.as_millis() as u64 / 1_000).min(n) - sent;
        let sends = (0..owed).map(|_| {
            let delay = Duration::from_millis(fastrand::u64(0..SPREAD_MS));
            lisa.producer
                .send_message(TOPIC, NewMessage::new(payload(SIZE)).delay(delay))
        });
        for receipt in join_all(sends).await {
            receipt.expect("accepted");
        }
        sent += owed;
    }
    take(late, n).await
}

async fn at_once(lab: &Lab, n: u64) -> Round {
    let (lisa, mut late) = begin(lab).await;
    let due = UnixMs::new(now_us() / 1_000).plus(AHEAD);
    lisa.send_batches(n, move |_| NewMessage::new(payload(SIZE)).at(due))
        .await;
    let left = (due.get() * 1_000).saturating_sub(now_us());
    assert!(left > 0, "{n} messages were not sent within {AHEAD:?}");
    tokio::time::sleep(Duration::from_micros(left)).await;
    let mut all = Vec::new();
    let work = async { all = take(&mut late, n).await };
    let sample = lab.timed(n, work).await;
    finish(lisa, all, sample).await
}

/// Starts a relay whose consumer is watched.
async fn begin(lab: &Lab) -> (Lisa, UnboundedReceiver<i64>) {
    let lisa = Lisa::new(lab, TopicSettings::default()).await;
    lisa.start_manager();
    let late = watch(&lisa).await;
    (lisa, late)
}

/// Starts a consumer whose handler reports how late it is, in µs, and lets some messages through, so that connections and
/// scripts are there. The topic has a manager.
pub(crate) async fn watch(lisa: &Lisa) -> UnboundedReceiver<i64> {
    let (tell, mut late) = unbounded_channel();
    let handler = delivery_fn(move |delivery: Delivery, _: Context| {
        let now = now_us() as i64;
        let _ = tell.send(now - (delivery.due_at.get() * 1_000) as i64);
        std::future::ready(Outcome::Ack)
    });
    let consumer = Consumer::builder(lisa.broker())
        .topic(TOPIC, handler)
        .concurrency(CONCURRENCY);
    let consumer = consumer.build().expect("a consumer");
    consumer.start(&lisa.runtime.supervisor, &lisa.runtime.shutdown);
    const FIRST: u64 = 10;
    lisa.send_single(1, FIRST, |_| NewMessage::new(payload(SIZE)).delay(TICK))
        .await;
    take(&mut late, FIRST).await;
    late
}

async fn take(late: &mut UnboundedReceiver<i64>, n: u64) -> Vec<f64> {
    let mut all = Vec::with_capacity(n as usize);
    while (all.len() as u64) < n {
        let us = late.recv().await.expect("the handler lives");
        all.push(us as f64 / 1e3);
    }
    all
}

async fn finish(lisa: Lisa, mut late: Vec<f64>, sample: Sample) -> Round {
    lisa.end().await;
    late.sort_by(f64::total_cmp);
    Round { late, sample }
}

/// The clock of this machine, which is the server's too: µs since the epoch.
fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("it is after 1970").as_micros() as u64
}
