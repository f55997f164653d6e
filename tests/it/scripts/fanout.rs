//! Several groups: each gets every message once, at its own pace, and the last one ends it.

mod none;
mod retiring;

use super::stage::{Asking, SHARD, Stage, groups, name, reject};
use lisa_core::broker::{Declare, Membership, Moved, Removed, Verdict};
use lisa_core::topic::TopicSettings;
use lisa_tests::relay::{message, ms, retry};
pub(super) use retiring::{DROP, remove, retire};

fn moved(count: u64, pause: u64) -> Moved {
    let pause = ms(pause);
    Moved::Moved { count, pause }
}

#[tokio::test]
async fn each_group_gets_every_message_and_the_last_one_ends_it() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.send(&[message("m", ms(5))]).await;
    assert_eq!(stage.states().await, ["waiting m@5"]);
    stage.step(5);
    assert_eq!(stage.moved().await, (2, 60_000));
    assert_eq!(
        stage.states().await,
        ["left m=2", "ready:a m#1@5", "ready:b m#1@5"]
    );
    let names = ["moved", "moved:a", "moved:b"];
    for name in names {
        assert_eq!(stage.count(name).await, 1);
    }
    stage.run("b", "m", Verdict::Ack).await;
    assert_eq!(stage.states().await, ["left m=1", "ready:a m#1@5"]);
    stage.assert_whole().await;
    stage.run("a", "m", Verdict::Ack).await;
    assert_eq!(stage.states().await, ["tomb m acked@5"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn the_groups_fail_each_by_itself() {
    let stage = Stage::of(&["a", "b", "c"]).await;
    stage.put(&[message("m", ms(0))]).await;
    stage.run("a", "m", retry(ms(50))).await;
    stage.run("b", "m", reject()).await;
    stage.run("c", "m", Verdict::Ack).await;
    assert_eq!(
        stage.states().await,
        [
            "attempts:a m=1 0 it failed",
            "garbage:b m@0",
            "garbage_info:b m=rejected 1 no good",
            "left m=2",
            "retry:a m@50"
        ]
    );
    stage.assert_whole().await;
    stage.pass(50).await;
    stage.run("a", "m", Verdict::Ack).await;
    assert_eq!(stage.purge("b", "m", 0).await, 1);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn the_batch_counts_copies() {
    let stage = Stage::of(&["a", "b"]).await;
    let batch = ["m1", "m2", "m3"].map(|name| message(name, ms(0)));
    stage.send(&batch).await;
    assert_eq!(stage.move_due(4).await, moved(4, 0));
    assert_eq!(stage.hash("stats").await["alarm"], "0");
    for group in ["a", "b"] {
        assert_eq!(stage.ready(group).await, ["m1", "m2"]);
    }
    assert_eq!(stage.move_due(4).await, moved(2, 60_000));
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_batch_smaller_than_the_number_of_groups_moves_one_message() {
    let stage = Stage::of(&["a", "b", "c"]).await;
    stage
        .send(&[message("m1", ms(0)), message("m2", ms(0))])
        .await;
    assert_eq!(stage.move_due(1).await, moved(3, 0));
    assert_eq!(stage.ready("c").await, ["m1"]);
    assert_eq!(stage.move_due(1).await, moved(3, 0));
    assert_eq!(stage.move_due(1).await, moved(0, 60_000));
    stage.assert_whole().await;
}

#[tokio::test]
async fn waiting_and_the_retries_of_all_groups_are_merged_by_time() {
    let stage = Stage::of(&["a", "b"]).await;
    stage
        .put(&[message("r1", ms(0)), message("r2", ms(0))])
        .await;
    stage.run("a", "r1", retry(ms(20))).await;
    stage.run("a", "r2", retry(ms(40))).await;
    stage.run("b", "r1", retry(ms(30))).await;
    stage.run("b", "r2", retry(ms(10))).await;
    stage
        .send(&[message("w1", ms(25)), message("w2", ms(5))])
        .await;
    stage.step(40);
    assert_eq!(stage.move_due(5).await, moved(6, 0));
    assert_eq!(stage.ready("a").await, ["w2", "r1", "w1"]);
    assert_eq!(stage.ready("b").await, ["w2", "r2", "w1"]);
    assert_eq!(stage.move_due(200).await, moved(2, 60_000));
    assert_eq!(stage.ready("a").await, ["w2", "r1", "w1", "r2"]);
    assert_eq!(stage.ready("b").await, ["w2", "r2", "w1", "r1"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn the_next_look_is_when_the_soonest_list_has_something() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.put(&[message("r", ms(0))]).await;
    stage.run("b", "r", retry(ms(70))).await;
    assert_eq!(stage.moved().await, (0, 70));
    stage.send(&[message("w", ms(40))]).await;
    assert_eq!(stage.moved().await, (0, 40));
    assert_eq!(stage.count("alarm").await, stage.at(40).get() as i64);
    stage.assert_whole().await;
}

#[tokio::test]
async fn what_becomes_due_for_a_paused_group_gathers_in_its_backlog() {
    let stage = Stage::of(&["a", "b"]).await;
    assert!(stage.pause_group("b", true).await);
    stage
        .put(&[message("m1", ms(0)), message("m2", ms(0))])
        .await;
    assert_eq!(
        stage.states().await,
        [
            "backlog:b m1, m2",
            "left m1=2, m2=2",
            "ready:a m1#1@0, m2#1@0"
        ]
    );
    assert_eq!(stage.drain("a").await, ["m1", "m2"]);
    stage.assert_whole().await;
    stage.step(30);
    assert!(stage.pause_group("b", false).await);
    stage.moved().await;
    assert_eq!(
        stage.states().await,
        ["left m1=1, m2=1", "ready:b m1#1@0, m2#1@0"]
    );
    assert_eq!(stage.drain("b").await, ["m1", "m2"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn pausing_a_group_changes_something_only_once() {
    let stage = Stage::of(&["a", "b"]).await;
    for paused in [true, false] {
        assert!(stage.pause_group("b", paused).await);
        let groups = stage.stats().await.groups;
        let seen: Vec<_> = groups.iter().map(|group| group.paused).collect();
        assert_eq!(seen, [false, paused]);
        let before = stage.snapshot().await;
        assert!(!stage.pause_group("b", paused).await);
        assert_eq!(before.diff(&stage.snapshot().await), "");
    }
}

#[tokio::test]
async fn while_all_groups_are_paused_messages_stay_waiting() {
    let stage = Stage::of(&["a", "b"]).await;
    for group in ["a", "b"] {
        stage.pause_group(group, true).await;
    }
    stage.send(&[message("m", ms(0))]).await;
    assert_eq!(stage.moved().await, (0, 60_000));
    assert_eq!(stage.states().await, ["waiting m@0"]);
    stage.pause_group("a", false).await;
    assert_eq!(stage.moved().await, (2, 60_000));
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_retry_of_a_paused_group_stays_and_wakes_nobody() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.put(&[message("m", ms(0))]).await;
    stage.run("b", "m", retry(ms(10))).await;
    stage.pause_group("b", true).await;
    stage.step(10);
    assert_eq!(stage.moved().await, (0, 60_000));
    assert_eq!(
        stage.states().await,
        [
            "attempts:b m=1 0 it failed",
            "left m=2",
            "ready:a m#1@0",
            "retry:b m@10"
        ]
    );
    stage.pause_group("b", false).await;
    assert_eq!(stage.moved().await, (1, 60_000));
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_paused_topic_hands_nothing_to_any_group() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.send(&[message("m", ms(0)).key("k")]).await;
    stage.broker().pause(stage.topic(), true).await.unwrap();
    let before = stage.snapshot().await;
    assert_eq!(stage.move_due(200).await, Moved::Paused);
    assert_eq!(before.diff(&stage.snapshot().await), "");
}

#[tokio::test]
async fn a_paused_topic_does_not_go_on_with_a_key_when_its_holder_is_acked() {
    let stage = Stage::of(&["a"]).await;
    stage
        .put(&[message("m1", ms(0)).key("k"), message("m2", ms(0)).key("k")])
        .await;
    stage.broker().pause(stage.topic(), true).await.unwrap();
    stage.run("a", "m1", Verdict::Ack).await;
    assert_eq!(
        stage.states().await,
        ["backlog:a m2", "holder:a k=m2", "tomb m1 acked@0"]
    );
    stage.broker().pause(stage.topic(), false).await.unwrap();
    stage.moved().await;
    assert_eq!(stage.ready("a").await, ["m2"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_name_that_is_the_end_of_another_keeps_its_counters() {
    let mut stage = Stage::of(&["a", "b", "b-a", "b_a"]).await;
    stage.put(&[message("m", ms(0))]).await;
    retire(&stage, "b-a", DROP).await;
    remove(&stage, "b-a").await;
    stage.refresh().await;
    for name in ["moved:a", "moved:b", "moved:b_a", "moved:-", "dropped:-"] {
        assert_eq!(stage.count(name).await, 1, "{name}");
    }
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_group_that_joins_gets_what_becomes_due_from_then_on() {
    let mut stage = Stage::of(&["a"]).await;
    stage.send(&[message("waiting", ms(5))]).await;
    stage.put(&[message("before", ms(0))]).await;
    let group = name("instance-1");
    let join = async |stage: &Stage| {
        let joined = stage.broker().join(stage.topic(), &group).await;
        joined.unwrap()
    };
    assert_eq!(join(&stage).await, Membership::Member);
    stage.refresh().await;
    assert_eq!(
        (stage.conf("class").await, stage.conf("groups").await),
        (Some("general".to_owned()), Some("a instance-1".to_owned()))
    );
    let instances: Vec<_> = stage
        .stats()
        .await
        .groups
        .iter()
        .map(|g| g.instance)
        .collect();
    assert_eq!(instances, [false, true]);
    stage.pass(5).await;
    assert_eq!(
        stage.states().await,
        [
            "left waiting=2",
            "ready:a before#1@0, waiting#1@5",
            "ready:instance-1 waiting#1@5"
        ]
    );
    let epoch = stage.conf("epoch").await;
    assert_eq!(join(&stage).await, Membership::Member);
    assert_eq!(stage.conf("epoch").await, epoch);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_group_whose_instance_is_silent_is_dropped() {
    let mut stage = Stage::with(TopicSettings {
        instance_ttl: ms(5000),
        ..groups(&["a"])
    })
    .await;
    let group = name("instance-1");
    stage.broker().join(stage.topic(), &group).await.unwrap();
    stage.refresh().await;
    stage.put(&[message("m1", ms(0))]).await;
    let clean = async |stage: &Stage| {
        let cleaned = stage
            .broker()
            .clean(stage.topic(), SHARD, &group, None)
            .await;
        cleaned.unwrap().retiring
    };
    stage.step(3000);
    stage.broker().join(stage.topic(), &group).await.unwrap();
    stage.step(5000);
    assert_eq!(clean(&stage).await, None);
    stage.step(1);
    assert_eq!(clean(&stage).await, DROP);
    assert_eq!(clean(&stage).await, DROP);
    let lapsed = stage.broker().join(stage.topic(), &group).await;
    assert_eq!(lapsed.unwrap(), Membership::Lapsed);
    stage.put(&[message("m2", ms(0))]).await;
    assert!(matches!(
        remove(&stage, "instance-1").await,
        Removed::Gone { dropped: 1, .. }
    ));
    stage.refresh().await;
    assert_eq!(stage.conf("instance:instance-1").await, None);
    let again = stage.broker().join(stage.topic(), &group).await;
    assert_eq!(again.unwrap(), Membership::Member);
    assert_eq!(stage.drain("a").await, ["m1", "m2"]);
}

#[tokio::test]
async fn an_update_adds_groups_and_keeps_the_others() {
    let mut stage = Stage::of(&["b"]).await;
    stage.put(&[message("m1", ms(0))]).await;
    stage.update(groups(&["c", "a"])).await;
    assert_eq!(stage.topic().groups(), ["a", "b", "c"].map(name));
    assert_eq!(stage.conf("groups").await, Some("a b c".to_owned()));
    assert_eq!(stage.conf("class").await, Some("general".to_owned()));
    stage.put(&[message("m2", ms(0))]).await;
    assert_eq!(
        stage.states().await,
        [
            "left m2=3",
            "ready:a m2#1@0",
            "ready:b m1#1@0, m2#1@0",
            "ready:c m2#1@0"
        ]
    );
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_declaration_that_creates_leaves_the_groups_there_alone() {
    let stage = Stage::of(&["a"]).await;
    let before = stage.snapshot().await;
    let there = stage
        .broker()
        .declare(stage.topic().name(), &groups(&["b"]), Declare::Create)
        .await
        .unwrap();
    assert_eq!(there.groups(), [name("a")]);
    assert_eq!(before.diff(&stage.snapshot().await), "");
}

#[tokio::test]
async fn a_call_that_knows_other_groups_learns_the_right_ones() {
    let stage = Stage::of(&["a"]).await;
    let other = lisa_core::broker::Broker::new(
        stage.broker().connection().clone(),
        stage.broker().namespace().clone(),
        ms(30_000),
        None,
    );
    let update = Declare::Update;
    let name_ = stage.topic().name();
    other
        .declare(name_, &groups(&["a", "b"]), update)
        .await
        .unwrap();
    stage.put(&[message("m", ms(0)).key("k")]).await;
    assert_eq!(
        stage.states().await,
        [
            "holder:a k=m",
            "holder:b k=m",
            "left m=2",
            "ready:a m#1@0",
            "ready:b m#1@0"
        ]
    );
    assert_eq!(stage.cancel("m").await, "in_flight");
}

#[tokio::test]
async fn a_payload_that_is_lost_ends_in_each_group_by_itself() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.put(&[message("m", ms(0)).key("k")]).await;
    stage.lose_payload("m").await;
    for (group, left) in [("a", "left m=1"), ("b", "")] {
        stage.run(group, "m", Verdict::Lost).await;
        let lines = stage.states().await;
        assert_eq!(lines.iter().any(|line| line == left), !left.is_empty());
        assert_eq!(stage.count(&format!("lost:{group}")).await, 1);
    }
    stage.assert_nothing_is_left().await;
}
