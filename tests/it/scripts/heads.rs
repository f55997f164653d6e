//! heads: reads the first bytes of records, which say how a message is retried. A reclaim needs them.

use lisa_core::broker::ReclaimReport;
use lisa_core::topic::{Shard, Size, TopicSettings};
use lisa_tests::relay::{WORKER, connection, message, ms, settings};
use lisa_tests::{Relay, Server};
use std::time::Duration;

const IDLE: Duration = ms(3_600_000);
/// Two of these are more than one call may read.
const LARGE: usize = 700 * 1024;

#[tokio::test]
async fn heads_are_read_in_parts_and_each_is_that_of_its_message() {
    let server = Server::start();
    let settings = TopicSettings {
        max_payload: Size::new(2 * LARGE as u64),
        ..settings()
    };
    let relay = Relay::on(&server, &connection(&server).await, "heads", settings).await;
    // Redis knows both scripts from now on.
    let warm = relay.hold("warm").await;
    relay.age(warm.attempt.entry, WORKER, IDLE).await;
    assert_eq!(relay.reclaim().await.retry, 1);
    // The second is too large for any call together with another one.
    let sizes = [LARGE, 2 * LARGE, 10, 10, LARGE];
    for (number, size) in sizes.into_iter().enumerate() {
        let mut message = message(&format!("m{number}"), ms(0));
        message.record.payload = vec![b'x'; size].into();
        let delays = format!(
            r#"{{"kind":"fixed","delay":"{}s","jitter":0}}"#,
            10 + number
        );
        message.record.retry = delays.parse().ok();
        relay.send(&[message]).await;
    }
    let reads = relay.read(sizes.len()).await;
    for read in &reads {
        let entries = [read.attempt.entry];
        let (broker, topic) = (relay.broker(), relay.topic());
        let held = broker.renew(topic, Shard::new(0), relay.group(), WORKER, &entries);
        assert_eq!(held.await.expect("an answer"), entries);
        relay.age(read.attempt.entry, WORKER, IDLE).await;
    }
    let before = server.calls("evalsha").await;
    assert_eq!(relay.reclaim().await.retry, 5);
    // Three parts, and the reclaim itself.
    assert_eq!(server.calls("evalsha").await - before, 4);
    let retry = relay.zset("retry:default").await;
    for number in 0..sizes.len() {
        let due = relay.at(10_000 + 1000 * number as i64);
        assert_eq!(retry[&format!("m{number}")], due.get());
    }
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_record_that_is_not_there_does_not_keep_others_from_being_read() {
    let relay = Relay::start("heads").await;
    for name in ["lost", "kept"] {
        let read = relay.hold(name).await;
        relay.age(read.attempt.entry, WORKER, IDLE).await;
    }
    relay.lose_payload("lost").await;
    let report = ReclaimReport {
        retry: 1,
        lost: 1,
        ..ReclaimReport::default()
    };
    assert_eq!(relay.reclaim().await, report);
    relay.assert_conserved().await;
}
