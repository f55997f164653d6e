//! The consumer's library on a real Redis: every outcome, leases, suspects, shutdown, and what Redis can do to it. The
//! manager's part is played by hand.

use lisa_consumer::{Consumer, ConsumerError, Context, Delivery, Outcome, RunReport, delivery_fn};
use lisa_shared::broker::{Declare, Moved};
use lisa_shared::message::NewMessage;
use lisa_shared::time::{UnixMs, When};
use lisa_shared::topic::{Shard, TopicSettings};
use lisa_tests::relay::{self, Relay, message, ms, nameless, settings};
use lisa_tests::{Binary, Process, Server, eventually};
use redis::cmd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(20);

/// A relay on Redis's own clock.
async fn relay(stem: &str) -> Relay {
    relay_with(stem, settings()).await
}

async fn relay_with(stem: &str, settings: TopicSettings) -> Relay {
    let relay = Relay::with(stem, settings).await;
    relay.broker().set_virtual_now(UnixMs::new(0));
    relay
}

/// A consumer that runs, and the means to end it.
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
        eventually(PATIENCE, look).await;
    }

    async fn stop(self) -> RunReport {
        self.stop.cancel();
        self.run.await.expect("no panic").expect("a good end")
    }
}

/// A handler that tells what it was given, then waits until it may end with an ack.
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
        let next = tokio::time::timeout(PATIENCE, self.seen.recv());
        next.await.expect("a delivery in time").expect("a consumer")
    }

    fn let_go(&self, count: usize) {
        self.go.add_permits(count);
    }
}

fn numbered(count: usize) -> Vec<NewMessage> {
    (0..count)
        .map(|n| nameless(&format!("m{n}"), When::NOW))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_outcome_moves_the_message_where_it_says() {
    let relay = relay("outcomes").await;
    let handler = delivery_fn(|delivery: Delivery, _| async move {
        match delivery.id.as_str() {
            "retry" => Outcome::retry("no\nluck"),
            "later" => Outcome::retry_after(Duration::from_secs(3000), "no luck"),
            "defer" => Outcome::defer(Duration::from_secs(1000)),
            "reject" => Outcome::reject("never"),
            _ => Outcome::Ack,
        }
    });
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    let before = relay.broker().now().get();
    let ids = ["ack", "retry", "later", "defer", "reject"];
    relay.send(&ids.map(|id| message(id, When::NOW))).await;
    running
        .until(|r| r.acked + r.retried + r.deferred + r.garbage == 5)
        .await;
    let retry = relay.zset("retry:default").await;
    let after = |id: &str| retry[id] - before;
    assert!((1000..60_000).contains(&after("retry")), "{retry:?}");
    assert!((3_000_000..3_060_000).contains(&after("later")));
    assert!((1_000_000..1_060_000).contains(&after("defer")));
    assert_eq!(
        relay.hash("dead:default").await["reject"],
        "rejected 1 never"
    );
    let attempts = relay.hash("attempts:default").await;
    assert_eq!(attempts.keys().collect::<Vec<_>>(), ["later", "retry"]);
    let report = running.stop().await;
    assert_eq!((report.acked, report.garbage, report.stale), (1, 1, 0));
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_tells_what_was_sent_and_when_it_was_due() {
    let relay = relay("delivery").await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    let mut sent = message("a", When::NOW);
    sent.record.max_attempts = Some(7);
    sent.record.headers.insert("trace", "x").unwrap();
    relay.send(&[sent]).await;
    let (delivery, context) = desk.next().await;
    assert_eq!(&*delivery.payload, b"payload of a");
    assert_eq!(delivery.headers.get("trace"), Some("x"));
    assert_eq!((delivery.attempt, delivery.max_attempts), (1, 7));
    assert_eq!(context.attempt(), 1);
    assert!(delivery.delivered_at >= delivery.due_at);
    assert!(delivery.lateness() < PATIENCE);
    assert!(!context.lease_lost().is_cancelled());
    desk.let_go(1);
    running.until(|report| report.acked == 1).await;
    running.stop().await;
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_takes_too_long_is_dropped_and_its_message_retried() {
    let relay = relay("time-out").await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", handler)
        .handler_timeout(ms(50));
    let running = Running::start(consumer.build().unwrap());
    relay.send(&[message("a", When::NOW)]).await;
    desk.next().await;
    running.until(|report| report.retried == 1).await;
    assert_eq!(running.stop().await.timed_out, 1);
    assert_eq!(
        relay.hash("attempts:default").await["a"],
        "1 0 timed out after 50ms"
    );
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_a_retry_and_the_consumer_lives_on() {
    let relay = relay("panic").await;
    let handler = delivery_fn(|delivery: Delivery, _| async move {
        assert_ne!(delivery.id.as_str(), "bad", "\u{1b}boom");
    });
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", handler)
        .concurrency(1);
    let running = Running::start(consumer.build().unwrap());
    let mut bad = message("bad", When::NOW);
    bad.record.max_attempts = Some(1);
    relay.send(&[bad, message("good", When::NOW)]).await;
    running
        .until(|report| report.acked == 1 && report.garbage == 1)
        .await;
    let dead = &relay.hash("dead:default").await["bad"];
    assert!(dead.starts_with("exhausted 1 panicked: "), "{dead}");
    assert!(!dead.contains('\u{1b}') && !dead.contains('\n'), "{dead:?}");
    assert_eq!(running.stop().await.panicked, 1);
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_while_its_handler_runs() {
    let relay = relay("renewal").await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    relay.send(&[message("a", When::NOW)]).await;
    let (delivery, context) = desk.next().await;
    let two_leases_later = delivery.delivered_at.plus(2 * settings().lease);
    while relay.broker().now() < two_leases_later {
        let report = relay.reclaim().await;
        assert_eq!((report.retry, report.garbage), (0, 0));
        tokio::time::sleep(ms(20)).await;
    }
    assert!(!context.lease_lost().is_cancelled());
    desk.let_go(1);
    running.until(|report| report.acked == 1).await;
    running.stop().await;
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_late_ack_of_a_consumer_that_was_frozen_is_stale() {
    let relay = relay("frozen").await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    relay.send(&[message("a", When::NOW)]).await;
    let (first, context) = desk.next().await;
    relay
        .age(first.entry, running.consumer.name(), ms(2000))
        .await;
    assert_eq!(relay.reclaim().await.retry, 1);
    desk.let_go(1);
    running.until(|report| report.stale == 1).await;
    assert_eq!(relay.zset("retry:default").await.len(), 1);
    // It comes again, as a suspect, to whoever reads it.
    relay.move_due(10).await;
    let (second, _) = desk.next().await;
    assert_eq!((second.id, second.attempt), (first.id, 2));
    assert_ne!(second.entry, first.entry);
    drop(context);
    desk.let_go(1);
    running.until(|report| report.acked == 1).await;
    running.stop().await;
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_is_told_that_its_lease_is_lost() {
    let relay = relay("lost").await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    relay.send(&[message("a", When::NOW)]).await;
    let (delivery, context) = desk.next().await;
    relay
        .age(delivery.entry, running.consumer.name(), ms(2000))
        .await;
    assert_eq!(relay.reclaim().await.retry, 1);
    let told = tokio::time::timeout(PATIENCE, context.lease_lost().cancelled());
    told.await.expect("told");
    desk.let_go(1);
    running.until(|report| report.stale == 1).await;
    running.stop().await;
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_read_without_a_permit() {
    let relay = relay("permits").await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", handler)
        .concurrency(1);
    let running = Running::start(consumer.build().unwrap());
    relay.send(&numbered(2)).await;
    desk.next().await;
    // The settings of the relay give a second a lease; a third of it is more than a read takes.
    let group = relay.stats().await.groups.remove(0);
    assert_eq!((group.ready, group.in_flight), (1, 1));
    desk.let_go(1);
    desk.next().await;
    desk.let_go(1);
    running.until(|report| report.acked == 2).await;
    running.stop().await;
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_payload_is_lost_and_counted_and_a_broken_one_is_rejected() {
    let relay = relay("no-payload").await;
    relay
        .send(&["a", "b", "c"].map(|id| message(id, When::NOW)))
        .await;
    relay.lose_payload("a").await;
    let mut break_it = cmd("HSET");
    break_it.arg(relay.key("payload")).arg("b").arg("\u{9}junk");
    let _: u32 = relay.command(&break_it).await;
    let handler = delivery_fn(|delivery: Delivery, _| async move {
        assert_eq!(delivery.id.as_str(), "c");
    });
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    running
        .until(|report| (report.lost, report.garbage, report.acked) == (1, 1, 1))
        .await;
    let dead = &relay.hash("dead:default").await["b"];
    assert!(
        dead.starts_with("rejected 1 the record cannot be decoded"),
        "{dead}"
    );
    running.stop().await;
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_end_of_the_grace_what_still_runs_is_handed_back_uncounted() {
    let relay = relay("hand-back").await;
    let (tell, mut seen) = mpsc::unbounded_channel();
    // One half ends when it is asked to, the other hangs.
    let handler = delivery_fn(move |delivery: Delivery, context: Context| {
        let tell = tell.clone();
        async move {
            tell.send(()).expect("a test that listens");
            context.shutdown().cancelled().await;
            let number: u32 = delivery.id.as_str()[1..].parse().expect("a number");
            if number % 2 == 1 {
                std::future::pending::<()>().await;
            }
        }
    });
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", handler)
        .concurrency(50)
        .grace(ms(300));
    let running = Running::start(consumer.build().unwrap());
    relay.send(&numbered(80)).await;
    for _ in 0..50 {
        tokio::time::timeout(PATIENCE, seen.recv())
            .await
            .expect("a delivery");
    }
    let started = Instant::now();
    let name = running.consumer.name().to_owned();
    let report = running.stop().await;
    assert!(started.elapsed() < ms(2300), "{:?}", started.elapsed());
    assert_eq!((report.acked, report.deferred, report.retried), (25, 25, 0));
    let group = relay.stats().await.groups.remove(0);
    assert_eq!((group.ready, group.in_flight, group.retry), (30, 0, 25));
    assert!(relay.hash("attempts:default").await.is_empty());
    let stream = relay
        .snapshot()
        .await
        .stream(&relay.short_key(0, "ready:default"));
    let consumers = &stream.groups["default".as_bytes()].consumers;
    assert!(
        consumers.iter().all(|consumer| *consumer != *name),
        "{consumers:?}"
    );
    // Another one gets all of it, as first attempts.
    let handler = delivery_fn(|delivery: Delivery, _| async move {
        assert_eq!(delivery.attempt, 1);
    });
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    relay.move_due(100).await;
    running.until(|report| report.acked == 55).await;
    assert_eq!(running.stop().await.panicked, 0);
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_consumer_stops_without_waiting_for_its_read() {
    let relay = relay("idle").await;
    let handler = delivery_fn(|_, _| async {});
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    relay.send(&[message("a", When::NOW)]).await;
    running.until(|report| report.acked == 1).await;
    let started = Instant::now();
    running.stop().await;
    assert!(started.elapsed() < ms(1500), "{:?}", started.elapsed());
}

/// Makes messages suspects: another consumer read them and died.
async fn suspects(relay: &Relay, ids: &[&str]) {
    for id in ids {
        relay.send(&[message(id, When::NOW)]).await;
        let read = relay.read_one().await;
        relay.age(read.attempt.entry, relay::WORKER, ms(2000)).await;
    }
    assert_eq!(relay.reclaim().await.retry, ids.len() as u64);
    let moved = relay.move_due(100).await;
    assert!(matches!(moved, Moved::Moved { count, .. } if count == ids.len() as u64));
}

#[tokio::test(flavor = "multi_thread")]
async fn suspects_run_alone_and_are_marked_as_started() {
    let relay = Arc::new(relay("suspects").await);
    suspects(&relay, &["s0", "s1", "s2"]).await;
    relay.send(&numbered(40)).await;
    let (running_now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, top, look) = (running_now.clone(), most.clone(), relay.clone());
    let handler = delivery_fn(move |delivery: Delivery, _| {
        let (now, top, look) = (now.clone(), top.clone(), look.clone());
        async move {
            let beside = now.fetch_add(1, Ordering::SeqCst);
            top.fetch_max(beside + 1, Ordering::SeqCst);
            let suspect = delivery.id.as_str().starts_with('s');
            let stream = look
                .snapshot()
                .await
                .stream(&look.short_key(0, "ready:default"));
            let pending = &stream.groups["default".as_bytes()].pending;
            let deliveries = pending[&delivery.entry.to_string()].deliveries;
            let left = now.fetch_sub(1, Ordering::SeqCst) - 1;
            if suspect {
                assert_eq!((beside, left, deliveries, delivery.attempt), (0, 0, 2, 2));
            } else {
                assert_eq!((deliveries, delivery.attempt), (1, 1));
            }
        }
    });
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", handler)
        .concurrency(8);
    let running = Running::start(consumer.build().unwrap());
    running
        .until(|r| r.acked + r.retried + r.garbage == 43)
        .await;
    let report = running.stop().await;
    assert_eq!((report.acked, report.panicked), (43, 0), "{report:?}");
    assert!(most.load(Ordering::SeqCst) > 1, "the others run together");
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_that_waits_for_its_turn_keeps_its_lease_and_is_not_marked() {
    let relay = relay("suspect-waits").await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    let ids = ["first", "suspect"];
    relay.send(&ids.map(|id| message(id, When::NOW))).await;
    desk.next().await;
    let (lost, _) = desk.next().await;
    assert_eq!(lost.id.as_str(), "suspect");
    let name = running.consumer.name();
    relay.age(lost.entry, name, ms(2000)).await;
    assert_eq!(relay.reclaim().await.retry, 1);
    relay.move_due(10).await;
    let key = relay.short_key(0, "ready:default");
    let waits = async || {
        let stream = relay.snapshot().await.stream(&key);
        let pending = &stream.groups["default".as_bytes()].pending;
        match pending.values().filter(|held| held.deliveries == 1).count() {
            2 => Ok(()),
            _ => Err(format!("{pending:?}")),
        }
    };
    eventually(PATIENCE, &waits).await;
    let two_leases_later = relay.broker().now().plus(2 * settings().lease);
    while relay.broker().now() < two_leases_later {
        assert_eq!(relay.reclaim().await.retry, 0);
        waits().await.unwrap();
        tokio::time::sleep(ms(20)).await;
    }
    // The lost run and the first end; only now the suspect gets its turn.
    desk.let_go(2);
    let (suspect, _) = desk.next().await;
    assert_eq!((suspect.id.as_str(), suspect.attempt), ("suspect", 2));
    desk.let_go(1);
    running.until(|report| report.acked == 2).await;
    assert_eq!(running.stop().await.stale, 1);
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_registered_later_is_waited_for() {
    let relay = relay("registered-later").await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone()).topic("later", handler);
    let running = Running::start(consumer.build().unwrap());
    let name = "later".parse().unwrap();
    let (broker, settings, sent) = (relay.broker(), settings(), [message("a", When::NOW)]);
    let declared = broker.declare(&name, &settings, Declare::Create).await;
    let topic = declared.unwrap();
    broker.send(&topic, Shard::new(0), &sent).await.unwrap();
    desk.next().await;
    desk.let_go(1);
    running.until(|report| report.acked == 1).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_fewer_permits_than_shards_no_shard_starves() {
    let four = TopicSettings {
        shards: 4,
        ..settings()
    };
    let relay = relay_with("four-shards", four).await;
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", delivery_fn(|_, _| async {}))
        .concurrency(1);
    let running = Running::start(consumer.build().unwrap());
    for round in 1..=5 {
        for shard in relay.topic().shards() {
            let sent = [nameless(&format!("m{round}-{shard}"), When::NOW)];
            let sent = relay.broker().send(relay.topic(), shard, &sent).await;
            sent.unwrap();
        }
        running.until(|report| report.acked == round * 4).await;
    }
    running.stop().await;
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_and_a_restarted_redis_are_read_again() {
    let mut server = Server::start();
    let link = relay::link(&server).await;
    let relay = Relay::on(&server, &link, "heals", settings()).await;
    relay.broker().set_virtual_now(UnixMs::new(0));
    let consumer =
        Consumer::builder(relay.broker().clone()).topic("t", delivery_fn(|_, _| async {}));
    let running = Running::start(consumer.build().unwrap());
    relay.send(&[message("a", When::NOW)]).await;
    running.until(|report| report.acked == 1).await;
    let () = relay.command(&cmd("FLUSHALL")).await;
    relay.send(&[message("b", When::NOW)]).await;
    running.until(|report| report.acked == 2).await;
    server.restart();
    relay.send(&[message("c", When::NOW)]).await;
    running.until(|report| report.acked == 3).await;
    relay.assert_conserved().await;
    assert_eq!(running.stop().await.unsettled, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_handled_while_redis_was_away_is_settled_when_it_is_back() {
    let mut server = Server::builder().aof(lisa_tests::Aof::Always).start();
    let link = relay::link(&server).await;
    let relay = Relay::on(&server, &link, "away", settings()).await;
    relay.broker().set_virtual_now(UnixMs::new(0));
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    relay.send(&[message("a", When::NOW)]).await;
    desk.next().await;
    server.stop();
    desk.let_go(1);
    server.restart();
    running.until(|report| report.acked == 1).await;
    running.stop().await;
    assert_eq!(relay.stats().await.conservation_error, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_messages_over_two_shards_are_each_handled_once() {
    let two = TopicSettings {
        shards: 2,
        ..settings()
    };
    let relay = relay_with("many", two).await;
    let handled = Arc::new(AtomicUsize::new(0));
    let count = handled.clone();
    let handler = delivery_fn(move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        async {}
    });
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", handler)
        .concurrency(100);
    let running = Running::start(consumer.build().unwrap());
    for round in 0..10 {
        for shard in relay.topic().shards() {
            let batch: Vec<NewMessage> = (0..300)
                .map(|n| nameless(&format!("m{shard}-{round}-{n}"), When::NOW))
                .collect();
            let sent = relay.broker().send(relay.topic(), shard, &batch);
            sent.await.unwrap();
        }
    }
    running.until(|report| report.acked == 6000).await;
    let report = running.stop().await;
    assert_eq!(handled.load(Ordering::Relaxed), 6000);
    assert_eq!((report.stale, report.deferred), (0, 0));
    relay.assert_drained().await;
}

/// Runs the binary on a relay's topic with five handlers at once; `sink` and `more` are TOML.
fn binary(relay: &Relay, server: &Server, sink: &str, more: &str) -> Process {
    let config = format!(
        r#"
        namespace = "{}"
        redis.url = "{}"
        consumer.listen = "127.0.0.1:{}"
        consumer.subscriptions = [{{ topic = "t", group = "default", concurrency = 5, sink = {sink} }}]
        {more}
        "#,
        relay.broker().namespace(),
        server.socket_url(),
        lisa_tests::free_port(),
    );
    Binary::Consumer.with(["run"]).config(&config).start()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_prints_messages_and_ends_with_0_when_it_is_told_to() {
    let relay = relay("binary").await;
    let mut process = binary(&relay, Server::shared(), r#"{ type = "stdout" }"#, "");
    relay.send(&[message("a", When::NOW)]).await;
    let line = process.next_line(PATIENCE).await;
    assert!(
        line.contains(r#""id":"a""#) && line.contains(r#""payload":"payload of a""#),
        "{line}"
    );
    process.sigterm();
    assert_eq!(process.wait_exit(PATIENCE).await.code(), Some(0));
    assert_eq!(process.lines_to_end(PATIENCE).await, Vec::<String>::new());
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_hands_back_what_hangs_at_the_end_of_the_grace() {
    let relay = relay("binary-hangs").await;
    let sink = r#"{ type = "command", command = ["/bin/sleep", "1000"] }"#;
    let mut process = binary(
        &relay,
        Server::shared(),
        sink,
        r#"shutdown.grace = "100ms""#,
    );
    relay.send(&numbered(8)).await;
    let five = async || match relay.stats().await.groups.remove(0) {
        group if group.in_flight == 5 => Ok(()),
        group => Err(format!("{group:?}")),
    };
    eventually(PATIENCE, five).await;
    process.sigterm();
    assert_eq!(process.wait_exit(PATIENCE).await.code(), Some(0));
    let group = relay.stats().await.groups.remove(0);
    assert_eq!((group.ready, group.in_flight, group.retry), (3, 0, 5));
    assert!(relay.hash("attempts:default").await.is_empty());
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_binary_refuses_to_run_without_subscriptions() {
    let finished = Binary::Consumer.with(["run"]).run(PATIENCE).await;
    assert_eq!(finished.code, Some(78), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("consumer.subscriptions"),
        "{}",
        finished.stderr
    );
    assert_eq!(finished.stdout, "");
}
