//! take_garbage_hooks: a group's garbage is taken for a lease, oldest first.

use lisa_core::broker::PendingHook;
use lisa_core::state::GarbageReason;
use lisa_core::time::UnixMs;
use lisa_core::topic::Shard;
use lisa_tests::Relay;
use lisa_tests::relay::{START, id, ms};
use redis::cmd;
use std::time::Duration;

pub(super) const LEASE: Duration = ms(1000);

/// Takes up to `count` hooks of shard 0; returns their ids, and whether there may be more.
pub(super) async fn take(relay: &Relay, count: usize, lease: Duration) -> (Vec<String>, bool) {
    let (notices, more) = take_whole(relay, count, lease).await;
    let ids = notices.iter().map(|notice| notice.id.to_string());
    (ids.collect(), more)
}

async fn take_whole(relay: &Relay, count: usize, lease: Duration) -> (Vec<PendingHook>, bool) {
    let (broker, shard) = (relay.broker(), Shard::new(0));
    let taken = broker.take_garbage_hooks(relay.topic(), shard, relay.group(), count, lease);
    taken.await.expect("an answer")
}

/// A relay whose group asks for the garbage hook.
pub(super) async fn relay(stem: &str) -> Relay {
    let relay = Relay::start(stem).await;
    assert_eq!(take(&relay, 1, LEASE).await, (vec![], false));
    relay
}

/// Leaves a hook of a message that is not in garbage any more.
pub(super) async fn note(relay: &Relay, name: &str) {
    let mut add = cmd("ZADD");
    add.arg(relay.key("garbage_hook:default"))
        .arg(START)
        .arg(name);
    let added: u32 = relay.command(&add).await;
    assert_eq!(added, 1);
}

#[tokio::test]
async fn a_hook_says_what_went_to_garbage_when_and_why() {
    let relay = relay("take-notices").await;
    relay.put_in_garbage("a").await;
    relay.step(5);
    let (notices, more) = take_whole(&relay, 10, LEASE).await;
    assert!(!more);
    let [notice] = &notices[..] else {
        panic!("{notices:?}");
    };
    assert_eq!((&notice.id, notice.time), (&id("a"), UnixMs::new(START)));
    let garbage = notice.garbage.as_ref().expect("a reason");
    assert_eq!(
        (garbage.reason, garbage.attempts),
        (GarbageReason::Rejected, 1)
    );
    assert_eq!(garbage.error, "no good");
    relay.assert_conserved().await;
}

#[tokio::test]
async fn what_was_taken_comes_again_after_the_lease_and_no_sooner() {
    let relay = relay("take-notices").await;
    relay.put_in_garbage("a").await;
    let a = || vec!["a".to_owned()];
    assert_eq!(take(&relay, 10, LEASE).await.0, a());
    relay.step(999);
    assert!(take(&relay, 10, LEASE).await.0.is_empty());
    relay.step(1);
    assert_eq!(take(&relay, 10, ms(5)).await.0, a());
    relay.step(5);
    assert_eq!(take(&relay, 10, LEASE).await.0, a());
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_hook_that_is_kept_stays_taken_and_a_shorter_lease_does_not_free_it() {
    let relay = relay("take-notices").await;
    let (broker, shard, a) = (relay.broker(), Shard::new(0), id("a"));
    relay.put_in_garbage("a").await;
    take(&relay, 10, LEASE).await;
    relay.step(900);
    for lease in [LEASE, ms(1)] {
        let kept = broker.keep_garbage_hook(relay.topic(), shard, relay.group(), &a, lease);
        kept.await.unwrap();
    }
    assert_eq!(relay.zset("garbage_hook:default").await["a"], START + 1900);
    let other = id("other");
    let kept = broker.keep_garbage_hook(relay.topic(), shard, relay.group(), &other, LEASE);
    kept.await.unwrap();
    assert_eq!(relay.zset("garbage_hook:default").await.len(), 1);
}

#[tokio::test]
async fn the_oldest_come_first_and_a_full_batch_says_that_there_may_be_more() {
    let relay = relay("take-notices").await;
    for name in ["z", "m", "a"] {
        relay.put_in_garbage(name).await;
        relay.step(1);
    }
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    assert_eq!(take(&relay, 2, LEASE).await, (names(&["z", "m"]), true));
    assert_eq!(take(&relay, 2, LEASE).await, (names(&["a"]), false));
}

#[tokio::test]
async fn what_left_garbage_is_dropped_and_what_came_back_is_noted_again() {
    let relay = relay("take-notices").await;
    for name in ["requeued", "purged"] {
        relay.put_in_garbage(name).await;
    }
    let seen = |name| [(id(name), UnixMs::new(START))];
    let (broker, topic) = (relay.broker(), relay.topic());
    assert_eq!(
        broker
            .requeue(topic, relay.group(), &seen("requeued"))
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        broker
            .purge(topic, relay.group(), &seen("purged"))
            .await
            .unwrap(),
        1
    );
    note(&relay, "gone").await;
    assert_eq!(take(&relay, 10, LEASE).await, (vec![], false));
    assert!(relay.zset("garbage_hook:default").await.is_empty());

    relay.step(1);
    relay.move_due(10).await;
    let read = relay.read_one().await;
    let error = "again".to_owned();
    let reject = lisa_core::broker::Verdict::Reject { error };
    relay.settle(&read, reject).await;
    assert_eq!(take(&relay, 10, LEASE).await.0, ["requeued"]);
    relay.assert_conserved().await;
}
