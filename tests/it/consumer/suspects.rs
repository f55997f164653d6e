//! Suspects run one at a time, each marked during its turn, beside everything else; the others are postponed for a
//! while.

use super::*;
use lisa_consumer::{Handler, Subscription, async_trait};
use lisa_service::metrics::Metrics;
use prometheus_client::registry::Registry;

/// The number of processes that died with a suspect.
const CRASHES: usize = 2;

/// Makes messages suspects: consumers read them and died.
async fn suspects(relay: &Relay, ids: &[&str]) {
    crashed(relay, ids, CRASHES).await;
}

/// Lets this many consumers read messages and die, one after the other.
async fn crashed(relay: &Relay, ids: &[&str], crashes: usize) {
    let sent: Vec<_> = ids.iter().map(|id| message(id, When::NOW)).collect();
    relay.send(&sent).await;
    for _ in 0..crashes {
        let read = relay.read(ids.len()).await;
        assert_eq!(read.len(), ids.len());
        for read in read {
            relay.age(read.attempt.entry, relay::WORKER, ms(2000)).await;
        }
        assert_eq!(relay.reclaim().await.retry, ids.len() as u64);
        let moved = relay.move_due(100).await;
        assert!(matches!(moved, Moved::Moved { count, .. } if count == ids.len() as u64));
    }
}

/// The delivery counts of what is in flight, by entry.
async fn deliveries(relay: &Relay, delivery: &Delivery) -> Option<u64> {
    let stream = relay.snapshot().await;
    let stream = stream.stream(&relay.short_key(0, "ready:default"));
    let pending = &stream.groups["default".as_bytes()].pending;
    let held = pending.get(&delivery.entry.to_string());
    held.map(|held| held.deliveries)
}

async fn is_marked(relay: &Relay, delivery: &Delivery) -> bool {
    deliveries(relay, delivery).await.expect("it is in flight") > 1
}

fn start(relay: &Relay, handler: impl Handler) -> Running {
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    Running::start(consumer.build().unwrap())
}

/// Moves what is due, again and again.
async fn moving(relay: &Relay) -> ! {
    loop {
        relay.move_due(100).await;
        tokio::time::sleep(ms(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_one_process_died_with_runs_beside_the_others_and_is_not_marked() {
    let relay = relay("first-crash").await;
    crashed(&relay, &["a", "b", "c"], 1).await;
    let (mut desk, handler) = Desk::new();
    let running = start(&relay, handler);
    for _ in 0..3 {
        let (delivery, _) = desk.next().await;
        assert_eq!(delivery.attempt, 1);
        assert!(!is_marked(&relay, &delivery).await);
    }
    desk.let_go(3);
    running.until(|report| report.acked == 3).await;
    running.stop().await;
    assert!(relay.hash("attempts:default").await.is_empty());
    relay.assert_drained().await;
}

/// Leaves its deliveries to a gateway, and keeps its places while any message is in flight.
struct Later(mpsc::UnboundedSender<Delivery>);

#[async_trait]
impl Handler for Later {
    async fn handle(&self, delivery: Delivery, _: Context) -> Outcome {
        let _ = self.0.send(delivery);
        Outcome::Later {
            within: Duration::from_secs(3600),
        }
    }

    fn max_later(&self) -> Option<usize> {
        Some(0)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_trial_does_not_end_the_time_to_complete_a_delivery() {
    let short = TopicSettings {
        handler_timeout: ms(100),
        ..settings()
    };
    let relay = relay_with("suspect-later", short).await;
    suspects(&relay, &["s0", "s1"]).await;
    let (sender, mut seen) = mpsc::unbounded_channel();
    let running = start(&relay, Later(sender));
    let first = seen.recv().await.expect("a suspect");
    // The other one has its trial when that of the first has ended.
    tokio::select! {
        never = moving(&relay) => never,
        other = seen.recv() => assert_ne!(other.expect("a suspect").id, first.id),
    }
    eventually(SOON, async || match deliveries(&relay, &first).await {
        Some(until) if until > 2 => Ok(()),
        count => Err(format!("{count:?}")),
    })
    .await;
    running.stop().await;
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn suspects_run_one_at_a_time_and_marked_beside_ordinary_messages() {
    let relay = Arc::new(relay("suspects").await);
    suspects(&relay, &["s0", "s1", "s2"]).await;
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (running_now, top, look) = (now.clone(), most.clone(), relay.clone());
    let turn = Arc::new(Semaphore::new(0));
    let held = turn.clone();
    let handler = delivery_fn(move |delivery: Delivery, _| {
        let (now, top, look) = (running_now.clone(), top.clone(), look.clone());
        let held = held.clone();
        async move {
            if delivery.id.as_str().starts_with('s') {
                let beside = now.fetch_add(1, Ordering::SeqCst);
                top.fetch_max(beside + 1, Ordering::SeqCst);
                assert!(is_marked(&look, &delivery).await);
                assert_eq!(delivery.attempt, 1);
                held.acquire().await.expect("never closed").forget();
                now.fetch_sub(1, Ordering::SeqCst);
            } else {
                assert!(!is_marked(&look, &delivery).await);
            }
        }
    });
    relay.send(&numbered(40)).await;
    let running = start(&relay, handler);
    // The first one holds the turn until both others were postponed and all ordinary messages are done.
    running
        .until(|report| report.deferred == 2 && report.acked == 40)
        .await;
    turn.add_permits(3);
    tokio::select! {
        never = moving(&relay) => never,
        () = running.until(|report| report.acked + report.retried == 43) => {}
    }
    assert_eq!(most.load(Ordering::SeqCst), 1);
    let report = running.stop().await;
    assert_eq!((report.acked, report.panicked), (43, 0), "{report:?}");
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_that_waits_is_in_retry_and_holds_neither_permit_nor_entry() {
    let relay = relay("suspect-waits").await;
    suspects(&relay, &["s0", "s1"]).await;
    let (mut desk, handler) = Desk::new();
    let handler = Arc::new(handler);
    let handler = delivery_fn(move |delivery: Delivery, context: Context| {
        let handler = handler.clone();
        async move {
            match delivery.id.as_str() {
                "s0" | "s1" => handler.handle(delivery, context).await,
                _ => Outcome::Ack,
            }
        }
    });
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", handler)
        .concurrency(2);
    let running = Running::start(consumer.build().unwrap());
    let (suspect, _) = desk.next().await;
    // Ordinary messages run with the other permit, although one suspect holds the turn and the other one waits for it.
    relay.send(&numbered(10)).await;
    running.until(|report| report.acked == 10).await;
    assert!(is_marked(&relay, &suspect).await);
    let waits = async || {
        let retry = relay.zset("retry:default").await;
        match (retry.len(), running.consumer.warnings().len()) {
            (1, 1) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    eventually(SOON, waits).await;
    let counts = relay.hash("attempts:default").await;
    assert!(
        counts.values().all(|counts| is_twice_crashed(counts)),
        "a hand-back keeps the crashes: {counts:?}"
    );
    desk.let_go(2);
    tokio::select! {
        never = moving(&relay) => never,
        () = running.until(|report| report.acked == 12) => {}
    }
    let quiet = async || match running.consumer.warnings() {
        warnings if warnings.is_empty() => Ok(()),
        warnings => Err(warnings.concat()),
    };
    eventually(SOON, quiet).await;
    running.stop().await;
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mark_goes_at_the_end_of_the_turn_while_the_handler_runs_on() {
    let mut settings = settings();
    // A turn is no longer than the timeout, which this handler extends.
    settings.handler_timeout = ms(300);
    let relay = relay_with("end-of-turn", settings).await;
    suspects(&relay, &["s0", "s1"]).await;
    let (tell, mut seen) = mpsc::unbounded_channel();
    let go = Arc::new(Semaphore::new(0));
    let held = go.clone();
    let handler = delivery_fn(move |delivery: Delivery, context: Context| {
        let (tell, held) = (tell.clone(), held.clone());
        async move {
            context.extend(SOON).expect("a lease");
            tell.send(delivery).expect("a test that listens");
            held.acquire().await.expect("never closed").forget();
        }
    });
    let running = start(&relay, handler);
    let first = seen.recv().await.expect("a delivery");
    let unmarked = async || match deliveries(&relay, &first).await {
        Some(1) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    eventually(SOON, unmarked).await;
    // The next one has the turn beside it.
    let second = tokio::select! {
        never = moving(&relay) => never,
        second = seen.recv() => second.expect("a delivery"),
    };
    assert_ne!(second.id, first.id);
    // The first died with its process, unmarked: no attempt is charged.
    lapse(&relay, &running, &first).await;
    let counts = relay.hash("attempts:default").await;
    assert!(counts[first.id.as_str()].starts_with("0 3 "), "{counts:?}");
    go.add_permits(10);
    tokio::select! {
        never = moving(&relay) => never,
        () = running.until(|report| report.acked == 2) => {}
    }
    running.stop().await;
    relay.assert_drained().await;
}

/// Returns true for the attempts of a message with two crashes and no attempt. Beside a pause, a due time follows.
fn is_twice_crashed(attempts: &str) -> bool {
    attempts.starts_with("0 2 ") || attempts.starts_with("0 2@")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_that_is_handed_back_at_a_shutdown_is_as_suspect_as_before() {
    let relay = relay("suspect-stops").await;
    suspects(&relay, &["s0", "s1"]).await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", handler)
        .grace(ms(50));
    let running = Running::start(consumer.build().unwrap());
    let (begun, _) = desk.next().await;
    assert!(is_marked(&relay, &begun).await);
    running.stop().await;
    let counts = relay.hash("attempts:default").await;
    assert_eq!(counts.len(), 2);
    assert!(
        counts.values().all(|counts| is_twice_crashed(counts)),
        "{counts:?}"
    );
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_of_one_subscription_holds_up_no_other_one() {
    let relay = relay("two-subscriptions").await;
    suspects(&relay, &["s0"]).await;
    let (broker, group) = (relay.broker(), relay.group().clone());
    let other = "other".parse().unwrap();
    let other = broker.declare(&other, &settings(), Declare::Create).await;
    let other = other.unwrap();
    let (mut slow, slow_handler) = Desk::new();
    let (mut fast, fast_handler) = Desk::new();
    let (of, and) = (relay.topic().name().clone(), other.name().clone());
    let consumer = Consumer::builder(broker.clone())
        .subscription(Subscription::new(of, group.clone(), slow_handler))
        .subscription(Subscription::new(and, group, fast_handler));
    let running = Running::start(consumer.build().unwrap());
    let (suspect, _) = slow.next().await;
    let one = [message("x", When::NOW)];
    broker.send(&other, Shard::new(0), &one).await.unwrap();
    fast.next().await;
    assert!(is_marked(&relay, &suspect).await);
    fast.let_go(1);
    slow.let_go(1);
    running.until(|report| report.acked == 2).await;
    running.stop().await;
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gauges_of_suspects_end_with_the_subscription() {
    let relay = relay("suspect-gauges").await;
    let (_, handler) = Desk::new();
    let metrics = Metrics::new(Registry::default(), "0", "consumer");
    let consumer = Consumer::builder(relay.broker().clone())
        .metrics(metrics.clone())
        .topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    let is_exported = || metrics.encode().contains("lisa_suspects{");
    let exported = async || is_exported().then_some(()).ok_or_else(|| metrics.encode());
    eventually(SOON, exported).await;
    running.stop().await;
    assert!(!is_exported(), "{}", metrics.encode());
}
