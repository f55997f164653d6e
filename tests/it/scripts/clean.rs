//! clean: recovers entries that no consumer holds, and touches no others.

use lisa_core::broker::Verdict;
use lisa_core::message::EntryId;
use lisa_core::time::When;
use lisa_core::topic::Shard;
use lisa_tests::Relay;
use lisa_tests::relay::{START, WORKER, message, ms, retry, settlement};
use redis::cmd;

async fn clean(relay: &Relay, after: Option<EntryId>) -> Option<EntryId> {
    relay
        .broker()
        .clean(relay.topic(), Shard::new(0), relay.group(), after)
        .await
        .expect("an answer")
        .last
}

async fn remove_consumer(relay: &Relay) {
    let mut remove = cmd("XGROUP");
    remove
        .arg("DELCONSUMER")
        .arg(relay.key("ready:default"))
        .arg("default")
        .arg(WORKER);
    let _: u64 = relay.command(&remove).await;
}

#[tokio::test]
async fn what_is_ready_or_held_is_left_alone() {
    let relay = Relay::start("clean").await;
    relay.hold("held").await;
    relay.send(&[message("ready", When::NOW)]).await;
    let before = relay.snapshot().await;
    assert_eq!(clean(&relay, None).await, None);
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.assert_conserved().await;
}

#[tokio::test]
async fn an_entry_whose_consumer_was_removed_goes_to_retry() {
    let relay = Relay::start("clean").await;
    relay.hold("a").await;
    remove_consumer(&relay).await;
    clean(&relay, None).await;
    assert_eq!(
        relay.zset("retry:default").await,
        [("a".into(), START)].into()
    );
    assert_eq!(relay.hash("stats").await["recovered:default"], "1");
    let before = relay.snapshot().await;
    clean(&relay, None).await;
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_lost_message_leaves_no_attempts_behind() {
    let relay = Relay::start("clean").await;
    let read = relay.hold("a").await;
    relay.settle(&read, retry(ms(0))).await;
    relay.move_due(200).await;
    relay.read_one().await;
    relay.lose_payload("a").await;
    remove_consumer(&relay).await;
    clean(&relay, None).await;
    assert_eq!(relay.hash("stats").await["lost:default"], "1");
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_long_stream_is_looked_through_in_steps() {
    let relay = Relay::start("clean").await;
    let names: Vec<_> = (0..1001).map(|n| format!("m{n:04}")).collect();
    let batch: Vec<_> = names.iter().map(|name| message(name, When::NOW)).collect();
    for part in batch.chunks(200) {
        relay.send(part).await;
    }
    let reads = relay.read(1001).await;
    let acks: Vec<_> = reads[..500]
        .iter()
        .map(|read| settlement(read, Verdict::Ack))
        .collect();
    relay.settle_all(&acks).await;
    remove_consumer(&relay).await;
    relay.step(1);
    let next = clean(&relay, None).await;
    assert_eq!(next, Some(reads[699].attempt.entry));
    assert_eq!(relay.zset("retry:default").await.len(), 200);
    let next = clean(&relay, next).await;
    assert_eq!(next, Some(reads[899].attempt.entry));
    assert_eq!(clean(&relay, next).await, None);
    assert_eq!(relay.zset("retry:default").await.len(), 501);
    relay.assert_conserved().await;
}
