//! settle: retry, defer, reject, lost — counted, fenced, and in garbage at the last attempt.

use lisa_core::broker::{Settlement, Verdict};
use lisa_core::state::Settled;
use lisa_core::time::{UnixMs, When};
use lisa_tests::Relay;
use lisa_tests::relay::{START, WORKER, message, ms, retry, settlement};

fn at(after: u64) -> UnixMs {
    UnixMs::new(START + after)
}

fn reject() -> Verdict {
    let error = "no good".to_owned();
    Verdict::Reject { error }
}

fn defer(delay: u64) -> Verdict {
    let when = When::After(ms(delay));
    Verdict::Defer { when }
}

#[tokio::test]
async fn a_retry_comes_again_after_its_delay_and_is_counted() {
    let relay = Relay::start("settle").await;
    let read = relay.hold("a").await;
    let settled = relay.settle(&read, retry(ms(250))).await;
    assert_eq!(settled, Settled::Retry { at: at(250) });
    assert_eq!(
        relay.zset("retry:default").await,
        [("a".into(), START + 250)].into()
    );
    assert_eq!(relay.hash("attempts:default").await["a"], "1 0 it failed");
    assert_eq!(relay.entries().await, []);
    relay.step(250);
    relay.move_due(200).await;
    assert_eq!(relay.entries().await, [("a".into(), 2, START + 250)]);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn the_last_attempt_ends_in_garbage_with_its_error() {
    let relay = Relay::start("settle").await;
    let mut read = relay.hold("a").await;
    for _ in 0..2 {
        relay.settle(&read, retry(ms(0))).await;
        relay.move_due(200).await;
        read = relay.read_one().await;
    }
    assert_eq!(read.attempt.number, 3);
    assert_eq!(relay.settle(&read, retry(ms(0))).await, Settled::Garbage);
    assert_eq!(
        relay.zset("garbage:default").await,
        [("a".into(), START)].into()
    );
    assert_eq!(
        relay.hash("garbage_info:default").await["a"],
        "exhausted 3 it failed"
    );
    assert_eq!(relay.hash("attempts:default").await, [].into());
    assert_eq!(relay.hash("payload").await.len(), 1);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_deferral_is_not_counted_as_an_attempt() {
    let relay = Relay::start("settle").await;
    let mut read = relay.hold("a").await;
    relay.settle(&read, retry(ms(0))).await;
    for _ in 0..5 {
        relay.move_due(200).await;
        read = relay.read_one().await;
        assert_eq!(read.attempt.number, 2);
        let settled = relay.settle(&read, defer(0)).await;
        assert_eq!(settled, Settled::Deferred { at: at(0) });
    }
    assert_eq!(relay.hash("attempts:default").await["a"], "1 0 it failed");
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_hand_back_keeps_the_crashes_and_an_outcome_of_the_handler_forgets_them() {
    let hand_back = |delay| Verdict::HandBack {
        when: When::After(ms(delay)),
    };
    for outcome in [defer(0), retry(ms(0))] {
        let relay = Relay::start("settle").await;
        let mut read = relay.hold("a").await;
        for _ in 0..2 {
            relay.age(read.attempt.entry, WORKER, ms(3_600_000)).await;
            assert_eq!(relay.reclaim().await.retry, 1);
            relay.move_due(200).await;
            read = relay.read_one().await;
        }
        // Nor does a handler end a message by reporting its payload lost when it is there after all.
        for (delay, back) in [(0, hand_back(0)), (250, hand_back(250)), (0, Verdict::Lost)] {
            let settled = relay.settle(&read, back).await;
            assert!(matches!(settled, Settled::Deferred { .. }), "{settled:?}");
            // Beside a pause, the due time of the attempt is kept.
            let due = if delay > 0 {
                format!("@{START}")
            } else {
                String::new()
            };
            let counts = format!("0 2{due} the lease of worker ran out");
            assert_eq!(relay.hash("attempts:default").await["a"], counts);
            relay.step(delay as i64);
            relay.move_due(200).await;
            read = relay.read_one().await;
            assert_eq!((read.attempt.number, read.attempt.crashes), (1, 2));
        }
        let counted = u32::from(outcome != defer(0));
        relay.settle(&read, outcome).await;
        relay.move_due(200).await;
        read = relay.read_one().await;
        assert_eq!(
            (read.attempt.number, read.attempt.crashes),
            (1 + counted, 0)
        );
        relay.assert_conserved().await;
    }
}

#[tokio::test]
async fn a_deferral_to_an_instant_in_the_past_comes_at_once() {
    let relay = Relay::start("settle").await;
    let read = relay.hold("a").await;
    let when = When::At(relay.at(-1));
    let settled = relay.settle(&read, Verdict::Defer { when }).await;
    assert_eq!(settled, Settled::Deferred { at: at(0) });
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_rejected_message_is_in_garbage_at_its_first_attempt() {
    let relay = Relay::start("settle").await;
    let read = relay.hold("a").await;
    assert_eq!(relay.settle(&read, reject()).await, Settled::Garbage);
    assert_eq!(
        relay.hash("garbage_info:default").await["a"],
        "rejected 1 no good"
    );
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_message_without_its_payload_is_lost_however_it_ended() {
    let relay = Relay::start("settle").await;
    for (n, verdict) in [retry(ms(0)), defer(0), reject(), Verdict::Lost]
        .into_iter()
        .enumerate()
    {
        let id = format!("m{n}");
        let read = relay.hold(&id).await;
        relay.lose_payload(&id).await;
        assert_eq!(relay.settle(&read, verdict).await, Settled::Lost);
    }
    assert_eq!(relay.hash("stats").await["lost:default"], "4");
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_payload_that_is_there_after_all_is_delivered_again() {
    let relay = Relay::start("settle").await;
    let read = relay.hold("a").await;
    let settled = relay.settle(&read, Verdict::Lost).await;
    assert_eq!(settled, Settled::Deferred { at: at(0) });
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_repeated_settle_is_stale_and_changes_nothing() {
    let relay = Relay::start("settle").await;
    for (n, verdict) in [retry(ms(5)), defer(5), reject()].into_iter().enumerate() {
        let read = relay.hold(&format!("m{n}")).await;
        relay.settle(&read, verdict.clone()).await;
        let before = relay.snapshot().await;
        assert_eq!(relay.settle(&read, verdict).await, Settled::Stale);
        assert_eq!(before.diff(&relay.snapshot().await), "");
    }
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_late_settle_cannot_touch_the_redelivered_message() {
    let relay = Relay::start("settle").await;
    let late = relay.hold("a").await;
    relay.age(late.attempt.entry, WORKER, ms(1000)).await;
    relay.reclaim().await;
    relay.move_due(200).await;
    let again = relay.read_one().await;
    let before = relay.snapshot().await;
    for verdict in [retry(ms(0)), defer(0), reject(), Verdict::Lost] {
        assert_eq!(relay.settle(&late, verdict).await, Settled::Stale);
    }
    assert_eq!(before.diff(&relay.snapshot().await), "");
    assert_eq!(relay.settle(&again, Verdict::Ack).await, Settled::Acked);
    relay.assert_drained().await;
}

#[tokio::test]
async fn an_entry_that_was_not_read_yet_cannot_be_settled() {
    let relay = Relay::start("settle").await;
    let mut read = relay.hold("a").await;
    relay.send(&[message("b", When::NOW)]).await;
    let entries = relay
        .snapshot()
        .await
        .stream("v1:{t:0}:ready:default")
        .entries;
    read.attempt.entry = entries[1].0.parse().unwrap();
    let before = relay.snapshot().await;
    assert_eq!(relay.settle(&read, reject()).await, Settled::Stale);
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.assert_conserved().await;
}

#[tokio::test]
async fn more_than_one_call_can_hold_is_settled_in_order() {
    let relay = Relay::start("settle").await;
    let batch: Vec<_> = (0..200)
        .map(|n| message(&format!("m{n}"), When::NOW))
        .collect();
    relay.send(&batch).await;
    let reads = relay.read(200).await;
    let settlements: Vec<Settlement> = reads
        .iter()
        .zip([Verdict::Ack, retry(ms(7)), reject()].iter().cycle())
        .map(|(read, verdict)| settlement(read, verdict.clone()))
        .collect();
    let settled = relay.settle_all(&settlements).await;
    let expected = [
        Settled::Acked,
        Settled::Retry { at: at(7) },
        Settled::Garbage,
    ];
    assert!(
        settled.iter().eq(expected.iter().cycle().take(200)),
        "{settled:?}"
    );
    relay.assert_conserved().await;
}
