//! The rate of a topic, part of which its old shards have used.

use lisa_core::broker::{TopicHandle, Verdict};
use lisa_core::topic::TopicSettings;
use lisa_tests::Relay;
use lisa_tests::relay::{message, ms, settings, settlement};

use super::{HOUR, ack, migrate_out, open, send};

/// Moves what the rate admits on the new shards, and handles it; returns the number.
async fn deliver(relay: &Relay, topic: &TopicHandle) -> usize {
    let mut count = 0;
    for shard in topic.shards().filter(|shard| !topic.is_retiring(*shard)) {
        let moved = relay.broker().move_due(topic, shard, 50, HOUR).await;
        moved.unwrap();
        for read in relay.read_as(shard, "worker", 50).await {
            ack(relay, topic, shard, &read).await;
            count += 1;
        }
    }
    count
}

#[tokio::test]
async fn what_the_old_shard_let_through_counts_on_the_new_ones() {
    let settings = TopicSettings {
        rate: Some("10/s".parse().unwrap()),
        burst: Some(5),
        ..settings()
    };
    let mut relay = Relay::with("rates", settings).await;
    for n in 0..40 {
        send(
            relay.broker(),
            relay.topic(),
            message(&format!("m-{n}"), ms(0)),
        )
        .await;
    }
    relay.step(1);
    relay.move_due(50).await;
    let burst = relay.read(50).await;
    assert_eq!(burst.len(), 5);
    let acks: Vec<_> = burst
        .iter()
        .map(|read| settlement(read, Verdict::Ack))
        .collect();
    relay.settle_all(&acks).await;
    let topic = open(&relay, 2).await;
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    let topic = relay.broker().known(topic.name()).unwrap();
    relay.set_topic(topic.clone());
    assert_eq!(deliver(&relay, &topic).await, 0, "the burst is used up");
    let mut second = 0;
    for _ in 0..10 {
        relay.step(100);
        second += deliver(&relay, &topic).await;
    }
    assert_eq!(second, 10);
}
