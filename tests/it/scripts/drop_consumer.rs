//! drop_consumer: forgets a consumer, but never one that holds a message.

use lisa_core::broker::Verdict;
use lisa_core::topic::Shard;
use lisa_tests::Relay;
use lisa_tests::relay::{WORKER, ms};
use redis::cmd;

async fn drop_worker(relay: &Relay) -> bool {
    let (topic, shard) = (relay.topic(), Shard::new(0));
    relay
        .broker()
        .drop_consumer(topic, shard, relay.group(), WORKER)
        .await
        .expect("an answer")
}

async fn consumers(relay: &Relay) -> usize {
    let snapshot = relay.snapshot().await;
    let stream = snapshot.stream("v1:{t:0}:ready:default");
    stream.groups[b"default".as_slice()].consumers.len()
}

#[tokio::test]
async fn a_consumer_that_holds_a_message_stays() {
    let relay = Relay::start("drop").await;
    let read = relay.hold("a").await;
    let before = relay.snapshot().await;
    assert!(!drop_worker(&relay).await);
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.settle(&read, Verdict::Ack).await;
    assert!(drop_worker(&relay).await);
    assert_eq!(consumers(&relay).await, 0);
    assert!(drop_worker(&relay).await);
    relay.assert_drained().await;
}

#[tokio::test]
async fn an_idle_consumer_is_listed_unless_it_holds_a_message() {
    let relay = Relay::start("drop").await;
    let read = relay.hold("a").await;
    let (topic, shard) = (relay.topic(), Shard::new(0));
    let day = ms(24 * 3_600_000);
    let broker = relay.broker();
    assert_eq!(
        broker
            .idle_consumers(topic, shard, relay.group(), day)
            .await
            .unwrap(),
        [""; 0]
    );
    relay.settle(&read, Verdict::Ack).await;
    assert_eq!(
        broker
            .idle_consumers(topic, shard, relay.group(), day)
            .await
            .unwrap(),
        [""; 0]
    );
    let idle = async || match broker
        .idle_consumers(topic, shard, relay.group(), ms(0))
        .await
        .unwrap()
    {
        idle if idle == [WORKER] => Ok(()),
        other => Err(format!("{other:?}")),
    };
    lisa_tests::eventually(ms(10_000), idle).await;
    relay.assert_drained().await;
}

#[tokio::test]
async fn without_a_group_there_is_nobody_to_drop() {
    let relay = Relay::start("drop").await;
    let () = relay
        .command(cmd("DEL").arg(relay.key("ready:default")))
        .await;
    drop_worker(&relay).await;
    let left = relay.snapshot().await;
    assert!(left.get("v1:{t:0}:ready:default").is_none());
    relay.assert_drained().await;
}
