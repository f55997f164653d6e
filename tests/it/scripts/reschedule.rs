//! reschedule: sets another due time for messages that are waiting or in retry, and for no others.

use lisa_core::broker::Verdict;
use lisa_core::state::{End, RescheduleOutcome};
use lisa_core::time::{UnixMs, When};
use lisa_tests::Relay;
use lisa_tests::relay::{START, id, message, ms, retry};

async fn reschedule(relay: &Relay, name: &str, when: impl Into<When>) -> RescheduleOutcome {
    let (broker, topic) = (relay.broker(), relay.topic());
    broker
        .reschedule(topic, &id(name), None, when.into())
        .await
        .expect("an answer")
}

fn to(after: u64) -> RescheduleOutcome {
    let due = UnixMs::new(START + after);
    RescheduleOutcome::Rescheduled { due }
}

#[tokio::test]
async fn a_waiting_message_gets_an_earlier_or_later_time() {
    let relay = Relay::start("reschedule").await;
    relay.send(&[message("a", ms(100))]).await;
    for after in [200, 50] {
        assert_eq!(reschedule(&relay, "a", ms(after)).await, to(after));
        assert_eq!(relay.zset("waiting").await["a"], START + after);
    }
    relay.assert_conserved().await;
}

#[tokio::test]
async fn an_instant_in_the_past_means_now() {
    let relay = Relay::start("reschedule").await;
    relay.send(&[message("a", ms(100))]).await;
    assert_eq!(reschedule(&relay, "a", relay.at(-100)).await, to(0));
    relay.move_due(200).await;
    assert_eq!(relay.entries().await, [("a".into(), 1, START)]);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_repeat_with_an_instant_changes_nothing() {
    let relay = Relay::start("reschedule").await;
    relay.send(&[message("a", ms(100))]).await;
    let when = relay.at(70);
    reschedule(&relay, "a", when).await;
    let before = relay.snapshot().await;
    relay.step(5);
    assert_eq!(reschedule(&relay, "a", when).await, to(70));
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.assert_conserved().await;
}

#[tokio::test]
async fn attempts_stay_counted() {
    let relay = Relay::start("reschedule").await;
    let read = relay.hold("a").await;
    relay.settle(&read, retry(ms(100))).await;
    assert_eq!(reschedule(&relay, "a", ms(10)).await, to(10));
    relay.step(10);
    relay.move_due(200).await;
    assert_eq!(relay.entries().await, [("a".into(), 2, START + 10)]);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn what_is_elsewhere_is_not_rescheduled() {
    let relay = Relay::start("reschedule").await;
    relay.put_in_garbage("dead").await;
    let done = relay.hold("done").await;
    relay.settle(&done, Verdict::Ack).await;
    relay.hold("held").await;
    relay.send(&[message("ready", When::NOW)]).await;
    let before = relay.snapshot().await;
    let expected = [
        ("dead", RescheduleOutcome::Garbage),
        ("held", RescheduleOutcome::InFlight),
        ("ready", RescheduleOutcome::InFlight),
        (
            "done",
            RescheduleOutcome::Unknown {
                end: Some(End::Acked.into()),
            },
        ),
        ("never", RescheduleOutcome::Unknown { end: None }),
    ];
    for (name, outcome) in expected {
        assert_eq!(reschedule(&relay, name, ms(1)).await, outcome);
    }
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.assert_conserved().await;
}
