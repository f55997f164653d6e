//! hide: postpones a message after its delivery has ended, if nobody has it.

use super::stage::Asking;
use lisa_core::broker::{Hidden, Read, Verdict};
use lisa_core::message::PreparedMessage;
use lisa_core::time::When;
use lisa_core::topic::Shard;
use lisa_tests::Relay;
use lisa_tests::relay::{WORKER, message, ms, retry};

/// A message that is due now, whose id Lisa generated.
fn own(id: &str) -> PreparedMessage {
    let mut message = message(id, When::NOW);
    message.record.caller_id = false;
    message
}

async fn hold(relay: &Relay, id: &str) -> Read {
    relay.send(&[own(id)]).await;
    relay.read_one().await
}

/// Moves what is due, and returns the number of messages on the stream.
async fn move_due(relay: &Relay) -> usize {
    relay.move_due(10).await;
    relay.entries().await.len()
}

async fn hide(relay: &Relay, read: &Read, delay: u64) -> Hidden {
    let (topic, group) = (relay.topic(), relay.group());
    let id = read.id.as_ref().unwrap();
    let hidden = relay
        .broker()
        .hide(topic, Shard::new(0), group, id, ms(delay));
    hidden.await.unwrap()
}

#[tokio::test]
async fn a_message_that_is_ready_again_or_waits_for_its_next_attempt_is_postponed() {
    let relay = Relay::start("hide").await;
    let ready = hold(&relay, "m").await;
    relay.settle(&ready, retry(ms(0))).await;
    relay.move_due(10).await;
    assert_eq!(hide(&relay, &ready, 500).await, Hidden::Hidden);
    assert_eq!(relay.entries().await, []);
    // The mover looks again then.
    let alarm = relay.hash("stats").await["alarm"].clone();
    assert_eq!(alarm, relay.at(500).get().to_string());
    assert_eq!(move_due(&relay).await, 0);
    // From now on, and it may be less than before.
    relay.step(100);
    assert_eq!(hide(&relay, &ready, 200).await, Hidden::Hidden);
    relay.step(199);
    assert_eq!(move_due(&relay).await, 0);
    relay.step(1);
    assert_eq!(move_due(&relay).await, 1);
    let again = relay.read_one().await;
    assert_eq!((&again.id, again.attempt.number), (&ready.id, 2));
    relay.settle(&again, Verdict::Ack).await;
    assert_eq!(hide(&relay, &again, 200).await, Hidden::Unknown);
    relay.assert_drained().await;
}

#[tokio::test]
async fn without_a_delay_a_message_is_due_at_once_and_keeps_its_place() {
    let relay = Relay::start("hide").await;
    let first = hold(&relay, "first").await;
    relay.settle(&first, retry(ms(500))).await;
    assert_eq!(hide(&relay, &first, 0).await, Hidden::Hidden);
    assert_eq!(move_due(&relay).await, 1);
    relay.send(&[own("second")]).await;
    relay.move_due(10).await;
    assert_eq!(hide(&relay, &first, 0).await, Hidden::Hidden);
    assert_eq!(relay.read_one().await.id, first.id);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn without_a_delay_a_message_that_is_due_already_keeps_its_turn() {
    let relay = Relay::start("hide").await;
    let first = hold(&relay, "first").await;
    relay.settle(&first, retry(ms(0))).await;
    let due = relay.now();
    let mut second = own("second");
    second.when = When::After(ms(100));
    relay.send(&[second]).await;
    relay.step(200);
    assert_eq!(hide(&relay, &first, 0).await, Hidden::Hidden);
    assert_eq!(move_due(&relay).await, 2);
    let again = relay.read_one().await;
    assert_eq!((again.id, again.attempt.due), (first.id, due));
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_message_that_somebody_else_has_or_that_is_in_garbage_stays() {
    let relay = Relay::start("hide").await;
    let first = hold(&relay, "m").await;
    relay.settle(&first, retry(ms(0))).await;
    relay.move_due(10).await;
    let second = relay.read_one().await;
    assert_eq!(hide(&relay, &first, 500).await, Hidden::Held);
    let error = "no".to_owned();
    relay.settle(&second, Verdict::Reject { error }).await;
    assert_eq!(hide(&relay, &second, 500).await, Hidden::Held);
    // A caller may send another message with its id.
    let mine = relay.hold("mine").await;
    relay.settle(&mine, retry(ms(500))).await;
    assert_eq!(hide(&relay, &mine, 100).await, Hidden::Held);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn its_attempts_still_count_and_its_due_time_is_the_new_one() {
    let relay = Relay::start("hide").await;
    let first = hold(&relay, "m").await;
    relay.settle(&first, retry(ms(0))).await;
    relay.move_due(10).await;
    let second = relay.read_one().await;
    relay.age(second.attempt.entry, WORKER, ms(1000)).await;
    assert_eq!(relay.reclaim().await.retry, 1);
    relay.move_due(10).await;
    let third = relay.read_one().await;
    let when = ms(500).into();
    relay.settle(&third, Verdict::HandBack { when }).await;
    assert_eq!(hide(&relay, &third, 200).await, Hidden::Hidden);
    relay.step(200);
    relay.move_due(10).await;
    let again = relay.read_one().await.attempt;
    let expected = (2, 1, relay.now());
    assert_eq!((again.number, again.crashes, again.due), expected);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn its_key_waits_for_it() {
    let relay = Relay::start("hide").await;
    relay.send(&["a", "b"].map(|id| own(id).key("k"))).await;
    relay.move_due(10).await;
    let first = relay.read_one().await;
    relay.settle(&first, retry(ms(0))).await;
    relay.move_due(10).await;
    assert_eq!(hide(&relay, &first, 500).await, Hidden::Hidden);
    relay.move_due(10).await;
    assert_eq!(relay.entries().await, []);
    relay.step(500);
    relay.move_due(10).await;
    assert_eq!(relay.read_one().await.id, first.id);
    relay.assert_conserved().await;
}
