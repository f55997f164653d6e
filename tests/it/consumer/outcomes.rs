//! The effect of a handler's result on its message, and the data that is read for the message.

use super::*;
use lisa_core::message::Expiry;
use std::sync::Mutex;
use tracing::Level;

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
        relay.hash("garbage_info:default").await["reject"],
        "rejected 1 never"
    );
    let attempts = relay.hash("attempts:default").await;
    assert_eq!(attempts.keys().collect::<Vec<_>>(), ["later", "retry"]);
    let report = running.stop().await;
    assert_eq!((report.acked, report.garbage, report.stale), (1, 1, 0));
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_settings_apply_to_a_message_that_a_read_waited_for() {
    let relay = relay("settings").await;
    let handler = delivery_fn(|delivery: Delivery, _| async move {
        match delivery.id.as_str() {
            "first" => Outcome::Ack,
            _ => Outcome::retry("no luck"),
        }
    });
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    relay.send(&[message("first", When::NOW)]).await;
    running.until(|report| report.acked == 1).await;
    let once = TopicSettings {
        max_attempts: 1,
        ..relay.topic().settings().clone()
    };
    let (broker, name) = (relay.broker(), relay.topic().name());
    broker.declare(name, &once, Declare::Update).await.unwrap();
    relay.send(&[message("second", When::NOW)]).await;
    running
        .until(|report| report.retried + report.garbage == 1)
        .await;
    assert_eq!(running.stop().await.garbage, 1);
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
    assert!(delivery.lateness() < SOON);
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
async fn a_handler_that_asks_for_more_time_gets_it_and_no_more() {
    let relay = relay("extend").await;
    // Far longer than any pause of the machine.
    let more = settings().lease + ms(2500);
    let handler = delivery_fn(move |delivery: Delivery, context: Context| async move {
        let before = context.deadline();
        let after = context.extend(more).expect("a lease");
        assert!(after > before && context.deadline() == after);
        match delivery.id.as_str() {
            "ends" => tokio::time::sleep(settings().lease + ms(200)).await,
            _ => std::future::pending().await,
        }
    });
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", handler)
        .handler_timeout(ms(50));
    let running = Running::start(consumer.build().unwrap());
    let started = Instant::now();
    let ids = ["ends", "hangs"];
    relay.send(&ids.map(|id| message(id, When::NOW))).await;
    running.until(|r| r.acked == 1 && r.retried == 1).await;
    assert!(started.elapsed() >= more, "{:?}", started.elapsed());
    let error = &relay.hash("attempts:default").await["hangs"];
    // The extension that it asked for, plus the time before it asked.
    let seconds = error.strip_prefix("1 0 timed out after ");
    let seconds = seconds.and_then(|text| text.split_once('s'));
    let seconds = seconds.and_then(|(seconds, _)| seconds.parse::<u64>().ok());
    assert!(seconds.is_some_and(|seconds| seconds >= 3), "{error}");
    let report = running.stop().await;
    assert_eq!((report.timed_out, report.stale, report.panicked), (1, 0, 0));
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_expired_when_its_turn_comes_is_not_handled() {
    // Both are put on the stream by a clock in the past, which then jumps to today.
    let relay = Relay::with("expired", settings()).await;
    let expiring = |id, expiry| {
        let mut message = message(id, When::NOW);
        message.options.expiry = Some(expiry);
        message
    };
    let tomorrow = relay.broker().connection().clock().now_ms() + 24 * 3_600_000;
    let over = expiring("over", Expiry::After(ms(100)));
    let fresh = expiring("fresh", Expiry::At(UnixMs::new(tomorrow)));
    relay.send(&[over, fresh]).await;
    relay.move_due(100).await;
    relay.broker().set_virtual_now(UnixMs::new(0));
    let handler = delivery_fn(|delivery: Delivery, _| async move {
        assert_eq!(delivery.id.as_str(), "fresh");
    });
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    running.until(|r| r.acked == 1 && r.garbage == 1).await;
    assert_eq!(
        relay.hash("garbage_info:default").await["over"],
        "expired 0 its ttl is over"
    );
    let report = running.stop().await;
    assert_eq!((report.panicked, report.retried), (0, 0));
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
    let dead = &relay.hash("garbage_info:default").await["bad"];
    assert!(dead.starts_with("exhausted 1 panicked: "), "{dead}");
    assert!(!dead.contains('\u{1b}') && !dead.contains('\n'), "{dead:?}");
    assert_eq!(running.stop().await.panicked, 1);
    relay.assert_conserved().await;
}

/// Runs on one thread, whose log goes to a file.
#[tokio::test]
async fn a_panic_is_logged_with_its_message_whatever_the_level() {
    for level in [Level::INFO, Level::ERROR] {
        let relay = relay("panic-log").await;
        let log = tempfile::NamedTempFile::new().unwrap();
        let logging = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(level)
            .with_writer(Mutex::new(log.reopen().unwrap()));
        let _logging = tracing::subscriber::set_default(logging.finish());
        tracing::callsite::rebuild_interest_cache();
        let handler = delivery_fn(|delivery: Delivery, _| async move {
            assert_ne!(delivery.id.as_str(), "a", "boom");
        });
        let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
        let running = Running::start(consumer.build().unwrap());
        relay.send(&[message("a", When::NOW)]).await;
        running.until(|report| report.retried == 1).await;
        running.stop().await;
        let log = std::fs::read_to_string(log.path()).unwrap();
        let mut lines = log.lines();
        let line = lines.find(|line| line.contains("handler panicked"));
        let line = line.expect("a logged panic");
        let span = "deliver{topic=t group=default id=a attempt=1}";
        assert!(line.contains(span) && line.contains("boom"), "{line}");
    }
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
    // By the settings of the relay, a lease lasts a second; a third of it is more than a read takes.
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
    let dead = &relay.hash("garbage_info:default").await["b"];
    assert!(
        dead.starts_with("rejected 1 cannot decode the record"),
        "{dead}"
    );
    running.stop().await;
    relay.assert_conserved().await;
}
