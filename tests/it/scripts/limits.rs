//! Limits: a full topic refuses whole messages, and only those that would take more room.

use super::stage::{Asking, SHARD, Stage, groups};
use lisa_core::message::PreparedMessage;
use lisa_core::topic::{Merge, Size, TopicSettings};
use lisa_tests::relay::{message, ms};

/// The overhead of a message of [`sized`]: two bytes of the record are not payload.
const HEAD: usize = 2;
/// The bytes of a remembered ended id that count against the limit.
const TOMB: u64 = 128;

fn sized(id: &str, size: usize) -> PreparedMessage {
    let mut message = message(id, ms(9));
    message.record.payload = vec![b'x'; size - HEAD].into();
    message
}

async fn of_messages(max: u64) -> Stage {
    Stage::with(TopicSettings {
        max_messages: Some(max),
        ..groups(&["a"])
    })
    .await
}

async fn of_bytes(max: u64, merge: Merge) -> Stage {
    Stage::with(TopicSettings {
        max_bytes: Some(Size::new(max)),
        merge,
        ..groups(&["a"])
    })
    .await
}

#[tokio::test]
async fn one_message_more_than_allowed_is_refused() {
    let stage = of_messages(2).await;
    let batch = ["m1", "m2", "m3"].map(|name| message(name, ms(9)));
    assert_eq!(
        stage.sent(&batch).await,
        ["waiting m1@9", "waiting m2@9", "full m3"]
    );
    assert_eq!(stage.states().await, ["waiting m1@9, m2@9"]);
    assert_eq!(stage.count("accepted").await, 2);
    stage.assert_whole().await;
}

#[tokio::test]
async fn what_is_in_flight_takes_room_until_it_is_acked() {
    let stage = of_messages(1).await;
    stage.put(&[message("m1", ms(0))]).await;
    let next = [message("m2", ms(9))];
    assert_eq!(stage.sent(&next).await, ["full m2"]);
    stage.handle("a").await;
    assert_eq!(stage.sent(&next).await, ["waiting m2@9"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_full_topic_tells_duplicates_from_new_messages() {
    let stage = of_messages(1).await;
    stage.send(&[message("m1", ms(9))]).await;
    let sent = stage
        .sent(&[message("m1", ms(9)), message("m2", ms(9))])
        .await;
    assert_eq!(sent, ["duplicate m1@9", "full m2"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_full_topic_can_be_merged_into() {
    for (merge, due) in [(Merge::First, 9), (Merge::Last, 5)] {
        let stage = Stage::with(TopicSettings {
            max_messages: Some(1),
            merge,
            ..groups(&["a"])
        })
        .await;
        stage.send(&[message("m1", ms(9)).merge("x")]).await;
        let sent = stage.sent(&[message("m2", ms(5)).merge("x")]).await;
        assert_eq!(sent, [format!("merged m1@{due}")]);
        stage.assert_whole().await;
    }
}

#[tokio::test]
async fn a_topic_with_two_groups_counts_a_message_once() {
    let stage = Stage::with(TopicSettings {
        max_messages: Some(2),
        ..groups(&["a", "b"])
    })
    .await;
    stage.put(&[message("m1", ms(0))]).await;
    let sent = stage
        .sent(&[message("m2", ms(9)), message("m3", ms(9))])
        .await;
    assert_eq!(sent, ["waiting m2@9", "full m3"]);
    stage.handle("a").await;
    assert_eq!(stage.sent(&[message("m4", ms(9))]).await, ["full m4"]);
    stage.handle("b").await;
    assert_eq!(stage.sent(&[message("m5", ms(9))]).await, ["waiting m5@9"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn bytes_are_counted_to_the_last_and_given_back() {
    let stage = of_bytes(100, Merge::Last).await;
    let sent = stage
        .sent(&[sized("m1", 60), sized("m2", 41), sized("m3", 40)])
        .await;
    assert_eq!(sent, ["waiting m1@9", "full m2", "waiting m3@9"]);
    assert_eq!(stage.count("bytes").await, 100);
    assert_eq!(stage.sent(&[sized("m4", 3)]).await, ["full m4"]);
    stage.cancel("m1").await;
    assert_eq!(stage.count("bytes").await, 40);
    assert_eq!(stage.stats().await.bytes, 40);
    stage.pass(9).await;
    stage.handle("a").await;
    assert_eq!(stage.count("bytes").await, 0);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_merge_takes_the_room_of_the_message_that_it_replaces() {
    let stage = of_bytes(100 + 2 * TOMB, Merge::Last).await;
    stage.send(&[sized("m1", 60).merge("x")]).await;
    assert_eq!(
        stage.sent(&[sized("m2", 101).merge("x")]).await,
        ["full m2"]
    );
    assert_eq!(stage.count("bytes").await, 60);
    let sent = stage.sent(&[sized("m3", 100).merge("x")]).await;
    assert_eq!(sent, ["merged m1@9"]);
    assert_eq!(stage.count("bytes").await, 100);
    assert_eq!(stage.states().await[0], "merge /x=m1");
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_merge_that_stores_nothing_takes_the_room_of_its_tombstone() {
    let stage = of_bytes(60 + 2 * TOMB, Merge::First).await;
    stage.send(&[sized("m1", 60).merge("x")]).await;
    let sent = stage.sent(&[sized("m2", 500).merge("x")]).await;
    assert_eq!(sent, ["merged m1@9"]);
    assert_eq!(stage.count("bytes").await, 60);
    let sent = stage.sent(&[sized("m3", 3).merge("x")]).await;
    assert_eq!(sent, ["full m3"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn tombstones_fill_the_bytes_of_a_topic_until_their_window_is_over() {
    let stage = of_bytes(2 * TOMB + 50, Merge::Last).await;
    stage
        .send(&[sized("m1", 10), sized("m2", 10), sized("m3", 10)])
        .await;
    stage.cancel("m1").await;
    assert_eq!(stage.sent(&[sized("m4", 20)]).await, ["waiting m4@9"]);
    stage.cancel("m2").await;
    assert_eq!(stage.sent(&[sized("m5", 21)]).await, ["full m5"]);
    // A replacement takes the room of what it replaces, and leaves a tombstone, too.
    let replacing = sized("m6", 10).replacing("m3");
    assert_eq!(stage.sent(&[replacing]).await, ["full m6"]);
    assert_eq!(stage.stats().await.tombstones, 2);
    stage
        .pass(stage.topic().settings().dedup_window.as_millis() as u64 + 1)
        .await;
    stage.broker().forget(stage.topic(), SHARD).await.unwrap();
    assert_eq!(stage.sent(&[sized("m5", 21)]).await, ["waiting m5@600010"]);
    assert_eq!(stage.stats().await.tombstones, 0);
    stage.assert_whole().await;
}

#[tokio::test]
async fn each_shard_has_its_share_rounded_up() {
    let stage = Stage::with(TopicSettings {
        shards: 3,
        max_messages: Some(4),
        max_bytes: Some(Size::new(10)),
        max_ready: Some(7),
        ..groups(&["a"])
    })
    .await;
    let conf = stage.hash("conf").await;
    let limits = ["max_messages", "max_bytes", "max_ready"].map(|field| conf[field].as_str());
    assert_eq!(limits, ["2", "4", "3"]);
}
