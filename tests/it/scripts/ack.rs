//! ack: removes handled messages, and none that has moved on.

use lisa_core::broker::Verdict;
use lisa_core::message::EntryId;
use lisa_core::state::{End, Settled};
use lisa_core::time::When;
use lisa_tests::Relay;
use lisa_tests::relay::{START, WORKER, message, ms, nameless, retry, settlement};
use redis::cmd;

#[tokio::test]
async fn an_ack_removes_the_message_and_remembers_a_callers_id() {
    let relay = Relay::start("ack").await;
    let read = relay.hold("a").await;
    assert_eq!(relay.settle(&read, Verdict::Ack).await, Settled::Acked);
    assert_eq!(relay.zset("tomb").await, [("a".into(), START * 4)].into());
    assert_eq!(relay.hash("stats").await["acked:default"], "1");
    relay.assert_drained().await;
}

#[tokio::test]
async fn an_ack_forgets_an_id_that_was_not_the_callers() {
    let relay = Relay::start("ack").await;
    relay.send(&[nameless("a", When::NOW)]).await;
    let read = relay.read_one().await;
    let mut ack = settlement(&read, Verdict::Ack);
    ack.caller_id = false;
    assert_eq!(relay.settle_all(&[ack]).await, [Settled::Acked]);
    assert_eq!(relay.zset("tomb").await, [].into());
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_repeated_ack_is_stale_and_changes_nothing() {
    let relay = Relay::start("ack").await;
    let read = relay.hold("a").await;
    relay.settle(&read, Verdict::Ack).await;
    let before = relay.snapshot().await;
    assert_eq!(relay.settle(&read, Verdict::Ack).await, Settled::Stale);
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_late_ack_cannot_remove_the_redelivered_message() {
    let relay = Relay::start("ack").await;
    let late = relay.hold("a").await;
    relay.age(late.attempt.entry, WORKER, ms(1000)).await;
    assert_eq!(relay.reclaim().await.retry, 1);
    relay.move_due(200).await;
    let again = relay.read_one().await;
    let before = relay.snapshot().await;
    assert_eq!(relay.settle(&late, Verdict::Ack).await, Settled::Stale);
    assert_eq!(before.diff(&relay.snapshot().await), "");
    assert_eq!(relay.settle(&again, Verdict::Ack).await, Settled::Acked);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_batch_of_200_tells_the_stale_ones_apart() {
    let relay = Relay::start("ack").await;
    let batch: Vec<_> = (0..200)
        .map(|n| message(&format!("m{n}"), When::NOW))
        .collect();
    relay.send(&batch).await;
    let reads = relay.read(200).await;
    let acks: Vec<_> = reads
        .iter()
        .map(|read| settlement(read, Verdict::Ack))
        .collect();
    for stale in [0, 100, 199] {
        assert_eq!(
            relay.settle_all(&acks[stale..=stale]).await,
            [Settled::Acked]
        );
    }
    let settled = relay.settle_all(&acks).await;
    let stale = (0..200).filter(|&n| settled[n] == Settled::Stale);
    assert_eq!(stale.collect::<Vec<_>>(), [0, 100, 199]);
    assert_eq!(relay.zset("tomb").await.len(), 200);
    relay.assert_drained().await;
}

#[tokio::test]
async fn an_ack_forgets_the_attempts() {
    let relay = Relay::start("ack").await;
    let read = relay.hold("a").await;
    relay.settle(&read, retry(ms(0))).await;
    relay.move_due(200).await;
    let read = relay.read_one().await;
    assert_eq!(read.attempt.number, 2);
    relay.settle(&read, Verdict::Ack).await;
    relay.assert_drained().await;
}

#[tokio::test]
async fn an_ack_of_a_message_whose_payload_is_gone_ends_it() {
    let relay = Relay::start("ack").await;
    let read = relay.hold("a").await;
    relay.lose_payload("a").await;
    assert_eq!(relay.settle(&read, Verdict::Ack).await, Settled::Acked);
    let found = relay
        .broker()
        .lookup(relay.topic(), &lisa_tests::relay::id("a"), None)
        .await;
    let end = Some(End::Acked.into());
    assert_eq!(found.unwrap(), lisa_core::broker::Found::Unknown { end });
    relay.assert_drained().await;
}

#[tokio::test]
async fn what_a_removed_consumer_had_read_can_still_be_acked() {
    let relay = Relay::start("ack").await;
    let read = relay.hold("a").await;
    let mut remove = cmd("XGROUP");
    remove
        .arg("DELCONSUMER")
        .arg(relay.key("ready:default"))
        .arg("default")
        .arg(WORKER);
    let _: u64 = relay.command(&remove).await;
    assert_eq!(relay.settle(&read, Verdict::Ack).await, Settled::Acked);
    relay.assert_drained().await;
}

#[tokio::test]
async fn an_ack_of_an_entry_that_never_was_is_stale() {
    let relay = Relay::start("ack").await;
    let mut read = relay.hold("a").await;
    let entry = read.attempt.entry;
    read.attempt.entry = EntryId::new(1, 1);
    assert_eq!(relay.settle(&read, Verdict::Ack).await, Settled::Stale);
    read.attempt.entry = entry;
    assert_eq!(relay.settle(&read, Verdict::Ack).await, Settled::Acked);
    relay.assert_drained().await;
}
