//! ack_late: acknowledges a message after its delivery has ended, if nobody has it.

use super::stage::Asking;
use lisa_core::broker::{LateAck, Read, Verdict};
use lisa_core::message::MessageId;
use lisa_core::time::When;
use lisa_core::topic::Shard;
use lisa_tests::Relay;
use lisa_tests::relay::{message, ms, retry};

async fn ack_late(relay: &Relay, read: &Read) -> LateAck {
    let id: &MessageId = read.id.as_ref().unwrap();
    let delivery = (id, read.attempt.entry);
    let (topic, group) = (relay.topic(), relay.group());
    let late = relay
        .broker()
        .ack_late(topic, Shard::new(0), group, delivery, true);
    late.await.unwrap()
}

#[tokio::test]
async fn a_message_that_waits_for_its_next_attempt_or_is_ready_again_is_acknowledged() {
    let relay = Relay::start("ack_late").await;
    let in_retry = relay.hold("in-retry").await;
    relay.settle(&in_retry, retry(ms(500))).await;
    assert_eq!(ack_late(&relay, &in_retry).await, LateAck::Acked);
    assert_eq!(ack_late(&relay, &in_retry).await, LateAck::Unknown);
    let ready = relay.hold("ready").await;
    relay.settle(&ready, retry(ms(0))).await;
    relay.move_due(10).await;
    assert_eq!(ack_late(&relay, &ready).await, LateAck::Acked);
    assert_eq!(relay.entries().await, []);
    // Both ended: a repeated send is a duplicate.
    let sent = relay.send(&[message("ready", When::NOW)]).await;
    assert_eq!(sent[0].outcome, lisa_core::state::SendOutcome::Duplicate);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_message_that_somebody_else_has_or_that_is_in_garbage_stays() {
    let relay = Relay::start("ack_late").await;
    let first = relay.hold("m").await;
    relay.settle(&first, retry(ms(0))).await;
    relay.move_due(10).await;
    let second = relay.read_one().await;
    assert_eq!(ack_late(&relay, &first).await, LateAck::Held);
    let error = "no".to_owned();
    relay.settle(&second, Verdict::Reject { error }).await;
    assert_eq!(ack_late(&relay, &second).await, LateAck::Held);
    // Behind more ready messages than it looks at.
    let last = relay.hold("last").await;
    for n in 0..100 {
        relay.send(&[message(&format!("m{n}"), When::NOW)]).await;
    }
    relay.settle(&last, retry(ms(0))).await;
    relay.move_due(200).await;
    assert_eq!(ack_late(&relay, &last).await, LateAck::Held);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn its_key_goes_on() {
    let relay = Relay::start("ack_late").await;
    relay
        .send(&["a", "b"].map(|id| message(id, When::NOW).key("k")))
        .await;
    relay.move_due(10).await;
    let first = relay.read_one().await;
    relay.settle(&first, retry(ms(500))).await;
    assert_eq!(ack_late(&relay, &first).await, LateAck::Acked);
    assert_eq!(relay.read_one().await.id.unwrap().as_str(), "b");
    relay.assert_conserved().await;
}
