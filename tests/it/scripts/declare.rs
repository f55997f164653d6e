//! declare: makes a topic once, keeps or replaces its settings, and keeps its number of shards.

use std::collections::BTreeMap;

use lisa_core::broker::{Broker, BrokerError, Declare, Removal, Retirement, ShardRemoval};
use lisa_core::topic::{Shard, Topic, TopicSettings};
use lisa_tests::relay::{self, settings};
use lisa_tests::{Relay, SOON, Server};
use redis::cmd;

#[tokio::test]
async fn a_declared_topic_has_settings_a_group_and_a_place_in_the_registry() {
    let relay = Relay::start("declare").await;
    let conf = relay.hash("conf").await;
    assert_eq!(
        (&*conf["layout"], &*conf["epoch"], &*conf["class"]),
        ("1", "1", "plain")
    );
    assert_eq!((&*conf["shards"], &*conf["groups"]), ("1", "default"));
    let snapshot = relay.snapshot().await;
    let stream = snapshot.stream("v1:{t:0}:ready:default");
    assert_eq!(stream.groups[b"default".as_slice()].last_delivered, "0-0");
    let registry = snapshot.hash("v1:{registry}:topics");
    assert_eq!(registry[b"t".as_slice()], "1 1");
    assert_eq!(conf["created"], conf["version"]);
    let created = relay.topic().created_at();
    assert_eq!(created.unwrap().get().to_string(), conf["created"]);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_later_caller_gets_the_settings_that_hold() {
    let relay = Relay::start("declare").await;
    let before = relay.snapshot().await;
    let other = TopicSettings {
        max_attempts: 9,
        ..settings()
    };
    let name = relay.topic().name();
    let held = relay
        .broker()
        .declare(name, &other, Declare::Create)
        .await
        .unwrap();
    assert_eq!((held.settings().max_attempts, held.epoch()), (3, 1));
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.assert_drained().await;
}

#[tokio::test]
async fn an_update_replaces_the_settings_once() {
    let relay = Relay::start("declare").await;
    let other = TopicSettings {
        max_attempts: 9,
        ..settings()
    };
    let name = relay.topic().name();
    let created = relay.topic().created_at();
    let update = async || {
        relay
            .broker()
            .declare(name, &other, Declare::Update)
            .await
            .unwrap()
    };
    let held = update().await;
    assert_eq!((held.settings().max_attempts, held.epoch()), (9, 2));
    assert_eq!(held.created_at(), created);
    let before = relay.snapshot().await;
    assert_eq!(update().await.epoch(), 2);
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.assert_drained().await;
}

#[tokio::test]
async fn an_update_at_an_epoch_replaces_no_settings_that_it_has_not_seen() {
    let relay = Relay::start("declare").await;
    let name = relay.topic().name();
    let update = async |max_attempts, epoch| {
        let settings = TopicSettings {
            max_attempts,
            ..settings()
        };
        let mode = Declare::UpdateAt(epoch);
        let declared = relay.broker().declare(name, &settings, mode).await;
        declared
            .map(|topic| topic.epoch())
            .map_err(|error| match error {
                BrokerError::Epoch { there, .. } => there,
                other => panic!("{other}"),
            })
    };
    assert_eq!(update(9, 1).await, Ok(2));
    let before = relay.snapshot().await;
    // One without an answer is repeated.
    assert_eq!(update(9, 1).await, Ok(2));
    assert_eq!(update(8, 1).await, Err(2));
    assert_eq!(update(8, 3).await, Err(2));
    assert_eq!(update(8, 0).await, Err(2), "the topic exists");
    assert_eq!(before.diff(&relay.snapshot().await), "");
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_topic_that_must_be_new_is_created() {
    let relay = Relay::start("declare").await;
    let new: Topic = "new".parse().unwrap();
    let declare = async |mode| relay.broker().declare(&new, &settings(), mode).await;
    let refused = declare(Declare::UpdateAt(1)).await.unwrap_err();
    assert_eq!(refused.to_string(), "topic new does not exist");
    assert_eq!(declare(Declare::UpdateAt(0)).await.unwrap().epoch(), 1);
}

#[tokio::test]
async fn a_field_that_somebody_took_away_is_written_again_and_the_others_stay() {
    let relay = Relay::start("declare").await;
    let (name, settings) = (relay.topic().name(), relay.topic().settings());
    let mut before = relay.hash("conf").await;
    before.remove("epoch");
    before.remove("version");
    for (epoch, field) in [(2, "shards"), (3, "groups"), (4, "settings"), (5, "class")] {
        let mut delete = cmd("HDEL");
        delete.arg(relay.key("conf")).arg(field);
        assert_eq!(relay.command::<u64>(&delete).await, 1);
        for _ in 0..2 {
            let declared = relay.broker().declare(name, settings, Declare::Create);
            assert_eq!(declared.await.unwrap().epoch(), epoch, "{field}");
            let mut conf = relay.hash("conf").await;
            assert_eq!(conf.remove("epoch"), Some(epoch.to_string()));
            assert!(conf.remove("version").is_some());
            assert_eq!(conf, before, "{field}");
        }
    }
    relay.assert_drained().await;
}

#[tokio::test]
async fn another_number_of_shards_is_not_taken_and_the_other_settings_are() {
    let relay = Relay::start("declare").await;
    let name = relay.topic().name();
    let shards = settings().shards;
    let other = TopicSettings {
        shards: shards + 1,
        max_attempts: settings().max_attempts + 1,
        ..settings()
    };
    let before = relay.snapshot().await;
    let declare = async |mode| relay.broker().declare(name, &other, mode).await.unwrap();
    let kept = declare(Declare::Create).await;
    assert_eq!(kept.settings(), &settings());
    assert_eq!(before.diff(&relay.snapshot().await), "");
    let updated = declare(Declare::Update).await;
    let expected = TopicSettings {
        shards,
        ..other.clone()
    };
    assert_eq!(updated.settings(), &expected);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_topic_of_another_layout_is_left_alone_and_no_longer_served() {
    let relay = Relay::start("declare").await;
    let (broker, name, settings) = (relay.broker(), relay.topic().name(), settings());
    let mut note = cmd("HSET");
    let _: u64 = relay
        .command(note.arg(relay.key("conf")).arg("layout").arg(2))
        .await;
    let before = relay.snapshot().await;
    for mode in [Declare::Create, Declare::Update] {
        let declared = broker.declare(name, &settings, mode).await;
        let error = declared.unwrap_err();
        assert!(
            matches!(error, BrokerError::Layout { there: 2, .. }),
            "{error}"
        );
        let text = "has layout 2 in Redis, this version supports 1";
        assert!(error.to_string().contains(text), "{error}");
    }
    assert_eq!(before.diff(&relay.snapshot().await), "");
    assert!(broker.known(name).is_none(), "it is still served");
    let looked = broker.topic(name).await;
    assert!(matches!(looked, Err(BrokerError::Layout { there: 2, .. })));
}

#[tokio::test]
async fn a_group_that_was_lost_is_made_again_from_the_first_entry() {
    let relay = Relay::start("declare").await;
    relay.hold("a").await;
    let mut destroy = cmd("XGROUP");
    destroy
        .arg("DESTROY")
        .arg(relay.key("ready:default"))
        .arg("default");
    let _: u64 = relay.command(&destroy).await;
    let (name, settings) = (relay.topic().name(), relay.topic().settings());
    relay
        .broker()
        .declare(name, settings, Declare::Create)
        .await
        .unwrap();
    let again = relay.read_one().await;
    assert_eq!(again.id, Some(lisa_tests::relay::id("a")));
    relay.assert_conserved().await;
}

/// A topic on several shards.
async fn of_shards(shards: u16) -> Relay {
    let settings = TopicSettings {
        shards,
        ..settings()
    };
    Relay::with("declare", settings).await
}

fn conf_key(relay: &Relay, shard: u16) -> String {
    let shard = format!("{{t:{shard}}}");
    relay.key("conf").replace("{t:0}", &shard)
}

/// The `conf` of a shard.
async fn conf(relay: &Relay, shard: u16) -> BTreeMap<String, String> {
    let key = conf_key(relay, shard);
    relay.command(cmd("HGETALL").arg(key)).await
}

#[tokio::test]
async fn a_change_that_stopped_between_two_shards_is_completed_by_any_declaration() {
    let relay = of_shards(3).await;
    let name = relay.topic().name();
    let missed = conf(&relay, 2).await;
    let changed = TopicSettings {
        max_attempts: 9,
        groups: ["default", "more"]
            .map(|group| group.parse().unwrap())
            .to_vec(),
        ..relay.topic().settings().clone()
    };
    let declare = async |settings, mode| relay.broker().declare(name, settings, mode).await;
    declare(&changed, Declare::Update).await.unwrap();
    let whole = conf(&relay, 2).await;
    let key = conf_key(&relay, 2);
    let _: u64 = relay.command(cmd("DEL").arg(&key)).await;
    let _: u64 = relay.command(cmd("HSET").arg(&key).arg(&missed)).await;
    // The sweep of a manager declares what it knows, which may be older.
    let held = declare(relay.topic().settings(), Declare::Create)
        .await
        .unwrap();
    assert_eq!(held.settings(), &changed);
    assert_eq!(conf(&relay, 2).await, whole);
    let before = relay.snapshot().await;
    declare(relay.topic().settings(), Declare::Create)
        .await
        .unwrap();
    assert_eq!(before.diff(&relay.snapshot().await), "");
}

#[tokio::test]
async fn of_concurrent_updates_all_shards_keep_the_same_one() {
    let relay = of_shards(16).await;
    let connection = relay::connection(Server::shared()).await;
    let namespace = relay.broker().namespace();
    let process = || Broker::new(connection.clone(), namespace.clone(), SOON, None);
    for round in 0..10 {
        let update = async |broker: Broker, writer: u32| {
            let settings = TopicSettings {
                max_attempts: 10 + 4 * round + writer,
                ..relay.topic().settings().clone()
            };
            let declared = broker.declare(relay.topic().name(), &settings, Declare::Update);
            declared.await.unwrap();
        };
        tokio::join!(
            update(process(), 0),
            update(process(), 1),
            update(process(), 2)
        );
        let first = conf(&relay, 0).await;
        for shard in 1..16 {
            let conf = conf(&relay, shard).await;
            for field in ["settings", "version"] {
                assert_eq!(conf[field], first[field], "round {round}, shard {shard}");
            }
        }
    }
}

#[tokio::test]
async fn a_group_that_was_removed_does_not_come_back_with_its_name_in_the_settings() {
    let relay = of_shards(2).await;
    let name = relay.topic().name();
    let both = TopicSettings {
        groups: ["default", "more"]
            .map(|group| group.parse().unwrap())
            .to_vec(),
        ..relay.topic().settings().clone()
    };
    let declare = async |mode| relay.broker().declare(name, &both, mode).await.unwrap();
    let topic = declare(Declare::Update).await;
    let more = "more".parse().unwrap();
    let retired = relay
        .broker()
        .retire(&topic, &more, Some(Retirement::Drop))
        .await;
    retired.unwrap();
    for shard in topic.shards() {
        relay
            .broker()
            .remove_group(&topic, shard, &more)
            .await
            .unwrap();
    }
    let topic = declare(Declare::Create).await;
    for shard in [0, 1] {
        assert_eq!(conf(&relay, shard).await["groups"], "default");
    }
    assert_eq!(topic.groups().len(), 1);
    declare(Declare::Update).await;
    for shard in [0, 1] {
        assert_eq!(conf(&relay, shard).await["groups"], "default more");
    }
}

/// Scripts read all groups, and could not be called any more with thousands, not even to remove the topic.
#[tokio::test]
async fn a_topic_has_at_most_128_groups_with_those_that_its_settings_no_longer_name() {
    let relay = Relay::start("declare").await;
    let name = relay.topic().name();
    let declare = async |first: usize| {
        let names = (first..first + 64).map(|number| format!("g{number}").parse().unwrap());
        let settings = TopicSettings {
            groups: names.collect(),
            ..settings()
        };
        relay
            .broker()
            .declare(name, &settings, Declare::Update)
            .await
    };
    // With `default`.
    assert_eq!(declare(0).await.unwrap().groups().len(), 65);
    let before = relay.snapshot().await;
    let refused = declare(64).await.unwrap_err().to_string();
    let why = "topic t would have 129 groups, must be at most 128: drain or drop those that its settings no longer name";
    assert_eq!(refused, why);
    assert_eq!(before.diff(&relay.snapshot().await), "");
    assert_eq!(declare(63).await.unwrap().groups().len(), 128);
    let removal = relay.broker().remove_topic(name, Removal::Force, None);
    removal.await.unwrap();
    let topic = relay.broker().newest(name).await.unwrap();
    let removed = relay.broker().remove_shard(&topic, Shard::new(0)).await;
    assert_eq!(removed.unwrap(), ShardRemoval::Gone);
}
