//! finish_garbage_hook: a finished hook is not run again, unless the message went to garbage again.

use super::take_garbage_hooks::{LEASE, note, relay, take};
use lisa_core::time::UnixMs;
use lisa_core::topic::Shard;
use lisa_tests::Relay;
use lisa_tests::relay::{START, id};

async fn finish(relay: &Relay, name: &str, time: u64) -> bool {
    let (broker, shard, id) = (relay.broker(), Shard::new(0), id(name));
    let finished =
        broker.finish_garbage_hook(relay.topic(), shard, relay.group(), &id, UnixMs::new(time));
    finished.await.expect("an answer")
}

#[tokio::test]
async fn a_finished_hook_is_gone_and_the_message_stays_in_garbage() {
    let relay = relay("finish-notice").await;
    relay.put_in_garbage("a").await;
    take(&relay, 10, LEASE).await;
    assert!(finish(&relay, "a", START).await);
    assert!(relay.zset("garbage_hook:default").await.is_empty());
    assert_eq!(relay.zset("garbage:default").await.len(), 1);
    assert!(!finish(&relay, "a", START).await, "repeated");
    relay.step(5000);
    assert!(take(&relay, 10, LEASE).await.0.is_empty());
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_message_that_went_to_garbage_again_keeps_its_new_hook() {
    let relay = relay("finish-notice").await;
    relay.put_in_garbage("a").await;
    take(&relay, 10, LEASE).await;
    let (broker, topic) = (relay.broker(), relay.topic());
    let seen = [(id("a"), UnixMs::new(START))];
    assert_eq!(
        broker.requeue(topic, relay.group(), &seen).await.unwrap(),
        1
    );
    relay.step(1);
    relay.move_due(10).await;
    let read = relay.read_one().await;
    let error = "again".to_owned();
    let reject = lisa_core::broker::Verdict::Reject { error };
    relay.settle(&read, reject).await;
    assert!(!finish(&relay, "a", START).await, "of the first time");
    assert_eq!(take(&relay, 10, LEASE).await.0, ["a"]);
    assert!(finish(&relay, "a", START + 1).await);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn the_hook_of_a_message_that_left_garbage_can_be_finished() {
    let relay = relay("finish-notice").await;
    note(&relay, "gone").await;
    assert!(finish(&relay, "gone", START).await);
    relay.assert_drained().await;
}
