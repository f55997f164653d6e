//! examine: finds nothing where nothing is wrong, whatever state the messages are in; and changes nothing.

use super::stage::{Asking, Stage, groups, reject};
use lisa_core::broker::{Checkup, Examination, Retirement, Verdict};
use lisa_core::topic::{Size, TopicSettings};
use lisa_tests::relay::{message, ms, retry};

/// Examines the topic, and repairs it if `repair` is set.
pub(super) async fn checkup(stage: &Stage, repair: bool) -> Checkup {
    let how = Examination::of(stage.topic(), repair);
    stage.broker().examine(stage.topic(), how).await.unwrap()
}

/// Returns the findings, one line each: `orphan m of a: what was seen`; by message, with those about no message last.
pub(super) fn findings(checkup: &Checkup) -> Vec<String> {
    let mut findings: Vec<_> = checkup.findings.iter().collect();
    findings.sort_by_key(|f| (f.fault, f.id.clone()));
    let lines = findings.into_iter().map(|f| {
        let id = if f.id.is_empty() {
            String::new()
        } else {
            format!(" {}", f.id)
        };
        let group = if f.group.is_empty() {
            String::new()
        } else {
            format!(" of {}", f.group)
        };
        format!("{}{id}{group}: {}", f.fault.as_str(), f.seen)
    });
    lines.collect()
}

/// Asserts that nothing is wrong, and that neither examining nor repairing changes anything.
pub(super) async fn assert_healthy(stage: &Stage, messages: u64) {
    let before = stage.snapshot().await;
    for repair in [false, true] {
        let checkup = checkup(stage, repair).await;
        assert_eq!(findings(&checkup), [""; 0], "{}", stage.snapshot().await);
        assert_eq!((checkup.messages, checkup.unclear), (messages, 0));
        assert_eq!(before.diff(&stage.snapshot().await), "");
    }
}

#[tokio::test]
async fn a_message_is_well_wherever_it_is() {
    let stage = Stage::with(TopicSettings {
        max_ready: Some(3),
        max_bytes: Some(Size::new(100_000)),
        ..groups(&["a", "b"])
    })
    .await;
    assert_healthy(&stage, 0).await;
    stage
        .put(&["m1", "m2", "m3"].map(|id| message(id, ms(0)).key("k").ttl(5000)))
        .await;
    stage
        .put(&["n1", "n2", "n3", "n4"].map(|id| message(id, ms(0)).priority(4)))
        .await;
    stage
        .send(&[
            message("w1", ms(50)).merge("x"),
            message("w2", ms(60)),
            message("w3", ms(70)).key("k"),
        ])
        .await;
    assert_healthy(&stage, 10).await;
    stage.run("a", "m1", retry(ms(500))).await;
    stage.run("b", "m1", reject()).await;
    stage.begin("a", "n1").await;
    assert_healthy(&stage, 10).await;
    stage.reschedule("m2", ms(90)).await;
    stage.cancel("m3").await;
    stage.requeue("b", "m1", 0).await;
    stage.pause_group("b", true).await;
    stage.pass(70).await;
    assert_healthy(&stage, 9).await;
    stage.run("a", "n2", Verdict::Ack).await;
    assert_healthy(&stage, 9).await;
}

#[tokio::test]
async fn a_plain_topic_is_well_too() {
    let stage = Stage::of(&["a"]).await;
    stage
        .put(&[
            message("m1", ms(0)),
            message("m2", ms(0)),
            message("m3", ms(0)),
        ])
        .await;
    stage.send(&[message("m4", ms(9))]).await;
    stage.run("a", "m1", retry(ms(50))).await;
    stage.run("a", "m2", reject()).await;
    assert_eq!(stage.conf("class").await.as_deref(), Some("plain"));
    assert_healthy(&stage, 4).await;
    assert_eq!(stage.conf("class").await.as_deref(), Some("plain"));
}

#[tokio::test]
async fn a_group_that_retires_is_well_in_the_midst_of_it() {
    let mut stage = Stage::with(TopicSettings {
        max_ready: Some(1),
        ..groups(&["a", "b"])
    })
    .await;
    stage
        .put(&["m1", "m2", "m3"].map(|id| message(id, ms(0)).key("k")))
        .await;
    stage.run("a", "m1", reject()).await;
    let (broker, topic) = (stage.broker(), stage.topic());
    let group = super::stage::name("a");
    for how in [Retirement::Drain, Retirement::Drop] {
        broker.retire(topic, &group, Some(how)).await.unwrap();
        assert_healthy(&stage, 3).await;
    }
    broker
        .remove_group(topic, super::stage::SHARD, &group)
        .await
        .unwrap();
    stage.refresh().await;
    assert_healthy(&stage, 3).await;
}

#[tokio::test]
async fn ready_messages_that_no_consumer_reads_are_a_hint_and_no_fault() {
    let stage = Stage::of(&["a", "b"]).await;
    let (broker, topic) = (stage.broker(), stage.topic());
    let reads_b = super::stage::name("b");
    broker
        .announce(topic, topic.first_shard(), &reads_b, "w")
        .await
        .unwrap();
    assert_eq!(checkup(&stage, false).await.hints, []);
    stage
        .put(&[message("m1", ms(0)), message("m2", ms(0))])
        .await;
    stage.step(300_000);
    let found = checkup(&stage, false).await;
    assert!(found.is_healthy());
    let hints: Vec<_> = found
        .hints
        .iter()
        .map(|hint| (hint.group.as_str(), hint.seen.as_str()))
        .collect();
    assert_eq!(
        hints,
        [(
            "a",
            "2 ready, the oldest for 5m, and no consumer has ever read group a: start one, or drop the group if it is a mistake"
        )]
    );
}
