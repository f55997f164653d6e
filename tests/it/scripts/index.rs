//! The index of ordering keys: a message is in it from its send to its end.

use super::stage::{Asking, Stage};
use lisa_core::broker::Verdict;
use lisa_core::topic::TopicSettings;
use lisa_tests::relay::{message, ms, settings};

async fn stage(key_index: bool) -> Stage {
    Stage::with(TopicSettings {
        key_index,
        ..settings()
    })
    .await
}

/// The ids in the index, with their keys.
async fn indexed(stage: &Stage) -> Vec<String> {
    let members = stage.zset("bykey").await;
    members
        .into_keys()
        .map(|member| member.replace("\\x00", "/"))
        .collect()
}

#[tokio::test]
async fn a_message_with_a_key_is_in_the_index_until_it_ends() {
    let stage = stage(true).await;
    let hour = ms(3_600_000);
    stage
        .send(&[
            message("acked", ms(0)).key("k"),
            message("cancelled", hour).key("k"),
            message("replaced", hour).key("k"),
            message("merged", hour).key("k").merge("m"),
            message("plain", hour),
            message("other", hour).key("kk"),
        ])
        .await;
    let all = [
        "k/acked",
        "k/cancelled",
        "k/merged",
        "k/replaced",
        "kk/other",
    ];
    assert_eq!(indexed(&stage).await, all);
    stage
        .send(&[
            message("again", hour).key("k").merge("m"),
            message("new", hour).key("k").replacing("replaced"),
        ])
        .await;
    stage.cancel("cancelled").await;
    assert_eq!(
        indexed(&stage).await,
        ["k/acked", "k/merged", "k/new", "kk/other"]
    );
    stage.pass(5).await;
    let read = stage.begin("default", "acked").await;
    assert_eq!(indexed(&stage).await.len(), 4);
    stage.end("default", &read, Verdict::Ack).await;
    for id in ["merged", "new", "other", "plain"] {
        stage.cancel(id).await;
    }
    assert_eq!(indexed(&stage).await, [""; 0]);
}

#[tokio::test]
async fn what_is_sent_without_the_setting_is_not_in_the_index_and_what_is_there_leaves_it_all_the_same()
 {
    let mut stage = stage(false).await;
    for (id, key_index) in [("first", true), ("second", false), ("third", true)] {
        let settings = TopicSettings {
            key_index,
            ..settings()
        };
        stage.update(settings).await;
        stage.send(&[message(id, ms(3_600_000)).key("k")]).await;
    }
    assert_eq!(indexed(&stage).await, ["k/first", "k/third"]);
    stage.update(settings()).await;
    for id in ["first", "second", "third"] {
        stage.cancel(id).await;
    }
    assert_eq!(indexed(&stage).await, [""; 0]);
}
