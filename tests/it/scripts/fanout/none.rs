//! A topic without any group: its messages wait until one comes.

use super::retiring::{DROP, remove, retire};
use crate::scripts::stage::{Asking, SHARD, Stage, groups, name};
use lisa_core::broker::{Declare, Found, Membership, Removed, Retired};
use lisa_core::message::PreparedMessage;
use lisa_core::state::State;
use lisa_tests::relay::{id, message, ms};
use redis::cmd;

/// A topic whose settings name no group, with a message that is due, one that is not, and one with a key.
async fn deserted() -> Stage {
    let stage = Stage::of(&[]).await;
    let sends: [PreparedMessage; 3] = [
        message("due", ms(0)),
        message("later", ms(10)),
        message("keyed", ms(0)).key("k"),
    ];
    let sent = stage.sent(&sends).await;
    assert_eq!(
        sent,
        ["waiting due@0", "waiting later@10", "waiting keyed@0"]
    );
    stage
}

async fn join(stage: &mut Stage, group: &str) {
    let joined = stage.broker().join(stage.topic(), &name(group)).await;
    assert_eq!(joined.unwrap(), Membership::Member);
    stage.refresh().await;
}

#[tokio::test]
async fn without_a_group_messages_wait_and_the_mover_sleeps() {
    let stage = deserted().await;
    for _ in 0..2 {
        assert_eq!(stage.moved().await, (0, 60_000));
    }
    assert_eq!(stage.states().await, ["waiting due@0, keyed@0, later@10"]);
    assert_eq!(stage.conf("class").await.as_deref(), Some("general"));
    let stats = stage.stats().await;
    assert_eq!((stats.waiting, stats.groups.len()), (3, 0));
    assert_eq!(stats.conservation_error, 0);
}

#[tokio::test]
async fn a_group_that_comes_gets_what_waited_for_one() {
    let mut declared = deserted().await;
    declared.update(groups(&["a"])).await;
    declared.moved().await;
    assert_eq!(declared.drain("a").await, ["due", "keyed"]);
    declared.pass(10).await;
    assert_eq!(declared.drain("a").await, ["later"]);
    declared.assert_nothing_is_left().await;

    let mut joined = deserted().await;
    join(&mut joined, "instance-1").await;
    joined.moved().await;
    assert_eq!(joined.drain("instance-1").await, ["due", "keyed"]);
    joined.pass(10).await;
    assert_eq!(joined.drain("instance-1").await, ["later"]);
    joined.assert_nothing_is_left().await;
}

#[tokio::test]
async fn without_a_group_a_message_is_found_listed_rescheduled_and_cancelled() {
    let stage = deserted().await;
    let found = stage.broker().lookup(stage.topic(), &id("due"), None).await;
    let Found::Stored {
        listed, details, ..
    } = found.unwrap()
    else {
        panic!("it is stored");
    };
    assert_eq!(
        (listed.state, listed.due_at),
        (State::Waiting, Some(stage.now()))
    );
    assert!(details.copies.is_empty());
    let (broker, topic) = (stage.broker(), stage.topic());
    let page = broker.list(topic, None, State::Waiting, None, 10).await;
    assert_eq!(page.unwrap().items.len(), 3);
    for state in State::ALL {
        if *state != State::Waiting {
            let page = broker.list(topic, None, *state, None, 10).await.unwrap();
            assert!(page.items.is_empty(), "{state}");
        }
    }
    assert_eq!(stage.reschedule("due", ms(7)).await, "rescheduled@7");
    assert_eq!(stage.cancel("keyed").await, "cancelled");
    assert_eq!(stage.cancel("later").await, "cancelled");
    let again = stage.sent(&[message("later", ms(0))]).await;
    assert_eq!(again, ["duplicate later cancelled"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn without_a_group_a_message_can_be_merged_and_replaced() {
    let stage = Stage::of(&[]).await;
    let merged = |name| message(name, ms(5)).merge("m");
    let sent = stage.sent(&[merged("m1"), merged("m2")]).await;
    assert_eq!(sent, ["waiting m1@5", "merged m1@5"]);
    let sent = stage.sent(&[message("m3", ms(9)).replacing("m1")]).await;
    assert_eq!(sent, ["waiting m3@9"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_topic_may_lose_its_last_group_and_waits_for_another() {
    let mut stage = Stage::of(&["a"]).await;
    assert_eq!(stage.conf("class").await.as_deref(), Some("plain"));
    stage.put(&[message("m1", ms(0))]).await;
    assert_eq!(retire(&stage, "a", DROP).await, Retired::Done);
    // Even if it was plain, no new message goes to a retiring group.
    stage.send(&[message("m2", ms(0))]).await;
    assert_eq!(stage.moved().await, (0, 60_000));
    assert!(matches!(
        remove(&stage, "a").await,
        Removed::Gone { dropped: 1, .. }
    ));
    stage.refresh().await;
    assert_eq!(stage.topic().groups(), []);
    stage.put(&[message("m3", ms(0))]).await;
    assert_eq!(stage.states().await, ["waiting m2@0, m3@0"]);
    join(&mut stage, "instance-1").await;
    stage.moved().await;
    assert_eq!(stage.drain("instance-1").await, ["m2", "m3"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn the_last_instance_that_is_silent_takes_the_last_group_with_it() {
    let mut stage = Stage::of(&[]).await;
    join(&mut stage, "instance-1").await;
    // As the only group of a topic that no setting keeps general it would be plain.
    let () = stage
        .command(cmd("HDEL").arg(stage.key("conf")).arg("features"))
        .await;
    let clean = async |stage: &Stage| {
        let group = name("instance-1");
        let cleaned = stage
            .broker()
            .clean(stage.topic(), SHARD, &group, None)
            .await;
        cleaned.unwrap().retiring
    };
    assert_eq!(clean(&stage).await, None);
    assert_eq!(stage.conf("class").await.as_deref(), Some("plain"));
    stage.step(60_001);
    assert_eq!(clean(&stage).await, DROP);
    assert_eq!(stage.conf("class").await.as_deref(), Some("general"));
    stage.put(&[message("m", ms(0))]).await;
    assert!(matches!(
        remove(&stage, "instance-1").await,
        Removed::Gone { dropped: 0, .. }
    ));
    stage.refresh().await;
    assert_eq!(stage.moved().await, (0, 60_000));
    assert_eq!(stage.stats().await.waiting, 1);
    join(&mut stage, "instance-2").await;
    stage.moved().await;
    assert_eq!(stage.drain("instance-2").await, ["m"]);
}

#[tokio::test]
async fn a_shard_that_says_it_is_plain_without_a_group_takes_messages_all_the_same() {
    let stage = Stage::of(&[]).await;
    let mut plain = cmd("HSET");
    plain.arg(stage.key("conf")).arg("class").arg("plain");
    let _: u64 = stage.command(&plain).await;
    assert_eq!(stage.moved().await, (0, 60_000));
    let sent = stage.sent(&[message("m", ms(0))]).await;
    assert_eq!(sent, ["waiting m@0"]);
    assert_eq!(stage.conf("class").await.as_deref(), Some("general"));
}

#[tokio::test]
async fn a_topic_without_groups_is_declared_again_as_it_was() {
    let stage = deserted().await;
    let name = stage.topic().name();
    let before = stage.snapshot().await;
    let same = stage
        .broker()
        .declare(name, &groups(&[]), Declare::Update)
        .await;
    assert_eq!(same.unwrap().groups(), []);
    assert_eq!(before.diff(&stage.snapshot().await), "");
}
