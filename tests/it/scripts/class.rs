//! The class of a topic: general as soon as a message has options, plain again when none of them is left.

use super::fanout::{DROP, remove, retire};
use super::stage::{Asking, SHARD, Stage, groups, name, reject};
use lisa_core::broker::Broker;
use lisa_core::message::PreparedMessage;
use lisa_core::state::SendOutcome;
use lisa_core::time::When;
use lisa_core::topic::{OnExpired, TopicSettings};
use lisa_service::metrics::Metrics;
use lisa_tests::Server;
use lisa_tests::relay::{connection, message, ms, settings};
use redis::cmd;
use std::time::Duration;

async fn clean(stage: &Stage, group: &str) {
    let (broker, topic) = (stage.broker(), stage.topic());
    broker
        .clean(topic, SHARD, &name(group), None)
        .await
        .unwrap();
}

async fn class(stage: &Stage) -> String {
    stage.conf("class").await.unwrap()
}

#[tokio::test]
async fn any_option_of_a_message_makes_the_topic_general() {
    let asking: [fn(PreparedMessage) -> PreparedMessage; 5] = [
        |m| m.key("k"),
        |m| m.merge("x"),
        |m| m.priority(-1),
        |m| m.ttl(1),
        |m| m.expires(60_000),
    ];
    for ask in asking {
        let stage = Stage::of(&["a"]).await;
        stage.send(&[message("old", ms(9))]).await;
        assert_eq!(class(&stage).await, "plain");
        stage.send(&[ask(message("m", ms(9)))]).await;
        assert_eq!(class(&stage).await, "general");
        assert_eq!(stage.stats().await.class, "general");
        stage.assert_whole().await;
    }
}

#[tokio::test]
async fn a_message_that_only_replaces_another_or_is_refused_leaves_the_topic_plain() {
    let stage = Stage::of(&["a"]).await;
    stage.send(&[message("old", ms(9))]).await;
    let items = [
        message("m1", ms(9)).replacing("nobody"),
        message("m2", ms(9))
            .replacing("nobody")
            .key("k")
            .priority(1),
        message("m3", ms(9)).replacing("old"),
    ];
    for item in items {
        stage.send(&[item]).await;
        assert_eq!(class(&stage).await, "plain");
        assert_eq!(stage.conf("window").await, None);
        stage.assert_whole().await;
    }
    assert_eq!(
        stage.states().await,
        ["tomb old cancelled@0", "waiting m3@9"]
    );
    // In one call with a message that is stored, the refused one changes nothing either.
    let call = [
        message("m4", ms(9)),
        message("m5", ms(9)).replacing("nobody").priority(1),
    ];
    stage.send(&call).await;
    assert_eq!(class(&stage).await, "plain");
    stage.assert_whole().await;
}

#[tokio::test]
async fn what_was_sent_before_is_delivered_by_a_topic_that_became_general() {
    let stage = Stage::of(&["a"]).await;
    stage
        .send(&[message("now", When::NOW), message("later", ms(5))])
        .await;
    stage.send(&[message("asking", ms(5)).key("k")]).await;
    stage.pass(5).await;
    assert_eq!(stage.drain("a").await, ["now", "later", "asking"]);
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_general_topic_puts_nothing_straight_on_the_stream() {
    let stage = Stage::of(&["a"]).await;
    stage.send(&[message("m", ms(9)).key("k")]).await;
    let sent = stage.sent(&[message("now", When::NOW)]).await;
    assert_eq!(sent, ["waiting now@0"]);
    assert_eq!(stage.ready("a").await, [""; 0]);
    stage.assert_whole().await;
}

/// It is sent in parts of fifty.
#[tokio::test]
async fn of_a_long_batch_only_the_last_message_may_ask_for_something() {
    let stage = Stage::of(&["a"]).await;
    let mut batch: Vec<PreparedMessage> =
        (0..60).map(|n| message(&format!("m{n}"), ms(9))).collect();
    batch.push(message("asking", ms(9)).key("k"));
    assert_eq!(stage.sent(&batch).await.len(), 61);
    assert_eq!(class(&stage).await, "general");
    assert_eq!(stage.stats().await.waiting, 61);
    stage.assert_whole().await;
}

#[tokio::test]
async fn an_empty_topic_becomes_plain_and_forgets_its_window() {
    let stage = Stage::of(&["a"]).await;
    stage.put(&[message("m", ms(0)).priority(1).key("k")]).await;
    assert_eq!(stage.conf("window").await, Some("100".to_owned()));
    clean(&stage, "a").await;
    assert_eq!(class(&stage).await, "general");
    stage.handle("a").await;
    assert_eq!(stage.conf("window").await, None);
    clean(&stage, "a").await;
    assert_eq!(class(&stage).await, "plain");
    let sent = stage.send(&[message("now", When::NOW)]).await;
    assert_eq!(sent[0].outcome, SendOutcome::Ready);
    stage.assert_whole().await;
}

#[tokio::test]
async fn the_window_goes_with_the_last_message_that_brought_it_whatever_the_class() {
    let settings = TopicSettings {
        max_messages: Some(1000),
        ..groups(&["a", "b"])
    };
    let stage = Stage::with(settings).await;
    let ranked = [
        message("p", ms(5000)).priority(1),
        message("m", ms(5000)).merge("x"),
    ];
    stage.send(&ranked).await;
    for part in 0..3 {
        let names: Vec<_> = (0..50).map(|n| format!("n{part}-{n}")).collect();
        let messages: Vec<_> = names.iter().map(|name| message(name, ms(0))).collect();
        stage.send(&messages).await;
    }
    while stage.moved().await.0 > 0 {}
    let counts = async || {
        let groups = stage.stats().await.groups;
        [&groups[0], &groups[1]].map(|group| (group.ready, group.backlog))
    };
    assert_eq!(counts().await, [(100, 50); 2]);
    assert_eq!(stage.cancel("p").await, "cancelled");
    assert_eq!(stage.conf("window").await, Some("100".to_owned()));
    assert_eq!(stage.cancel("m").await, "cancelled");
    assert_eq!(stage.conf("window").await, None);
    // The mover is woken, and releases the rest.
    assert_eq!(stage.count("alarm").await, stage.now().get() as i64);
    while stage.moved().await.1 == 0 {}
    assert_eq!(counts().await, [(150, 0); 2]);
    assert_eq!(stage.count("ranked").await, 0);
    stage.assert_whole().await;
}

#[tokio::test]
async fn the_window_goes_however_the_last_ranked_message_ends() {
    let ends = ["acked", "purged", "expired", "replaced", "dropped"];
    for end in ends {
        let mut stage = Stage::of(&["a", "b"]).await;
        stage.send(&[message("p", ms(5)).priority(1).ttl(10)]).await;
        assert_eq!(stage.conf("window").await, Some("100".to_owned()), "{end}");
        match end {
            "expired" => {
                let dropping = TopicSettings {
                    on_expired: OnExpired::Drop,
                    ..groups(&["a", "b"])
                };
                stage.update(dropping).await;
                stage.pass(15).await;
            }
            "replaced" => {
                let sent = stage.sent(&[message("n", ms(5)).replacing("p")]).await;
                assert_eq!(sent, ["waiting n@5"]);
            }
            "acked" | "purged" | "dropped" => {
                stage.pass(5).await;
                stage.handle("a").await;
                assert_eq!(stage.conf("window").await, Some("100".to_owned()), "{end}");
                if end == "acked" {
                    stage.handle("b").await;
                } else if end == "purged" {
                    stage.run("b", "p", reject()).await;
                    assert_eq!(stage.purge("b", "p", 5).await, 1);
                } else {
                    retire(&stage, "b", DROP).await;
                    remove(&stage, "b").await;
                    stage.refresh().await;
                }
            }
            _ => unreachable!(),
        }
        assert_eq!(stage.conf("window").await, None, "{end}");
        stage.assert_conserved().await;
    }
}

#[tokio::test]
async fn a_ranked_message_that_finds_no_room_leaves_no_window_behind() {
    let stage = Stage::with(TopicSettings {
        max_messages: Some(1),
        ..groups(&["a"])
    })
    .await;
    stage.send(&[message("m", ms(5))]).await;
    let sent = stage.sent(&[message("p", ms(5)).priority(1)]).await;
    assert_eq!(sent, ["full p"]);
    assert_eq!(stage.conf("window").await, None);
}

#[tokio::test]
async fn clean_corrects_a_count_of_ranked_messages_that_are_gone() {
    let stage = Stage::of(&["a", "b"]).await;
    stage.put(&[message("p", ms(0)).priority(1)]).await;
    let () = stage.command(cmd("DEL").arg(stage.key("meta"))).await;
    for group in ["a", "b"] {
        stage.handle(group).await;
    }
    assert_eq!(stage.conf("window").await, Some("100".to_owned()));
    clean(&stage, "a").await;
    assert_eq!(stage.conf("window").await, None);
}

#[tokio::test]
async fn only_a_priority_or_a_merge_key_brings_a_window() {
    let stage = Stage::of(&["a"]).await;
    stage
        .send(&[message("m1", ms(9)).key("k").ttl(5), message("m2", ms(9))])
        .await;
    assert_eq!(stage.conf("window").await, None);
    stage.send(&[message("m3", ms(9)).merge("x")]).await;
    assert_eq!(stage.conf("window").await, Some("100".to_owned()));
}

#[tokio::test]
async fn max_ready_stands_for_the_window() {
    let stage = Stage::with(TopicSettings {
        max_ready: Some(7),
        ..groups(&["a"])
    })
    .await;
    stage.send(&[message("m", ms(9)).priority(1)]).await;
    assert_eq!(stage.conf("window").await, None);
}

#[tokio::test]
async fn a_shard_has_its_share_of_the_window() {
    let stage = Stage::with(TopicSettings {
        shards: 3,
        ..settings()
    })
    .await;
    stage.send(&[message("m", ms(9)).priority(1)]).await;
    assert_eq!(stage.conf("window").await, Some("34".to_owned()));
}

#[tokio::test]
async fn a_topic_stays_general_while_something_is_stored_that_asks() {
    let stage = Stage::of(&["a"]).await;
    stage.send(&[message("m", ms(9)).ttl(50)]).await;
    clean(&stage, "a").await;
    assert_eq!(class(&stage).await, "general");
    stage.cancel("m").await;
    clean(&stage, "a").await;
    assert_eq!(class(&stage).await, "plain");
    stage.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_topic_stays_general_whose_settings_ask() {
    let mut stage = Stage::with(TopicSettings {
        ttl: Some(ms(5)),
        ..groups(&["a"])
    })
    .await;
    assert_eq!(class(&stage).await, "general");
    clean(&stage, "a").await;
    assert_eq!(class(&stage).await, "general");
    stage.update(groups(&["a"])).await;
    clean(&stage, "a").await;
    assert_eq!(class(&stage).await, "plain");
}

#[tokio::test]
async fn a_topic_of_two_groups_stays_general() {
    let stage = Stage::of(&["a", "b"]).await;
    clean(&stage, "a").await;
    assert_eq!(class(&stage).await, "general");
}

#[tokio::test]
async fn a_topic_of_a_paused_group_stays_general() {
    let stage = Stage::of(&["a"]).await;
    assert!(stage.pause_group("a", true).await);
    clean(&stage, "a").await;
    assert_eq!(class(&stage).await, "general");
    assert!(stage.pause_group("a", false).await);
    clean(&stage, "a").await;
    assert_eq!(class(&stage).await, "plain");
}

/// A class that one call notes must not undo the one that the other has noted.
#[tokio::test]
async fn two_calls_that_find_at_once_that_the_topic_became_plain_each_try_again_once() {
    let stage = Stage::of(&["a"]).await;
    let namespace = stage.broker().namespace().clone();
    let metrics = Metrics::new(Default::default(), "1", "test");
    let (connection, call_timeout) = (connection(Server::shared()).await, Duration::from_secs(30));
    let other = Broker::new(
        connection,
        namespace,
        call_timeout,
        Some(std::sync::Arc::new(metrics.clone())),
    );
    other.set_virtual_now(stage.broker().now());
    let topic = other.topic(stage.topic().name()).await.unwrap();
    let asking = [message("asking", ms(0)).key("k")];
    other.send(&topic, SHARD, &asking).await.unwrap();
    stage.pass(1).await;
    assert_eq!(stage.drain("a").await, ["asking"]);
    clean(&stage, "a").await;
    assert_eq!(class(&stage).await, "plain");
    let calls = || -> u64 {
        let text = metrics.encode();
        let counts = text
            .lines()
            .filter(|line| line.starts_with("lisa_script_seconds_count"));
        counts
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum()
    };
    let before = calls();
    let [one, two] = ["one", "two"].map(|name| [message(name, ms(9))]);
    // Both are on their way before either is answered.
    let sent = tokio::join!(
        other.send(&topic, SHARD, &one),
        other.send(&topic, SHARD, &two),
    );
    for sent in [sent.0, sent.1] {
        assert_eq!(sent.unwrap()[0].outcome, SendOutcome::Waiting);
    }
    assert_eq!(calls() - before, 4);
    assert_eq!(class(&stage).await, "plain");
}
