//! The verbs on messages that are in several places at once: cancel, reschedule, requeue, purge.

use super::stage::{Asking, Stage, groups, name, reject};
use lisa_core::broker::{Retirement, Verdict};
use lisa_core::topic::TopicSettings;
use lisa_tests::relay::{message, ms, retry};

/// Creates a topic of these groups, each paused in whose backlog the messages are to stay.
async fn stage(names: &[&str], paused: &[&str]) -> Stage {
    let stage = Stage::of(names).await;
    for group in paused {
        stage.pause_group(group, true).await;
    }
    stage
}

#[tokio::test]
async fn a_message_is_cancelled_in_the_backlog_while_parked_and_in_retry() {
    let stage = stage(&["a", "b", "c"], &["b"]).await;
    stage
        .put(&[message("m1", ms(0)).key("k"), message("m2", ms(0)).key("k")])
        .await;
    stage.run("a", "m1", Verdict::Ack).await;
    stage.run("a", "m2", retry(ms(50))).await;
    assert_eq!(
        stage.states().await,
        [
            "attempts:a m2=1 0 it failed",
            "backlog:b m1",
            "holder:a k=m2",
            "holder:b k=m1",
            "holder:c k=m1",
            "left m1=2, m2=3",
            "parked:b k>m2",
            "parked:c k>m2",
            "ready:c m1#1@0",
            "retry:a m2@50"
        ]
    );
    assert_eq!(stage.cancel("m2").await, "cancelled");
    assert_eq!(
        stage.states().await,
        [
            "backlog:b m1",
            "holder:b k=m1",
            "holder:c k=m1",
            "left m1=2",
            "ready:c m1#1@0",
            "tomb m2 cancelled@0"
        ]
    );
    for group in ["a", "b", "c"] {
        assert_eq!(stage.count(&format!("cancelled:{group}")).await, 1);
    }
    assert_eq!(stage.count("cancelled").await, 0);
    stage.assert_whole().await;
    let before = stage.snapshot().await;
    assert_eq!(stage.cancel("m2").await, "cancelled");
    assert_eq!(before.diff(&stage.snapshot().await), "");
}

#[tokio::test]
async fn a_waiting_message_with_options_is_cancelled_whole() {
    let stage = Stage::of(&["a", "b"]).await;
    let message = message("m", ms(9)).key("k").merge("x").priority(3).ttl(5);
    stage.send(&[message]).await;
    assert_eq!(stage.cancel("m").await, "cancelled");
    assert_eq!(stage.count("cancelled").await, 1);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_copy_on_any_stream_keeps_the_message_from_being_cancelled_or_rescheduled() {
    let stage = stage(&["a", "b"], &["b"]).await;
    stage.put(&[message("m", ms(0))]).await;
    stage.begin("a", "m").await;
    let before = stage.snapshot().await;
    assert_eq!(stage.cancel("m").await, "in_flight");
    assert_eq!(stage.reschedule("m", ms(5)).await, "in_flight");
    assert_eq!(before.diff(&stage.snapshot().await), "");
}

#[tokio::test]
async fn what_one_group_has_acked_can_be_cancelled_in_the_other() {
    let stage = stage(&["a", "b"], &["b"]).await;
    stage.put(&[message("m", ms(0)).key("k")]).await;
    stage.run("a", "m", Verdict::Ack).await;
    assert_eq!(stage.cancel("m").await, "cancelled");
    assert_eq!(stage.states().await, ["tomb m cancelled@0"]);
    let counts = (
        stage.count("cancelled:a").await,
        stage.count("cancelled:b").await,
    );
    assert_eq!(counts, (0, 1));
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_cancel_leaves_the_copy_in_garbage_and_names_its_group_each_time() {
    let stage = stage(&["a", "b"], &["b"]).await;
    stage.put(&[message("m", ms(0)).key("k")]).await;
    stage.run("a", "m", reject()).await;
    assert_eq!(stage.reschedule("m", ms(5)).await, "garbage");
    assert_eq!(stage.cancel("m").await, "cancelled in garbage of a");
    assert_eq!(
        stage.states().await,
        [
            "garbage:a m@0",
            "garbage_info:a m=rejected 1 no good",
            "left m=1",
            "tomb m cancelled@0"
        ]
    );
    stage.assert_whole().await;
    assert_eq!(stage.cancel("m").await, "cancelled in garbage of a");
    let sent = stage.sent(&[message("m", ms(0))]).await;
    assert_eq!(sent, ["duplicate m"]);
    stage.purge("a", "m", 0).await;
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_message_that_is_only_in_garbage_cannot_be_cancelled() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.put(&[message("m", ms(0))]).await;
    stage.run("a", "m", reject()).await;
    stage.run("b", "m", Verdict::Ack).await;
    let before = stage.snapshot().await;
    assert_eq!(stage.cancel("m").await, "garbage");
    assert_eq!(stage.reschedule("m", ms(5)).await, "garbage");
    assert_eq!(before.diff(&stage.snapshot().await), "");
}

#[tokio::test]
async fn a_verb_that_is_refused_lets_nothing_through() {
    let stage = Stage::with(TopicSettings {
        rate: Some("10/s".parse().unwrap()),
        burst: Some(1),
        ..groups(&["a"])
    })
    .await;
    stage
        .put(&["m1", "m2"].map(|name| message(name, ms(0))))
        .await;
    stage.begin("a", "m1").await;
    stage.step(100);
    let before = stage.snapshot().await;
    assert_eq!(stage.cancel("m1").await, "in_flight");
    assert_eq!(stage.reschedule("m1", ms(5)).await, "in_flight");
    assert_eq!(stage.cancel("never").await, "unknown");
    assert_eq!(before.diff(&stage.snapshot().await), "");
}

#[tokio::test]
async fn a_waiting_message_that_is_rescheduled_arrives_again() {
    let stage = Stage::of(&["a"]).await;
    for name in ["m1", "m2"] {
        stage.send(&[message(name, ms(9)).key("k")]).await;
    }
    assert_eq!(stage.reschedule("m1", ms(5)).await, "rescheduled@5");
    assert_eq!(stage.reschedule("m1", ms(9)).await, "rescheduled@9");
    stage.pass(9).await;
    assert_eq!(stage.drain("a").await, ["m2", "m1"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn an_unchanged_due_time_keeps_the_place() {
    let stage = Stage::of(&["a"]).await;
    for name in ["m1", "m2"] {
        stage.send(&[message(name, ms(9)).key("k")]).await;
    }
    let before = stage.snapshot().await;
    assert_eq!(stage.reschedule("m1", stage.at(9)).await, "rescheduled@9");
    assert_eq!(before.diff(&stage.snapshot().await), "");
    stage.pass(9).await;
    assert_eq!(stage.drain("a").await, ["m1", "m2"]);
}

#[tokio::test]
async fn what_no_group_has_begun_waits_again_for_all() {
    let stage = Stage::with(TopicSettings {
        max_ready: Some(1),
        ..groups(&["a", "b"])
    })
    .await;
    stage.put(&[message("m0", ms(0))]).await;
    stage.put(&[message("m1", ms(0))]).await;
    assert_eq!(stage.count("moved:b").await, 2);
    assert_eq!(stage.reschedule("m1", ms(5)).await, "rescheduled@5");
    assert_eq!(
        stage.states().await,
        [
            "left m0=2",
            "ready:a m0#1@0",
            "ready:b m0#1@0",
            "waiting m1@5"
        ]
    );
    let moved = (stage.count("moved").await, stage.count("moved:b").await);
    assert_eq!(moved, (1, 1));
    stage.assert_whole().await;
}

#[tokio::test]
async fn what_a_group_has_begun_gets_its_next_attempt_in_each() {
    let stage = stage(&["a", "b"], &["b"]).await;
    stage
        .put(&[message("m1", ms(0)).key("k"), message("m2", ms(0)).key("k")])
        .await;
    stage.run("a", "m1", retry(ms(50))).await;
    assert_eq!(stage.reschedule("m1", ms(5)).await, "rescheduled@5");
    assert_eq!(
        stage.states().await,
        [
            "attempts:a m1=1 0 it failed",
            "backlog:b m2",
            "holder:a k=m2",
            "holder:b k=m2",
            "left m1=2, m2=2",
            "ready:a m2#1@0",
            "retry:a m1@5",
            "retry:b m1@5"
        ]
    );
    stage.assert_whole().await;
    stage.pause_group("b", false).await;
    stage.pass(5).await;
    assert_eq!(stage.drain("a").await, ["m2", "m1"]);
    assert_eq!(stage.drain("b").await, ["m2", "m1"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn what_one_group_has_done_is_rescheduled_for_the_other_alone() {
    let stage = stage(&["a", "b"], &["b"]).await;
    stage.put(&[message("m", ms(0)).ttl(9)]).await;
    stage.run("a", "m", Verdict::Ack).await;
    stage.pause_group("b", false).await;
    assert_eq!(stage.reschedule("m", ms(70)).await, "rescheduled@70");
    assert_eq!(stage.states().await, ["left m=1", "retry:b m@70"]);
    stage.assert_whole().await;
    stage.pass(70).await;
    assert_eq!(stage.states().await, ["left m=1", "ready:b m#1@70 x79"]);
}

#[tokio::test]
async fn the_copy_of_a_retiring_group_is_rescheduled_for_it_alone() {
    let stage = stage(&["a", "b"], &["a"]).await;
    stage.put(&[message("m", ms(0))]).await;
    let (broker, topic) = (stage.broker(), stage.topic());
    let drain = Some(Retirement::Drain);
    broker.retire(topic, &name("a"), drain).await.unwrap();
    stage.run("b", "m", Verdict::Ack).await;
    assert_eq!(stage.reschedule("m", ms(5)).await, "rescheduled@5");
    assert_eq!(stage.states().await, ["left m=1", "retry:a m@5"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_repeated_reschedule_to_an_instant_changes_nothing_more() {
    for begun in [false, true] {
        let stage = stage(&["a", "b"], &["b"]).await;
        stage.put(&[message("m", ms(0)).key("k")]).await;
        stage
            .run("a", "m", if begun { retry(ms(50)) } else { Verdict::Ack })
            .await;
        let when = stage.at(5);
        stage.reschedule("m", when).await;
        let before = stage.states().await;
        assert_eq!(stage.reschedule("m", when).await, "rescheduled@5");
        assert_eq!(stage.states().await, before);
        stage.assert_whole().await;
    }
}

#[tokio::test]
async fn requeue_and_purge_are_about_one_group() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.put(&[message("m", ms(0))]).await;
    for group in ["a", "b"] {
        stage.run(group, "m", reject()).await;
    }
    stage.step(5);
    assert_eq!(stage.requeue("a", "m", 0).await, 1);
    assert_eq!(stage.requeue("a", "m", 0).await, 0);
    assert_eq!(
        stage.states().await,
        [
            "attempts:a m=0 0 no good",
            "garbage:b m@0",
            "garbage_info:b m=rejected 1 no good",
            "left m=2",
            "retry:a m@5"
        ]
    );
    stage.assert_whole().await;
    assert_eq!(stage.purge("b", "m", 0).await, 1);
    assert_eq!(stage.purge("b", "m", 0).await, 0);
    let left = ["attempts:a m=0 0 no good", "left m=1", "retry:a m@5"];
    assert_eq!(stage.states().await, left);
    stage.assert_whole().await;
    stage.moved().await;
    assert_eq!(
        stage.states().await,
        ["attempts:a m=0 0 no good", "left m=1", "ready:a m#1@5"]
    );
    stage.run("a", "m", Verdict::Ack).await;
    assert_eq!(stage.states().await, ["tomb m acked@5"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn garbage_without_its_payload_is_lost_in_its_group_alone() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.put(&[message("m", ms(0)).key("k")]).await;
    stage.run("a", "m", reject()).await;
    stage.lose_payload("m").await;
    assert_eq!(stage.requeue("a", "m", 0).await, 0);
    assert_eq!(
        stage.states().await,
        ["holder:b k=m", "left m=1", "ready:b m#1@0"]
    );
    let counts = (stage.count("lost:a").await, stage.count("lost:b").await);
    assert_eq!(counts, (1, 0));
    let stats = stage.stats().await;
    assert_eq!((stats.conservation_error, stats.missing_records()), (0, 1));
}
