//! A key of a wrong type is refused whole by every script: nothing is written, and the same call works once the key is
//! gone.

use super::calls::{Busy, CASES, Case, Verb, plain, two_groups};
use super::stage::{groups, name};
use lisa_core::broker::Declare;

/// All keys of a shard that every general script looks at.
const OF_SHARD: [&str; 8] = [
    "conf", "stats", "waiting", "payload", "meta", "merge", "left", "tomb",
];
/// All keys of a group.
const OF_GROUP: [&str; 9] = [
    "ready",
    "retry",
    "attempts",
    "backlog",
    "parked",
    "holder",
    "garbage",
    "garbage_info",
    "garbage_hook",
];
/// The calls of the other scripts, and all keys of a plain topic that each of them looks at.
const OTHERS: [(&str, Verb, &str); 9] = [
    (
        "send_plain",
        Verb::SendPlain,
        "conf stats waiting payload ready:a tomb into",
    ),
    (
        "send_plain of new ids",
        Verb::SendNew,
        "conf stats waiting payload ready:a",
    ),
    (
        "move_due_plain",
        Verb::MoveDue,
        "conf stats waiting retry:a ready:a attempts:a",
    ),
    (
        "ack_plain",
        Verb::Ack,
        "conf stats payload ready:a attempts:a tomb",
    ),
    ("declare", Verb::Declare, "conf ready:a"),
    ("drop_consumer", Verb::DropConsumer, "ready:a"),
    ("forget", Verb::Forget, "stats tomb into"),
    (
        "take_garbage_hooks",
        Verb::TakeGarbageHooks,
        "conf stats garbage:a garbage_info:a garbage_hook:a",
    ),
    (
        "finish_garbage_hook",
        Verb::FinishGarbageHook,
        "garbage:a garbage_hook:a",
    ),
];

/// All keys of a shard and of these groups.
fn keys(groups: &[&str]) -> Vec<String> {
    let of_groups = groups
        .iter()
        .flat_map(|group| OF_GROUP.map(|key| format!("{key}:{group}")));
    let of_shard = OF_SHARD.iter().map(|key| (*key).to_owned());
    of_shard.chain(of_groups).collect()
}

async fn assert_refused_whole(busy: &Busy, script: &str, verb: Verb, keys: &[&str]) {
    let stage = &busy.stage;
    verb.prepare(busy).await;
    stage
        .assert_wrong_types_are_refused_whole(script, keys, async || verb.call(busy).await)
        .await;
    // Nothing was damaged: the same call does its work now, or the test would prove nothing.
    let before = stage.snapshot().await;
    let outcome = verb.call(busy).await.unwrap();
    let changed = before != stage.snapshot().await;
    let reads = matches!(verb, Verb::Lookup | Verb::Stats);
    assert_eq!(changed, !reads, "{script}: {outcome}");
    stage.assert_whole().await;
}

async fn assert_general_refuses(busy: &Busy, case: &Case, groups: &[&str]) {
    let keys = keys(groups);
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_refused_whole(busy, case.what, case.call, &keys).await;
}

#[tokio::test]
async fn a_wrong_type_anywhere_is_refused_whole_by_every_script() {
    for case in CASES {
        assert_general_refuses(&two_groups().await, &case, case.groups).await;
    }
}

/// These scripts are the same for plain and general topics.
#[tokio::test]
async fn a_wrong_type_on_a_plain_topic_is_refused_whole_by_every_general_script() {
    for case in CASES {
        if matches!(
            case.call,
            Verb::Send | Verb::SendMerged | Verb::SendReplacing | Verb::MoveDue | Verb::Ack
        ) {
            continue;
        }
        let busy = plain().await;
        assert_eq!(busy.stage.conf("class").await.unwrap(), "plain");
        let groups = &case.groups[..case.groups.len().min(1)];
        assert_general_refuses(&busy, &case, groups).await;
    }
}

#[tokio::test]
async fn a_wrong_type_on_a_plain_topic_is_refused_whole_by_every_other_script() {
    for (script, verb, keys) in OTHERS {
        let busy = plain().await;
        assert_eq!(busy.stage.conf("class").await.unwrap(), "plain");
        let keys: Vec<&str> = keys.split(' ').collect();
        assert_refused_whole(&busy, script, verb, &keys).await;
    }
}

#[tokio::test]
async fn a_declaration_or_a_join_onto_a_wrong_type_changes_nothing() {
    let busy = two_groups().await;
    let (broker, topic) = (busy.stage.broker(), busy.stage.topic());
    let other = groups(&["a", "b", "c"]);
    let declare = async || broker.declare(topic.name(), &other, Declare::Update).await;
    let stage = &busy.stage;
    stage
        .assert_wrong_types_are_refused_whole("declare", &["conf", "ready:a"], declare)
        .await;
    let join = async || broker.join(topic, &name("instance-1")).await;
    stage
        .assert_wrong_types_are_refused_whole("join", &["conf", "ready:instance-1"], join)
        .await;
    stage.assert_whole().await;
}
