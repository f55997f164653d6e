//! recount: finds, explains and corrects counters that do not match the messages.

use super::examine::{checkup, findings};
use super::stage::{Asking, Stage, groups};
use lisa_core::topic::{Size, TopicSettings};
use lisa_tests::relay::{message, ms};
use redis::cmd;

async fn set(stage: &Stage, hash: &str, field: &str, value: &str) {
    let _: u64 = stage
        .command(cmd("HSET").arg(stage.key(hash)).arg(field).arg(value))
        .await;
}

async fn corrected(stage: &Stage, expected: &[&str]) {
    let before = stage.snapshot().await;
    assert_eq!(findings(&checkup(stage, false).await), expected);
    assert_eq!(before.diff(&stage.snapshot().await), "");
    let repaired = checkup(stage, true).await;
    assert_eq!(findings(&repaired), expected);
    assert!(repaired.is_healthy());
    assert_eq!(findings(&checkup(stage, false).await), [""; 0]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn what_is_there_and_was_not_counted_was_accepted_and_moved() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.put(&[message("m", ms(0)), message("n", ms(0))]).await;
    stage.send(&[message("o", ms(9))]).await;
    let _: u64 = stage.command(cmd("DEL").arg(stage.key("stats"))).await;
    let expected = [
        "counters: 1 more are there than were accepted",
        "counters of a: 2 more are there than were moved",
        "counters of b: 2 more are there than were moved",
    ];
    corrected(&stage, &expected).await;
    assert_eq!(stage.count("accepted").await, 1);
    assert_eq!(stage.count("moved:a").await, 2);
}

#[tokio::test]
async fn what_was_counted_and_is_not_there_was_lost() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.put(&[message("m", ms(0))]).await;
    set(&stage, "stats", "accepted", "4").await;
    set(&stage, "stats", "moved:b", "3").await;
    let expected = [
        "counters: 3 more were accepted than there are",
        "counters of b: 2 more were moved than there are",
    ];
    corrected(&stage, &expected).await;
    assert_eq!(stage.count("lost:a").await, 3);
    assert_eq!(stage.count("lost:b").await, 5);
}

#[tokio::test]
async fn groups_that_are_gone_add_up_again() {
    let stage = Stage::of(&["a"]).await;
    set(&stage, "stats", "moved:-", "3").await;
    corrected(&stage, &["counters: 3 more were moved than there are"]).await;
    assert_eq!(stage.count("dropped:-").await, 3);
    set(&stage, "stats", "dropped:-", "5").await;
    corrected(&stage, &["counters: 2 more are there than were moved"]).await;
    assert_eq!(stage.count("moved:-").await, 5);
}

#[tokio::test]
async fn the_bytes_are_counted_again() {
    let stage = Stage::with(TopicSettings {
        max_bytes: Some(Size::new(1000)),
        ..groups(&["a"])
    })
    .await;
    stage.send(&[message("m", ms(9))]).await;
    let bytes = stage.count("bytes").await;
    assert!(bytes > 0);
    set(&stage, "stats", "bytes", "999").await;
    let expected = format!("counters: the records take {bytes} bytes, and 999 are counted");
    corrected(&stage, &[&expected]).await;
    assert_eq!(stage.count("bytes").await, bytes);
}

#[tokio::test]
async fn a_topic_that_uses_features_is_not_plain() {
    let stage = Stage::of(&["a"]).await;
    stage.send(&[message("m", ms(9)).key("k")]).await;
    set(&stage, "conf", "class", "plain").await;
    let expected = ["class: it is plain, and holds what needs the general scripts"];
    corrected(&stage, &expected).await;
    assert_eq!(stage.conf("class").await.as_deref(), Some("general"));
}
