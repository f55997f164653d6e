//! Leases are renewed, lost, and kept for suspects that wait.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_while_its_handler_runs() {
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
}

#[tokio::test(flavor = "multi_thread")]
async fn the_late_ack_of_a_consumer_that_was_frozen_is_stale() {
    let relay = relay("frozen").await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    relay.send(&[message("a", When::NOW)]).await;
    let (first, context) = desk.next().await;
    relay
        .age(first.entry, running.consumer.name(), ms(2000))
        .await;
    assert_eq!(relay.reclaim().await.retry, 1);
    desk.let_go(1);
    running.until(|report| report.stale == 1).await;
    assert_eq!(relay.zset("retry:default").await.len(), 1);
    // It comes again, as a suspect, to whoever reads it.
    relay.move_due(10).await;
    let (second, _) = desk.next().await;
    assert_eq!((second.id, second.attempt), (first.id, 2));
    assert_ne!(second.entry, first.entry);
    drop(context);
    desk.let_go(1);
    running.until(|report| report.acked == 1).await;
    running.stop().await;
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_is_told_that_its_lease_is_lost() {
    let relay = relay("lost").await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    relay.send(&[message("a", When::NOW)]).await;
    let (delivery, context) = desk.next().await;
    relay
        .age(delivery.entry, running.consumer.name(), ms(2000))
        .await;
    assert_eq!(relay.reclaim().await.retry, 1);
    let told = tokio::time::timeout(PATIENCE, context.lease_lost().cancelled());
    told.await.expect("told");
    desk.let_go(1);
    running.until(|report| report.stale == 1).await;
    running.stop().await;
    relay.assert_conserved().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_whose_entry_was_acknowledged_by_hand_is_told_and_its_outcome_is_stale() {
    let relay = relay("by-hand").await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    relay.send(&[message("a", When::NOW)]).await;
    let (delivery, context) = desk.next().await;
    assert!(context.extend(PATIENCE).is_ok());
    let mut ack = cmd("XACK");
    ack.arg(relay.key("ready:default")).arg("default");
    let acked: u32 = relay.command(ack.arg(delivery.entry.to_string())).await;
    assert_eq!(acked, 1);
    let told = tokio::time::timeout(PATIENCE, context.lease_lost().cancelled());
    told.await.expect("told");
    assert_eq!(context.extend(PATIENCE), Err(lisa_consumer::LeaseLost));
    // It takes no notice of that and ends with an ack, which counts for nothing: the message is still there.
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

/// Makes messages suspects: another consumer read them and died.
async fn suspects(relay: &Relay, ids: &[&str]) {
    for id in ids {
        relay.send(&[message(id, When::NOW)]).await;
        let read = relay.read_one().await;
        relay.age(read.attempt.entry, relay::WORKER, ms(2000)).await;
    }
    assert_eq!(relay.reclaim().await.retry, ids.len() as u64);
    let moved = relay.move_due(100).await;
    assert!(matches!(moved, Moved::Moved { count, .. } if count == ids.len() as u64));
}

#[tokio::test(flavor = "multi_thread")]
async fn suspects_run_alone_and_are_marked_as_started() {
    let relay = Arc::new(relay("suspects").await);
    suspects(&relay, &["s0", "s1", "s2"]).await;
    relay.send(&numbered(40)).await;
    let (running_now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (now, top, look) = (running_now.clone(), most.clone(), relay.clone());
    let handler = delivery_fn(move |delivery: Delivery, _| {
        let (now, top, look) = (now.clone(), top.clone(), look.clone());
        async move {
            let beside = now.fetch_add(1, Ordering::SeqCst);
            top.fetch_max(beside + 1, Ordering::SeqCst);
            let suspect = delivery.id.as_str().starts_with('s');
            let stream = look
                .snapshot()
                .await
                .stream(&look.short_key(0, "ready:default"));
            let pending = &stream.groups["default".as_bytes()].pending;
            let deliveries = pending[&delivery.entry.to_string()].deliveries;
            let left = now.fetch_sub(1, Ordering::SeqCst) - 1;
            if suspect {
                assert_eq!((beside, left, deliveries, delivery.attempt), (0, 0, 2, 2));
            } else {
                assert_eq!((deliveries, delivery.attempt), (1, 1));
            }
        }
    });
    let consumer = Consumer::builder(relay.broker().clone())
        .topic("t", handler)
        .concurrency(8);
    let running = Running::start(consumer.build().unwrap());
    running
        .until(|r| r.acked + r.retried + r.garbage == 43)
        .await;
    let report = running.stop().await;
    assert_eq!((report.acked, report.panicked), (43, 0), "{report:?}");
    assert!(most.load(Ordering::SeqCst) > 1, "the others run together");
    relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_that_waits_for_its_turn_keeps_its_lease_and_is_not_marked() {
    let relay = relay("suspect-waits").await;
    let (mut desk, handler) = Desk::new();
    let consumer = Consumer::builder(relay.broker().clone()).topic("t", handler);
    let running = Running::start(consumer.build().unwrap());
    let ids = ["first", "suspect"];
    relay.send(&ids.map(|id| message(id, When::NOW))).await;
    // They begin side by side, in any order.
    let begun = [desk.next().await, desk.next().await];
    let mut begun = begun.into_iter().map(|(delivery, _)| delivery);
    let lost = begun.find(|delivery| delivery.id.as_str() == "suspect");
    let lost = lost.expect("both began");
    let name = running.consumer.name();
    relay.age(lost.entry, name, ms(2000)).await;
    assert_eq!(relay.reclaim().await.retry, 1);
    relay.move_due(10).await;
    let key = relay.short_key(0, "ready:default");
    let waits = async || {
        let stream = relay.snapshot().await.stream(&key);
        let pending = &stream.groups["default".as_bytes()].pending;
        match pending.values().filter(|held| held.deliveries == 1).count() {
            2 => Ok(()),
            _ => Err(format!("{pending:?}")),
        }
    };
    eventually(PATIENCE, &waits).await;
    let two_leases_later = relay.broker().now().plus(2 * settings().lease);
    while relay.broker().now() < two_leases_later {
        assert_eq!(relay.reclaim().await.retry, 0);
        waits().await.unwrap();
        tokio::time::sleep(ms(20)).await;
    }
    // The lost run and the first end; only now the suspect gets its turn.
    desk.let_go(2);
    let (suspect, _) = desk.next().await;
    assert_eq!((suspect.id.as_str(), suspect.attempt), ("suspect", 2));
    desk.let_go(1);
    running.until(|report| report.acked == 2).await;
    assert_eq!(running.stop().await.stale, 1);
    relay.assert_drained().await;
}
