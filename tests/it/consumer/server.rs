//! A consumer with a topic that is created late, with many shards, and with an unsteady Redis.

use super::*;

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
    let connection = relay::connection(&server).await;
    let relay = Relay::on(&server, &connection, "heals", settings()).await;
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
    let connection = relay::connection(&server).await;
    let relay = Relay::on(&server, &connection, "away", settings()).await;
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
    for round in 0..30 {
        for shard in relay.topic().shards() {
            let batch: Vec<PreparedMessage> = (0..100)
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

#[tokio::test(flavor = "multi_thread")]
async fn the_consumers_of_a_process_read_the_registry_together() {
    const CONSUMERS: u64 = 10;
    let server = Server::start();
    let connection = relay::connection(&server).await;
    let relay = Relay::on(&server, &connection, "together", settings()).await;
    let one = |_| {
        let consumer = Consumer::builder(relay.broker().clone());
        let consumer = consumer.topic("t", delivery_fn(|_, _| async {}));
        Running::start(consumer.build().unwrap())
    };
    let running: Vec<_> = (0..CONSUMERS).map(one).collect();
    let read = eventually(SOON, async || match server.calls("hgetall").await {
        0 => Err("nobody has read it"),
        count => Ok(count),
    });
    let before = read.await;
    tokio::time::sleep(ms(6000)).await;
    // Without sharing, each of them would have read it by now.
    let reads = server.calls("hgetall").await - before;
    assert!((1..CONSUMERS / 2).contains(&reads), "{reads} reads");
    for one in running {
        one.stop().await;
    }
}
