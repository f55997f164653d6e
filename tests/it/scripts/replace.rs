//! Replacing: the old message goes and the new one comes, or neither.

use super::stage::{Asking, Stage, groups, reject};
use lisa_core::broker::Verdict;
use lisa_core::topic::{Merge, Size, TopicSettings};
use lisa_tests::relay::{message, ms, retry};

#[tokio::test]
async fn an_id_that_an_earlier_line_has_replaced_is_a_duplicate_that_was_cancelled() {
    let stage = Stage::of(&["a"]).await;
    stage.send(&[message("c", ms(9))]).await;
    let lines = [message("d", ms(9)).replacing("c"), message("c", ms(9))];
    let sent = stage.sent(&lines).await;
    assert_eq!(sent, ["waiting d@9", "duplicate c cancelled"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_waiting_message_is_cancelled_for_the_new_one() {
    let stage = Stage::of(&["a"]).await;
    stage.send(&[message("m1", ms(9))]).await;
    let new = [message("m2", ms(5)).replacing("m1")];
    assert_eq!(stage.sent(&new).await, ["waiting m2@5"]);
    assert_eq!(
        stage.states().await,
        ["tomb m1 cancelled@0", "waiting m2@5"]
    );
    let counts = (
        stage.count("accepted").await,
        stage.count("cancelled").await,
    );
    assert_eq!(counts, (2, 1));
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_message_in_retry_is_cancelled_with_its_attempts_and_releases_its_key() {
    let stage = Stage::of(&["a"]).await;
    stage
        .put(&[
            message("m1", ms(0)).key("k"),
            message("next", ms(0)).key("k"),
        ])
        .await;
    stage.run("a", "m1", retry(ms(50))).await;
    let new = [message("m2", ms(5)).replacing("m1")];
    assert_eq!(stage.sent(&new).await, ["waiting m2@5"]);
    assert_eq!(
        stage.states().await,
        [
            "holder:a k=next",
            "ready:a next#1@0",
            "tomb m1 cancelled@0",
            "waiting m2@5"
        ]
    );
    assert_eq!(stage.count("cancelled:a").await, 1);
    stage.assert_whole().await;
}

#[tokio::test]
async fn what_cannot_be_cancelled_is_not_replaced_and_nothing_is_stored() {
    let stage = Stage::of(&["a"]).await;
    stage
        .put(&[message("dead", ms(0)), message("done", ms(0))])
        .await;
    stage.run("a", "dead", reject()).await;
    stage.run("a", "done", Verdict::Ack).await;
    stage.put(&[message("ready", ms(0)).key("k")]).await;
    let before = stage.snapshot().await;
    let mut sent = Vec::new();
    for (new, old) in [
        ("n1", "ready"),
        ("n2", "dead"),
        ("n3", "done"),
        ("n4", "never"),
    ] {
        sent.extend(stage.sent(&[message(new, ms(5)).replacing(old)]).await);
    }
    assert_eq!(
        sent,
        [
            "replace_conflict n1 in_flight",
            "replace_conflict n2 garbage",
            "replace_conflict n3 unknown acked",
            "replace_conflict n4 unknown"
        ]
    );
    assert_eq!(before.diff(&stage.snapshot().await), "");
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_copy_in_flight_in_one_group_keeps_all_from_being_replaced() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.put(&[message("m1", ms(0))]).await;
    stage.run("a", "m1", retry(ms(50))).await;
    let before = stage.states().await;
    let new = [message("m2", ms(5)).replacing("m1")];
    assert_eq!(stage.sent(&new).await, ["replace_conflict m2 in_flight"]);
    assert_eq!(stage.states().await, before);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_repeated_replacement_is_a_duplicate() {
    let stage = Stage::of(&["a"]).await;
    stage.send(&[message("m1", ms(9))]).await;
    let new = [message("m2", ms(5)).replacing("m1")];
    stage.send(&new).await;
    let before = stage.states().await;
    assert_eq!(stage.sent(&new).await, ["duplicate m2@5"]);
    assert_eq!(stage.states().await, before);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_message_is_replaced_once_in_a_call() {
    let stage = Stage::of(&["a"]).await;
    stage.send(&[message("m1", ms(9))]).await;
    let sent = stage
        .sent(&[
            message("m2", ms(5)).replacing("m1"),
            message("m3", ms(5)).replacing("m1"),
            message("m4", ms(4)).replacing("m2"),
        ])
        .await;
    assert_eq!(
        sent,
        [
            "waiting m2@5",
            "replace_conflict m3 unknown cancelled",
            "waiting m4@4"
        ]
    );
    assert_eq!(
        stage.states().await,
        ["tomb m1 cancelled@0, m2 cancelled@0", "waiting m4@4"]
    );
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_full_topic_has_room_for_a_replacement() {
    let stage = Stage::with(TopicSettings {
        max_messages: Some(1),
        ..groups(&["a"])
    })
    .await;
    stage.send(&[message("m1", ms(9))]).await;
    let sent = stage
        .sent(&[message("m2", ms(5)).replacing("m1"), message("m3", ms(5))])
        .await;
    assert_eq!(sent, ["waiting m2@5", "full m3"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_replaced_message_that_stays_in_garbage_leaves_no_room() {
    let stage = Stage::with(TopicSettings {
        max_messages: Some(1),
        ..groups(&["a", "b"])
    })
    .await;
    stage.put(&[message("m1", ms(0))]).await;
    stage.run("a", "m1", reject()).await;
    stage.run("b", "m1", retry(ms(50))).await;
    let before = stage.states().await;
    let new = [message("m2", ms(5)).replacing("m1")];
    assert_eq!(stage.sent(&new).await, ["full m2"]);
    assert_eq!(stage.states().await, before);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_replacement_that_does_not_fit_leaves_the_old_one() {
    let stage = Stage::with(TopicSettings {
        max_bytes: Some(Size::new(20)),
        ..groups(&["a"])
    })
    .await;
    assert_eq!(stage.sent(&[message("m1", ms(9))]).await, ["waiting m1@9"]);
    let before = stage.states().await;
    let mut new = message("m2", ms(5)).replacing("m1");
    new.record.payload = vec![b'x'; 19].into();
    assert_eq!(stage.sent(&[new]).await, ["full m2"]);
    assert_eq!(stage.states().await, before);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_replacement_that_is_merged_cancels_the_old_one() {
    let stage = Stage::of(&["a"]).await;
    stage
        .send(&[message("old", ms(9)), message("m1", ms(9)).merge("x")])
        .await;
    let new = [message("m2", ms(5)).merge("x").replacing("old")];
    assert_eq!(stage.sent(&new).await, ["merged m1@5"]);
    assert_eq!(
        stage.states().await,
        [
            "merge /x=m1",
            "tomb old cancelled@0, m2 merged@0",
            "waiting m1@5"
        ]
    );
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_replacement_that_is_rejected_for_its_merge_key_leaves_the_old_one() {
    let stage = Stage::with(TopicSettings {
        merge: Merge::Reject,
        ..groups(&["a"])
    })
    .await;
    stage
        .send(&[message("old", ms(9)), message("m1", ms(9)).merge("x")])
        .await;
    let before = stage.states().await;
    let new = [message("m2", ms(5)).merge("x").replacing("old")];
    assert_eq!(stage.sent(&new).await, ["duplicate m1@9"]);
    assert_eq!(stage.states().await, before);
    let new = [message("m3", ms(5)).merge("x").replacing("m1")];
    assert_eq!(stage.sent(&new).await, ["waiting m3@5"]);
    stage.assert_whole().await;
}
