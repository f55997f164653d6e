//! Merging: the message that stands for all of its merge key, its contents, and the time until it does so.

use super::stage::{Asking, SHARD, Stage, groups};
use lisa_core::broker::{Declare, Settlement, Verdict};
use lisa_core::message::PreparedMessage;
use lisa_core::topic::{Merge, OnExpired, OnLate, TopicSettings};
use lisa_tests::relay::{id, message, ms, nameless, retry, settlement};
use redis::cmd;
use std::time::Duration;

async fn stage(merge: Merge) -> Stage {
    Stage::with(TopicSettings {
        merge,
        ..groups(&["a"])
    })
    .await
}

async fn payload(stage: &Stage, id: &str) -> String {
    stage.hash("payload").await.remove(id).unwrap()
}

#[tokio::test]
async fn the_last_send_wins_with_its_payload_options_and_due_time() {
    let stage = stage(Merge::Last).await;
    let first = message("m1", ms(100)).merge("x").ttl(500);
    assert_eq!(stage.sent(&[first]).await, ["waiting m1@100"]);
    let last = message("m2", ms(40)).merge("x").priority(7).ttl(5);
    assert_eq!(stage.sent(&[last]).await, ["merged m1@40"]);
    assert_eq!(
        stage.states().await,
        ["merge /x=m1", "tomb m2 merged@0", "waiting m1@40"]
    );
    assert!(payload(&stage, "m1").await.ends_with("payload of m2"));
    assert_eq!(stage.count("accepted").await, 2);
    assert_eq!(stage.count("merged").await, 1);
    stage.pass(40).await;
    assert_eq!(
        stage.states().await,
        ["ready:a m1#1@40 x45", "tomb m2 merged@0"]
    );
    stage.assert_whole().await;
}

#[tokio::test]
async fn with_first_the_message_there_stays_as_it_is() {
    let stage = stage(Merge::First).await;
    let first = message("m1", ms(100)).merge("x");
    stage.send(&[first]).await;
    let before = payload(&stage, "m1").await;
    let later = message("m2", ms(40)).merge("x").priority(7);
    assert_eq!(stage.sent(&[later]).await, ["merged m1@100"]);
    assert_eq!(
        stage.states().await,
        ["merge /x=m1", "tomb m2 merged@0", "waiting m1@100"]
    );
    assert_eq!(payload(&stage, "m1").await, before);
    let counts = (stage.count("accepted").await, stage.count("merged").await);
    assert_eq!(counts, (2, 1));
    stage.assert_whole().await;
}

#[tokio::test]
async fn with_reject_a_later_send_is_a_duplicate() {
    let stage = stage(Merge::Reject).await;
    stage.send(&[message("m1", ms(100)).merge("x")]).await;
    let later = [message("m2", ms(40)).merge("x")];
    assert_eq!(stage.sent(&later).await, ["duplicate m1@100"]);
    assert_eq!(stage.states().await, ["merge /x=m1", "waiting m1@100"]);
    let counts = (
        stage.count("accepted").await,
        stage.count("merged").await,
        stage.count("duplicates").await,
    );
    assert_eq!(counts, (1, 0, 1));
    stage.assert_whole().await;
}

#[tokio::test]
async fn with_reject_a_message_that_is_held_back_is_a_duplicate_without_a_time() {
    let stage = Stage::with(TopicSettings {
        merge: Merge::Reject,
        max_ready: Some(1),
        ..groups(&["a"])
    })
    .await;
    stage.put(&[message("m0", ms(0))]).await;
    stage.put(&[message("m1", ms(0)).merge("x")]).await;
    let later = [message("m2", ms(40)).merge("x")];
    assert_eq!(stage.sent(&later).await, ["duplicate m1"]);
    assert_eq!(
        stage.states().await,
        ["backlog:a m1", "merge /x=m1", "ready:a m0#1@0"]
    );
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_message_can_be_put_off_until_max_wait_after_the_first_send() {
    let stage = Stage::with(TopicSettings {
        max_wait: Some(ms(150)),
        ..groups(&["a"])
    })
    .await;
    let at = |name: &str, after| [message(name, ms(after)).merge("x")];
    assert_eq!(stage.sent(&at("m1", 100)).await, ["waiting m1@100"]);
    stage.step(50);
    assert_eq!(stage.sent(&at("m2", 99)).await, ["merged m1@149"]);
    assert_eq!(stage.sent(&at("m3", 200)).await, ["merged m1@150"]);
    stage.step(110);
    assert_eq!(stage.sent(&at("m4", 200)).await, ["merged m1@160"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn the_first_send_may_be_due_after_max_wait() {
    let stage = Stage::with(TopicSettings {
        max_wait: Some(ms(50)),
        ..groups(&["a"])
    })
    .await;
    stage.send(&[message("m1", ms(100)).merge("x")]).await;
    assert_eq!(stage.states().await[1], "waiting m1@100");
    let sent = stage.sent(&[message("m2", ms(80)).merge("x")]).await;
    assert_eq!(sent, ["merged m1@50"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_message_in_a_backlog_is_pulled_back_and_waits_again() {
    let stage = Stage::with(TopicSettings {
        max_ready: Some(1),
        ..groups(&["a"])
    })
    .await;
    stage.put(&[message("m0", ms(0))]).await;
    stage.put(&[message("m1", ms(0)).merge("x")]).await;
    assert_eq!(stage.states().await[0], "backlog:a m1");
    assert_eq!(stage.count("moved:a").await, 2);
    let sent = stage.sent(&[message("m2", ms(30)).merge("x")]).await;
    assert_eq!(sent, ["merged m1@30"]);
    assert_eq!(
        stage.states().await,
        [
            "merge /x=m1",
            "ready:a m0#1@0",
            "tomb m2 merged@0",
            "waiting m1@30"
        ]
    );
    let moved = (stage.count("moved").await, stage.count("moved:a").await);
    assert_eq!(moved, (1, 1));
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_message_in_the_backlogs_of_two_groups_is_pulled_back_from_both() {
    let stage = Stage::with(TopicSettings {
        max_ready: Some(1),
        ..groups(&["a", "b"])
    })
    .await;
    stage.put(&[message("m0", ms(0))]).await;
    stage.put(&[message("m1", ms(0)).merge("x")]).await;
    let moved = async || {
        let names = ["moved", "moved:a", "moved:b"];
        let mut counts = Vec::new();
        for name in names {
            counts.push(stage.count(name).await);
        }
        counts
    };
    assert_eq!(moved().await, [2, 2, 2]);
    let sent = stage.sent(&[message("m2", ms(30)).merge("x")]).await;
    assert_eq!(sent, ["merged m1@30"]);
    assert_eq!(
        stage.states().await,
        [
            "left m0=2",
            "merge /x=m1",
            "ready:a m0#1@0",
            "ready:b m0#1@0",
            "tomb m2 merged@0",
            "waiting m1@30"
        ]
    );
    assert_eq!(moved().await, [1, 1, 1]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_parked_message_is_pulled_back() {
    let stage = stage(Merge::Last).await;
    stage.put(&[message("m0", ms(0)).key("k")]).await;
    stage.put(&[message("m1", ms(0)).key("k").merge("x")]).await;
    assert!(stage.states().await.contains(&"parked:a k>m1".to_owned()));
    let later = message("m2", ms(9)).key("k").merge("x");
    assert_eq!(stage.sent(&[later]).await, ["merged m1@9"]);
    assert_eq!(
        stage.states().await,
        [
            "holder:a k=m0",
            "merge k/x=m1",
            "ready:a m0#1@0",
            "tomb m2 merged@0",
            "waiting m1@9"
        ]
    );
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_holder_that_is_pulled_back_gives_its_key_to_the_next() {
    let stage = Stage::with(TopicSettings {
        max_ready: Some(1),
        ..groups(&["a"])
    })
    .await;
    stage.put(&[message("m0", ms(0))]).await;
    let first = message("m1", ms(0)).key("k").merge("x");
    stage.put(&[first, message("m2", ms(0)).key("k")]).await;
    let later = message("m3", ms(9)).key("k").merge("x");
    assert_eq!(stage.sent(&[later]).await, ["merged m1@9"]);
    assert_eq!(
        stage.states().await,
        [
            "backlog:a m2",
            "holder:a k=m2",
            "merge k/x=m1",
            "ready:a m0#1@0",
            "tomb m3 merged@0",
            "waiting m1@9"
        ]
    );
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_message_on_a_stream_is_not_merged_into() {
    let stage = stage(Merge::Last).await;
    stage.put(&[message("m1", ms(0)).merge("x")]).await;
    let later = [message("m2", ms(5)).merge("x")];
    assert_eq!(stage.sent(&later).await, ["waiting m2@5"]);
    assert_eq!(
        stage.states().await,
        ["merge /x=m2", "ready:a m1#1@0", "waiting m2@5"]
    );
    stage.assert_whole().await;
}

#[tokio::test]
async fn one_group_that_has_it_ends_the_merge_for_all() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.pause_group("b", true).await;
    stage.put(&[message("m1", ms(0)).merge("x")]).await;
    let sent = stage.sent(&[message("m2", ms(5)).merge("x")]).await;
    assert_eq!(sent, ["waiting m2@5"]);
    assert_eq!(
        stage.states().await,
        [
            "backlog:b m1",
            "left m1=2",
            "merge /x=m2",
            "ready:a m1#1@0",
            "waiting m2@5"
        ]
    );
    stage.handle("a").await;
    let sent = stage.sent(&[message("m3", ms(6)).merge("x")]).await;
    assert_eq!(sent, ["merged m2@6"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_message_that_failed_is_not_merged_into() {
    let stage = stage(Merge::Last).await;
    stage.put(&[message("m1", ms(0)).merge("x")]).await;
    stage.run("a", "m1", retry(ms(50))).await;
    let later = [message("m2", ms(5)).merge("x")];
    assert_eq!(stage.sent(&later).await, ["waiting m2@5"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_lapse_in_one_group_ends_the_merge_for_all() {
    for on_expired in [OnExpired::Garbage, OnExpired::Drop] {
        let stage = Stage::with(TopicSettings {
            on_expired,
            ..groups(&["a", "b"])
        })
        .await;
        stage.pause_group("b", true).await;
        stage.send(&[message("m1", ms(0)).merge("x").ttl(5)]).await;
        stage.pass(5).await;
        let lapsed: &[_] = match on_expired {
            OnExpired::Garbage => &[
                "backlog:b m1",
                "garbage:a m1@5",
                "garbage_info:a m1=expired 0 its ttl is over",
                "left m1=2",
            ],
            OnExpired::Drop => &["backlog:b m1", "left m1=1"],
        };
        assert_eq!(stage.states().await, lapsed);
        stage.assert_whole().await;
    }
}

/// Only then does such a message not leave a backlog: without a window, a message with a merge key brings one.
#[tokio::test]
async fn on_a_topic_that_loses_its_window_a_merge_ends_as_well() {
    let cases = [
        (None, OnExpired::Garbage, "ready:a m1#1@0"),
        (Some(5), OnExpired::Garbage, "garbage:a m1@5"),
        (Some(5), OnExpired::Drop, "left m1=1"),
    ];
    for (ttl, on_expired, end) in cases {
        let settings = TopicSettings {
            on_expired,
            ttl: ttl.map(ms),
            ..groups(&["a", "b"])
        };
        let max_ready = Some(9);
        let stage = Stage::with(TopicSettings {
            max_ready,
            ..settings.clone()
        })
        .await;
        stage.pause_group("b", true).await;
        stage.send(&[message("m1", ms(0)).merge("x")]).await;
        let name = stage.topic().name();
        let declared = stage.broker().declare(name, &settings, Declare::Update);
        declared.await.unwrap();
        stage.pass(5).await;
        let states = stage.states().await;
        assert!(states.contains(&end.to_owned()), "{states:?}");
        assert!(stage.hash("merge").await.is_empty(), "{states:?}");
        stage.assert_whole().await;
    }
}

#[tokio::test]
async fn what_has_lapsed_and_waits_to_be_found_so_is_not_merged_into() {
    for &merge in Merge::ALL {
        let stage = Stage::with(TopicSettings {
            merge,
            max_lateness: Some(ms(100)),
            on_late: OnLate::Drop,
            on_expired: OnExpired::Drop,
            ..groups(&["a"])
        })
        .await;
        stage.broker().pause(stage.topic(), true).await.unwrap();
        let first = [
            message("m1", ms(0)).merge("x").ttl(5),
            message("m2", ms(0)).merge("y"),
        ];
        stage.send(&first).await;
        stage.step(5);
        let (over, alive) = (
            message("m3", ms(0)).merge("x"),
            message("m4", ms(0)).merge("y"),
        );
        let outcome = if merge == Merge::Reject {
            "duplicate"
        } else {
            "merged"
        };
        let due = if merge == Merge::Last { 5 } else { 0 };
        assert_eq!(
            stage.sent(&[over, alive]).await,
            ["waiting m3@5".to_owned(), format!("{outcome} m2@{due}")],
        );
        stage.step(100);
        let late = message("m5", ms(0)).merge("y");
        assert_eq!(stage.sent(&[late]).await, ["waiting m5@105"]);
        stage.broker().pause(stage.topic(), false).await.unwrap();
        stage.moved().await;
        assert_eq!(stage.count("expired:a").await, 3);
        assert_eq!(stage.drain("a").await, ["m5"]);
        assert!(stage.hash("merge").await.is_empty());
        stage.assert_whole().await;
    }
}

#[tokio::test]
async fn a_cancelled_message_is_not_merged_into() {
    let stage = stage(Merge::Last).await;
    stage.send(&[message("m1", ms(9)).merge("x")]).await;
    stage.cancel("m1").await;
    assert_eq!(stage.states().await, ["tomb m1 cancelled@0"]);
    let later = [message("m2", ms(5)).merge("x")];
    assert_eq!(stage.sent(&later).await, ["waiting m2@5"]);
    stage.assert_whole().await;
}

#[tokio::test]
async fn the_ordering_key_belongs_to_the_merge_key() {
    let stage = stage(Merge::Last).await;
    let sent = stage
        .sent(&[
            message("m1", ms(9)).merge("x"),
            message("m2", ms(9)).merge("x").key("k"),
            message("m3", ms(9)).merge("x").key("kx"),
            message("m4", ms(9)).merge("xx").key("k"),
            message("m5", ms(8)).merge("x").key("k"),
        ])
        .await;
    assert_eq!(
        sent,
        [
            "waiting m1@9",
            "waiting m2@9",
            "waiting m3@9",
            "waiting m4@9",
            "merged m2@8"
        ]
    );
    assert_eq!(
        stage.states().await[0],
        "merge /x=m1, k/x=m2, k/xx=m4, kx/x=m3"
    );
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_repeated_send_that_was_merged_does_not_undo_a_newer_one() {
    let stage = stage(Merge::Last).await;
    stage.send(&[message("m1", ms(100)).merge("x")]).await;
    let repeated = [message("m2", ms(50)).merge("x")];
    stage.send(&repeated).await;
    stage.send(&[message("m3", ms(70)).merge("x")]).await;
    let before = stage.snapshot().await;
    assert_eq!(stage.sent(&repeated).await, ["merged m1@70"]);
    let written = before.diff(&stage.snapshot().await);
    assert_eq!(written, "+ v1:{t:0}:stats  duplicates = 1\n", "{written}");
    stage.assert_whole().await;
}

#[tokio::test]
async fn messages_of_one_call_are_merged_in_their_order() {
    let stage = stage(Merge::Last).await;
    let sent = stage
        .sent(&[
            message("m1", ms(100)).merge("x"),
            message("m2", ms(50)).merge("x"),
            message("m3", ms(70)).merge("x"),
        ])
        .await;
    assert_eq!(sent, ["waiting m1@100", "merged m1@50", "merged m1@70"]);
    assert!(payload(&stage, "m1").await.ends_with("payload of m3"));
    assert_eq!(stage.zset("waiting").await.len(), 1);
    stage.assert_whole().await;
}

#[tokio::test]
async fn a_merged_message_arrives_again() {
    let stage = stage(Merge::Last).await;
    stage.pause_group("a", true).await;
    stage.send(&[message("m1", ms(5)).merge("x")]).await;
    stage.send(&[message("m2", ms(5)).merge("y")]).await;
    stage.send(&[message("m3", ms(5)).merge("x")]).await;
    stage.pause_group("a", false).await;
    stage.pass(5).await;
    assert_eq!(stage.drain("a").await, ["m2", "m1"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_merge_that_is_handled_leaves_nothing_but_its_ids() {
    let stage = stage(Merge::Last).await;
    stage.send(&[message("m1", ms(0)).merge("x")]).await;
    stage.send(&[message("m2", ms(0)).merge("x")]).await;
    stage.moved().await;
    stage.run("a", "m1", Verdict::Ack).await;
    assert_eq!(stage.states().await, ["tomb m1 acked@0, m2 merged@0"]);
    let found = stage.broker().lookup(stage.topic(), &id("m2"), None).await;
    let end = Some(lisa_core::state::Ended {
        how: lisa_core::state::End::Merged,
        into: Some(id("m1")),
    });
    assert_eq!(found.unwrap(), lisa_core::broker::Found::Unknown { end });
    stage.assert_nothing_is_left().await;
}

/// Either a process or a person repeats it, before the survivor is delivered or after.
#[tokio::test]
async fn a_repeat_of_a_merged_send_names_the_survivor_again() {
    for &merge in &[Merge::First, Merge::Last] {
        let stage = stage(merge).await;
        let later = message("m2", ms(9)).merge("x");
        stage.send(&[message("m1", ms(9)).merge("x")]).await;
        for _ in 0..2 {
            let sent = stage.sent(std::slice::from_ref(&later)).await;
            assert_eq!(sent, ["merged m1@9"]);
        }
        let counts = (stage.count("merged").await, stage.count("duplicates").await);
        assert_eq!(counts, (1, 1));
        let unknown = "unknown merged into m1";
        assert_eq!(stage.cancel("m2").await, unknown);
        assert_eq!(stage.reschedule("m2", ms(0)).await, unknown);
        stage.pass(9).await;
        stage.run("a", "m1", Verdict::Ack).await;
        assert_eq!(stage.sent(&[later]).await, ["merged m1"]);
        stage.assert_nothing_is_left().await;
    }
}

/// The topic uses no feature any more, and neither does the repeat.
#[tokio::test]
async fn a_plain_topic_names_the_survivor_of_a_merged_id() {
    let stage = stage(Merge::First).await;
    let sends = ["m1", "m2"].map(|name| message(name, ms(0)).merge("x"));
    stage.send(&sends).await;
    stage.moved().await;
    stage.run("a", "m1", Verdict::Ack).await;
    let (topic, group) = (stage.topic(), &stage.topic().groups()[0]);
    stage
        .broker()
        .clean(topic, SHARD, group, None)
        .await
        .unwrap();
    assert_eq!(stage.sent(&[message("m2", ms(0))]).await, ["merged m1"]);
    assert_eq!(stage.hash("conf").await["class"], "plain");
    let window = topic.settings().dedup_window.as_millis() as u64;
    stage.step(window as i64 + 1);
    let sent = stage.sent(&[message("m2", ms(9))]).await;
    assert_eq!(sent, [format!("waiting m2@{}", window + 10)]);
    assert_eq!(
        stage.hash("into").await.len(),
        0,
        "it is a message of its own now"
    );
}

/// Its record is that of the last send, whose id may have been made by Lisa.
#[tokio::test]
async fn a_send_repeated_after_its_survivor_was_handled_does_not_undo_the_newer_one() {
    let makers: [fn(&str, Duration) -> PreparedMessage; 2] = [message, nameless];
    for (first, last) in [(0, 1), (1, 1), (1, 0)] {
        let stage = stage(Merge::Last).await;
        let one = makers[first]("m1", ms(0)).merge("x");
        stage.send(std::slice::from_ref(&one)).await;
        let two = makers[last]("m2", ms(0)).merge("x");
        stage.send(std::slice::from_ref(&two)).await;
        stage.moved().await;
        stage.run("a", "m1", retry(ms(0))).await;
        stage.moved().await;
        let read = stage.begin("a", "m1").await;
        let settlement = Settlement {
            caller_id: two.record.caller_id,
            ..settlement(&read, Verdict::Ack)
        };
        stage.end_all("a", &[settlement]).await;
        assert_eq!(stage.states().await, ["tomb m1 acked@0, m2 merged@0"]);
        assert_eq!(stage.sent(&[one]).await, ["duplicate m1 acked"]);
        stage.assert_nothing_is_left().await;
    }
}

/// The keys of the shard are deleted by hand, except for the merge keys.
#[tokio::test]
async fn a_merge_key_whose_message_is_gone_takes_no_other_along() {
    for &merge in Merge::ALL {
        let stage = stage(merge).await;
        stage.send(&[message("m1", ms(9)).merge("x")]).await;
        for what in ["waiting", "payload", "meta"] {
            let _: u64 = stage.command(cmd("DEL").arg(stage.key(what))).await;
        }
        let sent = stage.sent(&[message("m2", ms(9)).merge("x")]).await;
        assert_eq!(sent, ["waiting m2@9"]);
        let sent = stage.sent(&[message("m3", ms(9)).merge("x")]).await;
        assert!(sent[0].ends_with(" m2@9"), "{sent:?}");
    }
}

/// The expiry that a send sets on a message counts for the rest of the send, too.
#[tokio::test]
async fn what_lapses_by_a_send_is_not_merged_into_by_its_next_line() {
    let stage = stage(Merge::Last).await;
    stage.step(10);
    let lines = [
        message("m1", ms(100)).merge("x"),
        message("m2", ms(100)).merge("x").expires(5),
        message("m3", ms(100)).merge("x"),
    ];
    let sent = ["waiting m1@110", "merged m1@110", "waiting m3@110"];
    assert_eq!(stage.sent(&lines).await, sent);
    stage.assert_whole().await;
}
