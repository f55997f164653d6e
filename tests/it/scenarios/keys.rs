//! A message at the head of an ordering key that is not finished: a handler that hangs, garbage, a long retry; and a
//! Redis that dies while messages stand behind others.

use super::deployment::{GROUP, TOPIC};
use super::journal::{Journal, message, send_all};
use super::workers::Workers;
use super::{Deployment, SOON};
use lisa_consumer::{Delivery, Outcome};
use lisa_producer::{CancelOutcome, Producer, RescheduleOutcome};
use lisa_tests::relay::ms;
use lisa_tests::{Binary, Site, Topology, eventually};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;

/// A handler that follows the order for a message the first time, and acks it the next time.
#[derive(Clone, Default)]
struct Told {
    journal: Journal,
    orders: Arc<Mutex<BTreeMap<String, Order>>>,
}

/// The handler's behavior for a message the first time.
#[derive(Clone)]
enum Order {
    Hang,
    Wait(Arc<Semaphore>),
    End(Outcome),
}

impl Told {
    fn tell(&self, message: &str, order: Order) {
        self.orders
            .lock()
            .unwrap()
            .insert(message.to_owned(), order);
    }

    async fn handle(self, delivery: Delivery) -> Outcome {
        let run = self.journal.begin(&delivery.payload);
        let message = std::str::from_utf8(&delivery.payload).unwrap();
        let order = self.orders.lock().unwrap().remove(message);
        let outcome = match order {
            Some(Order::Hang) => std::future::pending().await,
            Some(Order::Wait(until)) => {
                until.acquire().await.expect("never closed").forget();
                Outcome::Ack
            }
            Some(Order::End(outcome)) => outcome,
            None => Outcome::Ack,
        };
        self.journal.end(run, outcome == Outcome::Ack);
        outcome
    }

    async fn workers(&self, here: &Deployment) -> Workers {
        let told = self.clone();
        let work = move |delivery| told.clone().handle(delivery);
        Workers::start(here, GROUP, (2, 8), work).await
    }

    /// Sends messages of a key with these numbers, under the ids `<key>-<number>`.
    async fn send(&self, producer: &Producer, key: &str, numbers: std::ops::Range<usize>) {
        let messages = numbers.map(|n| message(key, n).id(format!("{key}-{n}")));
        send_all(producer, TOPIC, messages.collect()).await;
    }

    /// Waits until the messages of a key have run like this.
    #[track_caller]
    fn ran(&self, key: &str, wanted: &[usize]) -> impl Future<Output = ()> {
        eventually(SOON, async move || match self.journal.runs_of(key) {
            runs if runs == wanted => Ok(()),
            runs => Err(format!("{key}: {runs:?}, wanted {wanted:?}")),
        })
    }
}

const NO_GOOD: fn() -> Order = || Order::End(Outcome::reject("no good"));
const LATER: fn() -> Order = || Order::End(Outcome::defer(Duration::from_secs(3600)));

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_hangs_until_its_time_out_holds_up_its_own_key_alone() {
    const OTHERS: usize = 100;
    let retry = "retry = { kind = \"fixed\", delay = \"10ms\", jitter = 0.0 }";
    let here = Deployment::start(&format!("handler_timeout = \"5s\"\n{retry}")).await;
    let _manager = here.manager().await;
    let producer = Producer::new(here.broker().await);
    let told = Told::default();
    let workers = told.workers(&here).await;
    told.tell("stuck 0", Order::Hang);
    told.send(&producer, "stuck", 0..3).await;
    told.ran("stuck", &[0]).await;
    let others = (0..3).flat_map(|n| (0..OTHERS).map(move |key| message(&format!("k{key}"), n)));
    send_all(&producer, TOPIC, others.collect()).await;
    told.journal.acks(3 * OTHERS).await;
    assert_eq!(told.journal.runs_of("stuck"), [0], "others had to wait");

    told.ran("stuck", &[0, 0, 1, 2]).await;
    here.drained().await;
    let timed_out: u64 = workers.stop().await.iter().map(|r| r.timed_out).sum();
    assert_eq!(timed_out, 1);
    here.conserved().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_goes_on_without_what_is_in_garbage_and_takes_it_back_to_its_old_place() {
    let here = Deployment::start("on_garbage = \"continue\"").await;
    let _manager = here.manager().await;
    let producer = Producer::new(here.broker().await);
    let told = Told::default();
    let go = Arc::new(Semaphore::new(0));
    told.tell("k 0", NO_GOOD());
    told.tell("k 1", Order::Wait(go.clone()));
    told.send(&producer, "k", 0..3).await;
    let workers = told.workers(&here).await;
    told.ran("k", &[0, 1]).await;
    here.settled(&[("garbage", 1), ("parked", 1)]).await;

    let requeue = ["garbage", "requeue", TOPIC, "k-0"];
    let done = here.verb(Binary::Manager, &requeue).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    here.settled(&[("garbage", 0), ("parked", 2)]).await;
    go.add_permits(1);
    told.ran("k", &[0, 1, 0, 2]).await;
    here.drained().await;
    workers.stop().await;
    here.conserved().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_garbage_blocks_waits_for_a_requeue_or_a_purge() {
    let here = Deployment::start("on_garbage = \"block\"").await;
    let _manager = here.manager().await;
    let producer = Producer::new(here.broker().await);
    let told = Told::default();
    let workers = told.workers(&here).await;
    for key in ["requeued", "purged"] {
        told.tell(&format!("{key} 0"), NO_GOOD());
        told.send(&producer, key, 0..3).await;
    }
    here.settled(&[("garbage", 2), ("parked", 4)]).await;
    // Messages of other keys come and go meanwhile.
    told.send(&producer, "free", 0..20).await;
    told.journal.acks(20).await;
    for (key, verb) in [("requeued", "requeue"), ("purged", "purge")] {
        assert_eq!(told.journal.runs_of(key), [0]);
        let verb = ["garbage", verb, TOPIC, &format!("{key}-0"), "--yes"];
        let done = here.verb(Binary::Manager, &verb).await;
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    told.ran("requeued", &[0, 0, 1, 2]).await;
    told.ran("purged", &[0, 1, 2]).await;
    let stats = here.drained().await;
    assert_eq!(Deployment::count(&stats, "garbage"), 0, "{stats:#}");
    workers.stop().await;
    here.conserved().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_one_goes_when_the_head_is_cancelled_or_put_off() {
    let here = Deployment::start("").await;
    let _manager = here.manager().await;
    let producer = Producer::new(here.broker().await);
    let told = Told::default();
    let workers = told.workers(&here).await;
    for key in ["cancelled", "put-off"] {
        told.tell(&format!("{key} 0"), LATER());
        told.send(&producer, key, 0..4).await;
    }
    here.settled(&[("retry", 2), ("parked", 6)]).await;

    // Not the head: no other message moves up.
    let cancel = async |id: &str| {
        let cancelled = producer.cancel(TOPIC, id).await.unwrap();
        assert!(
            matches!(cancelled, CancelOutcome::Cancelled { .. }),
            "{id}: {cancelled:?}"
        );
    };
    let put_off = async |id: &str| {
        let moved = producer.reschedule(TOPIC, id, ms(7_200_000)).await.unwrap();
        assert!(
            matches!(moved, RescheduleOutcome::Rescheduled { .. }),
            "{id}: {moved:?}"
        );
    };
    cancel("cancelled-1").await;
    put_off("put-off-1").await;
    told.send(&producer, "free", 0..20).await;
    told.journal.acks(20).await;
    assert_eq!(told.journal.runs_of("cancelled"), [0]);
    assert_eq!(told.journal.runs_of("put-off"), [0]);

    cancel("cancelled-0").await;
    put_off("put-off-0").await;
    told.ran("cancelled", &[0, 2, 3]).await;
    told.ran("put-off", &[0, 2, 3]).await;
    producer.deliver_now(TOPIC, "put-off-0").await.unwrap();
    told.ran("put-off", &[0, 2, 3, 0]).await;
    producer.deliver_now(TOPIC, "put-off-1").await.unwrap();
    told.ran("put-off", &[0, 2, 3, 0, 1]).await;
    let stats = here.drained().await;
    assert_eq!(Deployment::counter(&stats, "cancelled"), 2, "{stats:#}");
    workers.stop().await;
    here.conserved().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_a_key_survives_a_crash_of_redis() {
    const KEYS: usize = 50;
    const EACH: usize = 20;
    if Site::lacks(Topology::is_one_server, "kills the only server") {
        return;
    }
    let mut here = Deployment::durable("lease = \"2s\"").await;
    let _manager = here.manager().await;
    let producer = Producer::new(here.broker().await);
    let told = Told::default();
    // One message in each of ten keys runs while Redis dies, with others behind it; and all keys fail once, most of
    // them after that.
    let go = Arc::new(Semaphore::new(0));
    for key in 0..10 {
        told.tell(&format!("k{key} {}", EACH / 5), Order::Wait(go.clone()));
    }
    for key in 0..KEYS {
        let soon = Outcome::retry_after(ms(30), "not yet");
        told.tell(&format!("k{key} {}", EACH / 2), Order::End(soon));
    }
    let workers = told.workers(&here).await;
    let messages = (0..EACH).flat_map(|n| (0..KEYS).map(move |key| message(&format!("k{key}"), n)));
    send_all(&producer, TOPIC, messages.collect()).await;
    for key in 0..10 {
        told.ran(&format!("k{key}"), &Vec::from_iter(0..=EACH / 5))
            .await;
    }
    here.server().kill9();
    here.server().restart();
    let before = told.journal.acked();
    assert!(before < KEYS * EACH, "it was not midway");
    go.add_permits(10);
    told.journal.acks(KEYS * EACH).await;
    here.drained().await;
    let stale: u64 = workers.stop().await.iter().map(|r| r.stale).sum();
    let overlaps = told.journal.overlaps();
    println!("{before} before the crash, {stale} stale outcomes, {overlaps:?}");
    assert!(overlaps.len() as u64 <= stale, "{overlaps:?}");
    for key in 0..KEYS {
        let order = told.journal.order(&format!("k{key}"));
        assert_eq!(order, Vec::from_iter(0..EACH), "k{key}");
    }
    here.conserved().await;
}
