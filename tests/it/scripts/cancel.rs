//! cancel: only what is waiting or in retry; the answer is the same the second time.

use lisa_core::broker::Verdict;
use lisa_core::state::{CancelOutcome, End, SendOutcome};
use lisa_core::time::When;
use lisa_tests::Relay;
use lisa_tests::relay::{START, id, message, ms, retry};

async fn cancel(relay: &Relay, name: &str) -> CancelOutcome {
    relay
        .broker()
        .cancel(relay.topic(), &id(name), None)
        .await
        .expect("an answer")
}

#[tokio::test]
async fn a_waiting_message_is_cancelled_and_its_record_given_back() {
    let relay = Relay::start("cancel").await;
    let message = message("a", ms(10));
    relay.send(std::slice::from_ref(&message)).await;
    let mut record = Vec::new();
    message.record.encode(&mut record);
    let record = Some(record.into());
    assert_eq!(
        cancel(&relay, "a").await,
        CancelOutcome::Cancelled {
            record,
            in_garbage: Vec::new()
        }
    );
    assert_eq!(
        relay.zset("tomb").await,
        [("a".into(), START * 4 + 1)].into()
    );
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_repeated_cancel_says_cancelled_again() {
    let relay = Relay::start("cancel").await;
    relay.send(&[message("a", ms(10))]).await;
    cancel(&relay, "a").await;
    let before = relay.snapshot().await;
    let record = None;
    assert_eq!(
        cancel(&relay, "a").await,
        CancelOutcome::Cancelled {
            record,
            in_garbage: Vec::new()
        }
    );
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_cancelled_id_cannot_be_sent_again_within_the_window() {
    let relay = Relay::start("cancel").await;
    relay.send(&[message("a", ms(10))]).await;
    cancel(&relay, "a").await;
    let again = relay.send(&[message("a", ms(10))]).await;
    assert_eq!(again[0].outcome, SendOutcome::Duplicate);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_message_in_retry_is_cancelled_with_its_attempts() {
    let relay = Relay::start("cancel").await;
    let read = relay.hold("a").await;
    relay.settle(&read, retry(ms(10))).await;
    assert!(matches!(
        cancel(&relay, "a").await,
        CancelOutcome::Cancelled {
            record: Some(_),
            ..
        }
    ));
    assert_eq!(relay.hash("stats").await["cancelled:default"], "1");
    relay.assert_drained().await;
}

#[tokio::test]
async fn what_is_on_the_stream_or_in_garbage_is_not_cancelled() {
    let relay = Relay::start("cancel").await;
    relay.put_in_garbage("dead").await;
    relay.hold("held").await;
    relay.send(&[message("ready", When::NOW)]).await;
    let before = relay.snapshot().await;
    assert_eq!(cancel(&relay, "ready").await, CancelOutcome::InFlight);
    assert_eq!(cancel(&relay, "held").await, CancelOutcome::InFlight);
    assert_eq!(cancel(&relay, "dead").await, CancelOutcome::Garbage);
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.assert_conserved().await;
}

#[tokio::test]
async fn an_unknown_message_says_how_it_ended_if_that_is_remembered() {
    let relay = Relay::start("cancel").await;
    let read = relay.hold("done").await;
    relay.settle(&read, Verdict::Ack).await;
    let end = Some(End::Acked.into());
    assert_eq!(cancel(&relay, "done").await, CancelOutcome::Unknown { end });
    assert_eq!(
        cancel(&relay, "never").await,
        CancelOutcome::Unknown { end: None }
    );
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_message_without_its_payload_can_be_cancelled() {
    let relay = Relay::start("cancel").await;
    relay.send(&[message("a", ms(10))]).await;
    relay.lose_payload("a").await;
    assert!(matches!(
        cancel(&relay, "a").await,
        CancelOutcome::Cancelled { .. }
    ));
    relay.assert_drained().await;
}
