//! Messages of one ordering key come one at a time, by due time and then by arrival, whichever process dies meanwhile;
//! and no key waits for another one.

use super::deployment::{GROUP, TOPIC};
use super::journal::{Journal, message, send_all};
use super::workers::Workers;
use super::{Deployment, SOON};
use lisa_consumer::{Delivery, Outcome};
use lisa_core::time::{UnixMs, When};
use lisa_producer::Producer;
use lisa_tests::relay::ms;
use lisa_tests::{Answer, Webhook, eventually};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

const KEYS: usize = 200;
const EACH: usize = 50;
const CONSUMERS: usize = 8;
const CONCURRENCY: usize = 16;
/// One run in this many fails.
const FAILS: usize = 20;
/// The number of messages that the consumer handles before it hangs and is killed.
const HANDLED: usize = 100;

/// Handles a message in up to 2 ms, and fails now and then, in one of three ways.
async fn stumble(journal: Journal, delivery: Delivery) -> Outcome {
    let run = journal.begin(&delivery.payload);
    tokio::time::sleep(ms(fastrand::u64(0..=2))).await;
    let outcome = match fastrand::usize(0..3 * FAILS) {
        0 => Outcome::retry_after(Duration::ZERO, "at once"),
        1 => Outcome::retry_after(ms(50), "a little later"),
        2 => Outcome::defer(ms(20)),
        _ => Outcome::Ack,
    };
    journal.end(run, outcome == Outcome::Ack);
    outcome
}

/// Sends all messages, kills a consumer and restarts the manager while they are handled, and checks the order of each
/// key.
async fn storm(shards: u16, due: impl Fn(UnixMs) -> When) {
    let topic = format!(
        "shards = {shards}\nlease = \"2s\"\nmax_attempts = 1000\nretry = {{ kind = \"fixed\", delay = \"10ms\" }}"
    );
    let here = Deployment::start(&topic).await;
    let mut manager = here.manager().await;
    let journal = Journal::default();

    let broker = here.broker().await;
    let now = broker.now();
    let producer = Producer::new(broker);
    let names: Vec<String> = (0..KEYS).map(|key| format!("k{key}")).collect();
    // In the order of each key, with the keys mixed.
    let plan = (0..EACH).flat_map(|number| names.iter().map(move |key| (key, number)));
    let plan: Vec<(&String, usize)> = plan.collect();
    let messages = plan
        .iter()
        .map(|(key, number)| message(key, *number).at(due(now)))
        .collect();
    let due = send_all(&producer, TOPIC, messages).await;

    let (notes, hung) = (journal.clone(), Arc::new(Mutex::new(Vec::new())));
    let (stuck, mut left) = (hung.clone(), HANDLED);
    let hook = Webhook::answering(move |request| {
        let run = notes.begin(&request.body);
        if left == 0 {
            stuck.lock().unwrap().push(run);
            return Answer::hang();
        }
        left -= 1;
        notes.end(run, true);
        Answer::status(200)
    })
    .await;
    let sink = format!(
        "concurrency = {CONCURRENCY}\nsink = {{ type = \"http\", url = \"{}\", allow_private = true }}",
        hook.url()
    );
    let mut doomed = here.consumer(&sink).await;
    let work = {
        let journal = journal.clone();
        move |delivery| stumble(journal.clone(), delivery)
    };
    let begun = Instant::now();
    let workers = Workers::start(&here, GROUP, (CONSUMERS - 1, CONCURRENCY), work).await;

    let hanging = eventually(SOON, async || match hung.lock().unwrap().len() {
        count if count >= CONCURRENCY / 2 => Ok(count),
        count => Err(format!("{count} hang")),
    })
    .await;
    doomed.process.kill9();
    let acked = journal.acked();
    assert!(acked < KEYS * EACH, "it was not midway");
    manager.stop().await;
    for run in hung.lock().unwrap().iter() {
        journal.end(*run, false);
    }
    let _manager = here.manager().await;
    journal.acks(KEYS * EACH).await;
    println!(
        "{} runs in {:?}, {hanging} held by the killed consumer when {acked} were done, {} runs again after an ack that was lost",
        journal.count(),
        begun.elapsed(),
        journal.repeats(),
    );
    let stats = here.drained().await;
    let reports = workers.stop().await;
    let stale: u64 = reports.iter().map(|report| report.stale).sum();
    let overlaps = journal.overlaps();
    println!("{stale} stale outcomes, {overlaps:?}");
    assert!(overlaps.len() as u64 <= stale, "{overlaps:?}");
    for key in &names {
        let numbers = plan.iter().zip(&due).filter(|((of, _), _)| of == &key);
        let mut expected: Vec<(u64, usize)> =
            numbers.map(|((_, number), due)| (*due, *number)).collect();
        expected.sort_unstable();
        let expected: Vec<usize> = expected.into_iter().map(|(_, number)| number).collect();
        assert_eq!(journal.order(key), expected, "{key}");
    }
    assert_eq!(Deployment::counter(&stats, "acked"), (KEYS * EACH) as i64);
    assert_eq!(Deployment::count(&stats, "garbage"), 0, "{stats:#}");
    here.conserved().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_key_that_are_due_together_come_in_the_order_of_their_arrival() {
    storm(1, |now| When::At(now.plus(ms(1500)))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_key_come_in_the_order_of_their_due_times() {
    storm(1, |_| When::After(ms(fastrand::u64(0..2000)))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_a_key_holds_on_four_shards() {
    storm(4, |_| When::After(ms(fastrand::u64(0..2000)))).await;
}
