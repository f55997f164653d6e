//! ack_late: acknowledges a message after its delivery has ended, if nobody has it.

use super::stage::Asking;
use lisa_core::broker::{LateAck, Read, Verdict};
use lisa_core::message::PreparedMessage;
use lisa_core::time::When;
use lisa_core::topic::{Shard, TopicSettings};
use lisa_tests::Relay;
use lisa_tests::relay::{message, ms, retry, settings};

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

async fn ack_late(relay: &Relay, read: &Read) -> LateAck {
    let (topic, group) = (relay.topic(), relay.group());
    let id = read.id.as_ref().unwrap();
    let late = relay.broker().ack_late(topic, Shard::new(0), group, id);
    late.await.unwrap()
}

#[tokio::test]
async fn a_message_that_waits_for_its_next_attempt_or_is_ready_again_is_acknowledged() {
    let relay = Relay::start("ack_late").await;
    let in_retry = hold(&relay, "in-retry").await;
    relay.settle(&in_retry, retry(ms(500))).await;
    assert_eq!(ack_late(&relay, &in_retry).await, LateAck::Acked);
    assert_eq!(ack_late(&relay, &in_retry).await, LateAck::Unknown);
    let ready = hold(&relay, "ready").await;
    relay.settle(&ready, retry(ms(0))).await;
    relay.move_due(10).await;
    assert_eq!(ack_late(&relay, &ready).await, LateAck::Acked);
    assert_eq!(relay.entries().await, []);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_message_that_somebody_else_has_or_that_is_in_garbage_stays() {
    let relay = Relay::start("ack_late").await;
    let first = hold(&relay, "m").await;
    relay.settle(&first, retry(ms(0))).await;
    relay.move_due(10).await;
    let second = relay.read_one().await;
    assert_eq!(ack_late(&relay, &first).await, LateAck::Held);
    let error = "no".to_owned();
    relay.settle(&second, Verdict::Reject { error }).await;
    assert_eq!(ack_late(&relay, &second).await, LateAck::Held);
    // Behind more ready messages than it looks at.
    let last = hold(&relay, "last").await;
    for n in 0..100 {
        relay.send(&[own(&format!("m{n}"))]).await;
    }
    relay.settle(&last, retry(ms(0))).await;
    relay.move_due(200).await;
    assert_eq!(ack_late(&relay, &last).await, LateAck::Held);
    relay.assert_conserved().await;
}

/// A caller may send another message with its id, such as one in place of a cancelled one.
#[tokio::test]
async fn a_message_whose_id_a_caller_chose_stays() {
    let relay = Relay::start("ack_late").await;
    let read = relay.hold("mine").await;
    relay.settle(&read, retry(ms(500))).await;
    assert_eq!(ack_late(&relay, &read).await, LateAck::Held);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn its_room_on_the_stream_is_free() {
    let limited = TopicSettings {
        max_ready: Some(1),
        ..settings()
    };
    let relay = Relay::with("ack_late", limited).await;
    relay.send(&["a", "b"].map(own)).await;
    relay.move_due(10).await;
    let first = relay.read_one().await;
    relay.settle(&first, retry(ms(0))).await;
    let second = relay.read_one().await;
    relay.settle(&second, retry(ms(0))).await;
    relay.move_due(10).await;
    assert_eq!(ack_late(&relay, &first).await, LateAck::Acked);
    assert_eq!(relay.read_one().await.id, second.id);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn its_key_goes_on() {
    let relay = Relay::start("ack_late").await;
    relay.send(&["a", "b"].map(|id| own(id).key("k"))).await;
    relay.move_due(10).await;
    let first = relay.read_one().await;
    relay.settle(&first, retry(ms(500))).await;
    assert_eq!(ack_late(&relay, &first).await, LateAck::Acked);
    assert_eq!(relay.read_one().await.id.unwrap().as_str(), "b");
    relay.assert_conserved().await;
}
