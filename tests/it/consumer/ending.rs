//! The end of a consumer, clean or at the end of its grace period.

use super::*;

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
        tokio::time::timeout(SOON, seen.recv())
            .await
            .expect("a delivery");
    }
    let watch = Stopwatch::start();
    let name = running.consumer.name().to_owned();
    let report = running.stop().await;
    watch.assert_within(ms(300), ms(2000));
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
    // Another consumer gets all of them, as first attempts.
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
    // A read waits for half a lease.
    let settings = TopicSettings {
        lease: Duration::from_secs(10),
        ..settings()
    };
    let relay = relay_with("idle", settings).await;
    let mut took = Vec::new();
    // The machine may delay one or two; a consumer that waited for its read would never be quick.
    while took.len() < 10 && took.last().is_none_or(|last| *last >= ms(1500)) {
        let handler = delivery_fn(|_, _| async {});
        let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
        let running = Running::start(consumer.build().unwrap());
        relay.send(&[PreparedMessage::new("x")]).await;
        running.until(|report| report.acked == 1).await;
        let started = Instant::now();
        running.stop().await;
        took.push(started.elapsed());
    }
    assert!(took.iter().any(|took| *took < ms(1500)), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_gets_nothing_is_counted_from_its_start_to_its_end() {
    let relay = relay("present").await;
    let handler = delivery_fn(|_: Delivery, _: Context| async {});
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    let counted = async |expected: u64| match relay.stats().await.groups[0].consumers {
        count if count == expected => Ok(()),
        count => Err(count),
    };
    eventually(SOON, async || counted(1).await).await;
    running.stop().await;
    assert_eq!(counted(0).await, Ok(()));
}
