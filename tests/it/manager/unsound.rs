//! The doctor's treatment of settings that are missing or wrong, and of keys that are not ours.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::SOON;
use lisa_core::broker::{Broker, Checkup, Declare, Fault, Outcome, TopicHandle};
use lisa_core::topic::{Shard, Topic, TopicSettings};
use lisa_tests::relay::{self, message, ms};
use lisa_tests::{Binary, Server};
use redis::cmd;
use serde_json::{Value, json};

/// A topic on two shards, whose settings only Redis knows.
struct Ward {
    server: Server,
    topic: Topic,
}

fn settings() -> TopicSettings {
    TopicSettings {
        groups: ["a", "b"].map(|group| group.parse().unwrap()).to_vec(),
        shards: 2,
        max_ready: Some(40),
        rate: Some("100/s".parse().unwrap()),
        ..TopicSettings::default()
    }
}

impl Ward {
    async fn new() -> Self {
        let ward = Self {
            server: Server::start(),
            topic: "t".parse().unwrap(),
        };
        let broker = ward.stranger().await;
        let handle = ward.declare(&settings(), Declare::Create).await;
        for shard in handle.shards() {
            let messages = ["m1", "m2"].map(|id| message(id, ms(3_600_000)));
            broker.send(&handle, shard, &messages).await.unwrap();
        }
        ward
    }

    /// A process without any cached settings.
    async fn stranger(&self) -> Broker {
        let namespace = "lisa".parse().unwrap();
        Broker::new(relay::connection(&self.server).await, namespace, SOON, None)
    }

    async fn declare(&self, settings: &TopicSettings, mode: Declare) -> Arc<TopicHandle> {
        let broker = self.stranger().await;
        broker.declare(&self.topic, settings, mode).await.unwrap()
    }

    async fn command(&self, words: &[&str]) {
        let mut command = cmd(words[0]);
        command.arg(&words[1..]);
        let done = command
            .query_async(&mut self.server.connection().await)
            .await;
        let _: redis::Value = done.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    }

    /// The settings of a shard, without the counter and the time of their changes.
    async fn conf(&self, shard: u16) -> BTreeMap<String, String> {
        let mut get = cmd("HGETALL");
        get.arg(format!("lisa:v1:{{t:{shard}}}:conf"));
        let mut connection = self.server.connection().await;
        let mut conf: BTreeMap<String, String> = get.query_async(&mut connection).await.unwrap();
        for changed in ["created", "epoch", "version"] {
            conf.remove(changed);
        }
        conf
    }

    async fn examine(&self, repair: bool) -> Checkup {
        let broker = self.stranger().await;
        broker.examine_by_name(&self.topic, repair).await.unwrap()
    }
}

/// Returns the findings of a fault, and the outcome of each.
fn reported(checkup: &Checkup, fault: Fault) -> Vec<(Shard, Outcome, &str)> {
    let findings = checkup.findings.iter();
    let findings = findings.filter(|finding| finding.fault == fault);
    findings
        .map(|finding| (finding.shard, finding.outcome, &*finding.seen))
        .collect()
}

#[tokio::test]
async fn settings_that_some_shard_has_are_found_and_repaired() {
    let ward = Ward::new().await;
    let (zero, one) = ("lisa:v1:{t:0}:conf", "lisa:v1:{t:1}:conf");
    let before = [ward.conf(0).await, ward.conf(1).await];
    for (damage, shard, seen) in [
        (&["DEL", one][..], 1, "all fields are missing; shard 0 has"),
        (&["DEL", zero], 0, "all fields are missing; shard 1 has"),
        (&["HDEL", zero, "settings"], 0, "settings is missing"),
        (&["HSET", one, "settings", "{"], 1, "settings is wrong"),
        (
            &["HSET", zero, "settings", r#"{"shards":2}"#],
            0,
            "settings is wrong",
        ),
        (&["HDEL", zero, "groups"], 0, "groups is missing; shard 1"),
        (&["HSET", one, "groups", "a B!"], 1, "groups is wrong"),
        (
            &["HDEL", zero, "epoch", "class"],
            0,
            "epoch is missing, class is missing; shard 0 has",
        ),
        (
            &["HSET", one, "class", "?"],
            1,
            "class is wrong; shard 1 has",
        ),
        (&["HDEL", zero, "shards"], 0, "shards is missing"),
        (
            &["HSET", one, "max_ready", "1"],
            1,
            "max_ready is wrong; shard 1",
        ),
        (
            &["HDEL", one, "features", "interval"],
            1,
            "features is missing, interval is missing",
        ),
    ] {
        ward.command(damage).await;
        let broken = ward.conf(shard).await;
        for _ in 0..2 {
            let checkup = ward.examine(false).await;
            let told = reported(&checkup, Fault::Settings);
            assert_eq!(told.len(), 1, "{damage:?}: {checkup:#?}");
            let (of, outcome, text) = told[0];
            assert_eq!(
                (of, outcome),
                (Shard::new(shard), Outcome::Found),
                "{damage:?}"
            );
            assert!(text.contains(seen), "{damage:?}: {text}");
            assert_eq!(checkup.findings.len(), 1, "{damage:?}: {checkup:#?}");
            assert_eq!(ward.conf(shard).await, broken, "a look changes nothing");
        }

        let checkup = ward.examine(true).await;
        assert_eq!(
            checkup.count(Outcome::Repaired),
            1,
            "{damage:?}: {checkup:#?}"
        );
        assert_eq!(checkup.messages, 4, "the rest was examined, too");
        for shard in [0, 1] {
            let is = ward.conf(shard).await;
            assert_eq!(is, before[usize::from(shard)], "{damage:?}");
        }
        let checkup = ward.examine(false).await;
        assert_eq!(checkup.findings, [], "{damage:?}");
        assert!(checkup.is_healthy());
    }
}

#[tokio::test]
async fn settings_that_differ_from_those_of_the_first_shard_are_found_and_repaired() {
    let ward = Ward::new().await;
    let before = [ward.conf(0).await, ward.conf(1).await];
    let other = TopicSettings {
        max_attempts: 9,
        ..settings()
    };
    ward.command(&["DEL", "lisa:v1:{t:1}:conf"]).await;
    ward.command(&["RENAME", "lisa:v1:{t:0}:conf", "lisa:v1:{t:0}:aside"])
        .await;
    ward.declare(&other, Declare::Create).await;
    ward.command(&["RENAME", "lisa:v1:{t:0}:aside", "lisa:v1:{t:0}:conf"])
        .await;
    let seen = "conf: the settings differ from those of shard 0";
    for (repair, outcome) in [(false, Outcome::Found), (true, Outcome::Repaired)] {
        let checkup = ward.examine(repair).await;
        let expected = [(Shard::new(1), outcome, seen)];
        assert_eq!(reported(&checkup, Fault::Settings), expected);
        assert_eq!(checkup.findings.len(), 1, "{checkup:#?}");
    }
    assert_eq!([ward.conf(0).await, ward.conf(1).await], before);
    assert!(ward.examine(false).await.is_healthy());
}

#[tokio::test]
async fn settings_that_no_shard_has_are_left_until_a_manager_declares_them() {
    let ward = Ward::new().await;
    for shard in [0, 1] {
        let conf = format!("lisa:v1:{{t:{shard}}}:conf");
        ward.command(&["HDEL", &conf, "settings", "shards"]).await;
    }
    for repair in [false, true] {
        let checkup = ward.examine(repair).await;
        let told = reported(&checkup, Fault::Settings);
        assert_eq!(told.len(), 2, "{checkup:#?}");
        for (_, outcome, seen) in told {
            assert_eq!(outcome, Outcome::Found);
            assert!(seen.contains("restart a manager"), "{seen}");
        }
        assert!(!checkup.is_healthy());
    }
    ward.declare(&settings(), Declare::Update).await;
    let checkup = ward.examine(false).await;
    assert_eq!(
        (checkup.findings.as_slice(), checkup.messages),
        (&[][..], 4)
    );
}

#[tokio::test]
async fn what_is_repaired_never_takes_the_place_of_newer_settings() {
    let ward = Ward::new().await;
    let (doctor, manager) = (ward.stranger().await, ward.stranger().await);
    for round in 1..=60 {
        ward.command(&["HDEL", "lisa:v1:{t:0}:conf", "max_ready"])
            .await;
        let newer = TopicSettings {
            max_ready: Some(40 + 2 * round),
            ..settings()
        };
        // In each round the change comes one reply of Redis later: before the check, between it and the repair, after
        // both.
        let declare = async {
            for _ in 0..round % 20 {
                manager.refresh().await.unwrap();
            }
            manager
                .declare(&ward.topic, &newer, Declare::Update)
                .await
                .unwrap()
        };
        let (examined, declared) = tokio::join!(doctor.examine_by_name(&ward.topic, true), declare);
        assert_eq!(declared.settings().max_ready, newer.max_ready);
        examined.unwrap();
        for shard in [0, 1] {
            let conf = ward.conf(shard).await;
            let held: TopicSettings = serde_json::from_str(&conf["settings"]).unwrap();
            assert_eq!(held.max_ready, newer.max_ready, "round {round}");
            assert_eq!(conf["max_ready"], (20 + round).to_string());
        }
    }
}

#[tokio::test]
async fn shards_that_may_be_others_than_those_of_now_tell_nothing() {
    let ward = Ward::new().await;
    let broker = ward.stranger().await;
    broker.reshard(&ward.topic, 4).await.unwrap();
    let handle = broker.topic(&ward.topic).await.unwrap();
    assert!(handle.is_resharding());
    ward.command(&["HDEL", "lisa:v1:{t:1}:conf", "settings"])
        .await;
    let checkup = ward.examine(true).await;
    assert_eq!(reported(&checkup, Fault::Settings).len(), 1, "{checkup:#?}");
    assert_eq!(checkup.count(Outcome::Repaired), 0, "{checkup:#?}");
    // It is lost with the first shard, where the new ones begin.
    ward.command(&["DEL", "lisa:v1:{t:0}:conf"]).await;
    for repair in [false, true] {
        let checkup = ward.examine(repair).await;
        assert_eq!(checkup.count(Outcome::Repaired), 0, "{checkup:#?}");
        let told = reported(&checkup, Fault::Settings);
        assert!(
            told.iter().any(|(shard, _, seen)| *shard == Shard::new(0)
                && seen.contains("restart a manager")
                && seen.contains("next N")),
            "{checkup:#?}"
        );
        assert_eq!(ward.conf(0).await, BTreeMap::new());
    }
}

#[tokio::test]
async fn a_key_of_somebody_else_is_named_and_left_and_the_other_shards_are_examined() {
    let ward = Ward::new().await;
    ward.command(&["ZREM", "lisa:v1:{t:1}:waiting", "m1"]).await;
    for what in [
        "waiting",
        "payload",
        "stats",
        "in_transit",
        "ready:a",
        "holder:b",
        "conf",
    ] {
        let (key, aside) = (format!("lisa:v1:{{t:0}}:{what}"), "lisa:v1:{t:0}:aside");
        if !matches!(what, "in_transit" | "holder:b" | "ready:a") {
            ward.command(&["RENAME", &key, aside]).await;
        }
        ward.command(&["DEL", &key]).await;
        ward.command(&["SET", &key, "x"]).await;
        for repair in [false, true] {
            if repair && what != "conf" {
                continue;
            }
            let checkup = ward.examine(repair).await;
            let strangers = reported(&checkup, Fault::Type);
            assert_eq!(strangers.len(), 1, "{what}: {checkup:#?}");
            let (shard, outcome, seen) = strangers[0];
            assert_eq!((shard, outcome), (Shard::new(0), Outcome::Found), "{what}");
            assert!(
                seen.starts_with(&format!("{key} is not a ")) && seen.contains("RENAME"),
                "{seen}"
            );
            assert!(!checkup.is_healthy());
            let orphans = reported(&checkup, Fault::Orphan);
            assert_eq!(
                orphans.len(),
                usize::from(what != "conf"),
                "{what}: {checkup:#?}"
            );
        }
        ward.command(&["GET", &key]).await;
        ward.command(&["DEL", &key]).await;
        if !matches!(what, "in_transit" | "holder:b" | "ready:a") {
            ward.command(&["RENAME", aside, &key]).await;
        }
    }
}

#[tokio::test]
async fn the_verb_finds_topics_that_cannot_be_read_or_are_not_listed_and_repairs_them() {
    let ward = Ward::new().await;
    let broker = ward.stranger().await;
    for name in ["c", "d"] {
        let name: Topic = name.parse().unwrap();
        broker
            .declare(&name, &settings(), Declare::Create)
            .await
            .unwrap();
    }
    ward.command(&["DEL", "lisa:v1:{t:0}:conf"]).await;
    ward.command(&["HSET", "lisa:v1:{c:0}:conf", "settings", "{"])
        .await;
    ward.command(&["HSET", "lisa:v1:{registry}:topics", "d", "?"])
        .await;
    let url = ward.server.url();
    let doctor = async |more: &[&str]| {
        let words = ["doctor", "--redis-url", &url].into_iter();
        Binary::Manager
            .with(words.chain(more.iter().copied()))
            .run(SOON)
            .await
    };
    let found = doctor(&[]).await;
    assert_eq!(found.code, Some(1), "{found:?}");
    for part in [
        "c: 0 messages, 1 fault",
        "t: 0 messages, 1 fault",
        "d: 0 messages, 1 fault",
        "settings: 3: ",
        "--repair restores them if any shard has valid settings",
        "the registry does not list the topic",
    ] {
        assert!(found.stdout.contains(part), "{part}: {}", found.stdout);
    }
    let named = doctor(&["t", "--output", "json"]).await;
    assert_eq!(named.code, Some(1), "{named:?}");
    let named: Value = serde_json::from_str(&named.stdout).unwrap();
    assert_eq!(
        named["topics"][0]["counts"],
        json!({ "settings": { "found": 1 } })
    );
    let repaired = doctor(&["--repair", "--yes"]).await;
    assert_eq!(repaired.code, Some(0), "{repaired:?}");
    assert!(
        repaired.stdout.contains("t: 4 messages, 1 fault repaired"),
        "{repaired:?}"
    );
    let found = doctor(&[]).await;
    assert_eq!(found.code, Some(0), "{found:?}");
}
