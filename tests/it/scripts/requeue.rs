//! requeue: garbage is delivered again with all its attempts; a message that came back to garbage since is left alone.

use lisa_core::message::MessageId;
use lisa_core::time::UnixMs;
use lisa_core::topic::{Shard, TopicSettings};
use lisa_tests::Relay;
use lisa_tests::relay::{START, id, settings};

async fn requeue(relay: &Relay, seen: &[(MessageId, UnixMs)]) -> u64 {
    relay
        .broker()
        .requeue(relay.topic(), relay.group(), seen)
        .await
        .expect("an answer")
}

fn seen(names: &[&str]) -> Vec<(MessageId, UnixMs)> {
    let time = UnixMs::new(START);
    names.iter().map(|name| (id(name), time)).collect()
}

#[tokio::test]
async fn a_requeued_message_comes_at_once_with_all_its_attempts() {
    let relay = Relay::start("requeue").await;
    relay.put_in_garbage("a").await;
    let ids = [id("a"), id("b")];
    let there = relay
        .broker()
        .in_garbage(relay.topic(), relay.group(), &ids)
        .await
        .unwrap();
    assert_eq!(there, seen(&["a"]));
    relay.step(7);
    assert_eq!(requeue(&relay, &there).await, 1);
    assert_eq!(relay.hash("garbage_info:default").await, [].into());
    relay.move_due(200).await;
    assert_eq!(relay.entries().await, [("a".into(), 1, START + 7)]);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_repeated_requeue_finds_nothing() {
    let relay = Relay::start("requeue").await;
    relay.put_in_garbage("a").await;
    requeue(&relay, &seen(&["a"])).await;
    let before = relay.snapshot().await;
    assert_eq!(requeue(&relay, &seen(&["a", "never"])).await, 0);
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_message_that_came_back_to_garbage_since_is_left_there() {
    let relay = Relay::start("requeue").await;
    relay.put_in_garbage("a").await;
    requeue(&relay, &seen(&["a"])).await;
    relay.step(1);
    relay.move_due(200).await;
    let read = relay.read_one().await;
    let error = "still no good".to_owned();
    relay
        .settle(&read, lisa_core::broker::Verdict::Reject { error })
        .await;
    assert_eq!(requeue(&relay, &seen(&["a"])).await, 0);
    assert_eq!(
        relay.zset("garbage:default").await,
        [("a".into(), START + 1)].into()
    );
    relay.assert_conserved().await;
}

#[tokio::test]
async fn garbage_without_its_payload_is_lost() {
    let relay = Relay::start("requeue").await;
    relay.put_in_garbage("a").await;
    relay.lose_payload("a").await;
    assert_eq!(requeue(&relay, &seen(&["a"])).await, 0);
    assert_eq!(relay.hash("stats").await["lost:default"], "1");
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_callers_message_that_its_key_put_on_another_shard_is_requeued_and_purged_there() {
    let settings = TopicSettings {
        shards: 8,
        ..settings()
    };
    let relay = Relay::with("requeue", settings).await;
    // The garbage here is on shard 0.
    let elsewhere = |name: &str| relay.topic().shard_of(&id(name)) != Shard::new(0);
    let names = ["a", "b", "c", "d"]
        .into_iter()
        .filter(|name| elsewhere(name));
    let names: Vec<&str> = names.take(2).collect();
    for name in &names {
        relay.put_in_garbage(name).await;
    }
    let ids = [id(names[0]), id(names[1])];
    let there = relay
        .broker()
        .in_garbage(relay.topic(), relay.group(), &ids)
        .await
        .unwrap();
    assert_eq!(there, seen(&names));
    assert_eq!(requeue(&relay, &there[..1]).await, 1);
    let purge = relay.broker().purge(relay.topic(), relay.group(), &there);
    let purged = purge.await;
    assert_eq!(purged.unwrap(), 1);
    relay.assert_conserved().await;
}
