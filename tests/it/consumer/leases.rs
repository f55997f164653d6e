//! Leases are renewed and lost.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_while_its_handler_runs() {
    unless_held_up(settings().lease / 4, async || {
        let relay = relay("renewal").await;
        let (mut desk, handler) = Desk::new();
        let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
        let running = Running::start(consumer.build().unwrap());
        relay.send(&[message("a", When::NOW)]).await;
        let (delivery, context) = desk.next().await;
        let two_leases_later = delivery.delivered_at.plus(2 * settings().lease);
        while relay.broker().now() < two_leases_later {
            let report = relay.reclaim().await;
            assert_eq!((report.retry, report.garbage), (0, 0));
            tokio::time::sleep(ms(20)).await;
        }
        assert!(!context.lease_lost().is_cancelled());
        desk.let_go(1);
        running.until(|report| report.acked == 1).await;
        running.stop().await;
        relay.assert_drained().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_late_ack_of_a_consumer_that_was_frozen_is_stale() {
    let relay = relay("frozen").await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    relay.send(&[message("a", When::NOW)]).await;
    let (first, context) = desk.next().await;
    lapse(&relay, &running, &first).await;
    desk.let_go(1);
    running.until(|report| report.stale == 1).await;
    assert_eq!(relay.zset("retry:default").await.len(), 1);
    // It comes again, and has lost no attempt.
    relay.move_due(10).await;
    let (second, _) = desk.next().await;
    assert_eq!((second.id, second.attempt), (first.id, 1));
    assert_ne!(second.entry, first.entry);
    drop(context);
    desk.let_go(1);
    running.until(|report| report.acked == 1).await;
    running.stop().await;
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_learns_that_its_lease_is_lost() {
    let relay = relay("lost").await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    relay.send(&[message("a", When::NOW)]).await;
    let (delivery, context) = desk.next().await;
    lapse(&relay, &running, &delivery).await;
    let told = tokio::time::timeout(SOON, context.lease_lost().cancelled());
    told.await.expect("the lease is lost");
    desk.let_go(1);
    running.until(|report| report.stale == 1).await;
    running.stop().await;
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_whose_entry_was_acknowledged_by_hand_learns_it_and_its_outcome_is_stale() {
    let relay = relay("by-hand").await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    relay.send(&[message("a", When::NOW)]).await;
    let (delivery, context) = desk.next().await;
    assert!(context.extend(SOON).is_ok());
    let mut ack = cmd("XACK");
    ack.arg(relay.key("ready:default")).arg("default");
    let acked: u32 = relay.command(ack.arg(delivery.entry.to_string())).await;
    assert_eq!(acked, 1);
    let told = tokio::time::timeout(SOON, context.lease_lost().cancelled());
    told.await.expect("the lease is lost");
    assert_eq!(context.extend(SOON), Err(lisa_consumer::LeaseLost));
    // The handler ignores that and ends with an ack, which has no effect: the message is still there.
    desk.let_go(1);
    running.until(|report| report.stale == 1).await;
    assert_eq!(running.consumer.report().acked, 0);
    let (broker, shard) = (relay.broker(), Shard::new(0));
    broker
        .clean(relay.topic(), shard, relay.group(), None)
        .await
        .unwrap();
    relay.move_due(10).await;
    let (again, _) = desk.next().await;
    assert_eq!((&again.id, again.attempt), (&delivery.id, 1));
    desk.let_go(1);
    running.until(|report| report.acked == 1).await;
    assert_eq!(running.stop().await.stale, 1);
    relay.assert_drained().await;
}
