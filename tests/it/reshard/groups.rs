//! Groups that go away, and pauses, while a topic is resharded.

use std::time::Duration;

use lisa_core::broker::{Broker, Found, Removed, Retirement, Verdict};
use lisa_core::state::Settled;
use lisa_core::topic::{Group, Shard, TopicSettings};
use lisa_tests::relay::{connection, message, ms, retry, settings, settlement};
use lisa_tests::{Relay, Server};

use super::{HOUR, migrate_out, open, send};

#[tokio::test]
async fn a_group_that_drains_gets_what_the_old_shard_has_for_it() {
    let [first, drained]: [Group; 2] = ["a", "b"].map(|name| name.parse().unwrap());
    let settings = TopicSettings {
        groups: vec![first, drained.clone()],
        ..settings()
    };
    let relay = Relay::with("reshard", settings).await;
    let broker = relay.broker();
    send(broker, relay.topic(), message("m", ms(0))).await;
    relay.step(1);
    relay.move_due(50).await;
    let how = Some(Retirement::Drain);
    broker.retire(relay.topic(), &drained, how).await.unwrap();
    let topic = open(&relay, 1 + 1).await;
    // Nothing of the group is there yet.
    for shard in [1, 2].map(Shard::new) {
        let removed = broker.remove_group(&topic, shard, &drained).await.unwrap();
        assert!(matches!(removed, Removed::Kept), "{removed:?}");
    }
    assert_eq!(migrate_out(broker, &topic).await, 0);
    let topic = broker.known(topic.name()).unwrap();
    let stats = broker.stats(&topic).await.unwrap();
    let of_group = stats.groups.iter().find(|group| group.group == drained);
    assert_eq!(of_group.unwrap().retry, 1);
    assert_eq!(stats.counters.get("dropped"), None);
    let shard = topic.shard_of_message(&message("m", ms(0)));
    let other = topic.shards().find(|other| *other != shard).unwrap();
    let removed = broker.remove_group(&topic, other, &drained).await.unwrap();
    assert!(matches!(removed, Removed::Gone { .. }), "{removed:?}");
}

#[tokio::test]
async fn a_pause_by_who_knows_only_the_old_shards_reaches_the_new_ones() {
    let relay = Relay::start("reshard").await;
    let server = Server::shared();
    let namespace = relay.broker().namespace().clone();
    let other = Broker::new(
        connection(server).await,
        namespace,
        Duration::from_secs(5),
        None,
    );
    let before = other.topic(relay.topic().name()).await.unwrap();
    let topic = open(&relay, 2).await;
    for paused in [true, false] {
        assert!(other.pause(&before, paused).await.unwrap());
        for shard in topic.shards() {
            let conf = relay
                .snapshot()
                .await
                .hash(&relay.short_key(shard.get(), "conf"));
            assert_eq!(
                conf.keys().any(|field| field.0 == b"paused"),
                paused,
                "{shard}"
            );
        }
    }
}

#[tokio::test]
async fn what_goes_on_again_after_a_first_attempt_is_not_paused_by_the_second() {
    let relay = Relay::start("reshard").await;
    let held = relay.hold("m").await;
    let first = open(&relay, 2).await;
    // As if the process had stopped after its first write and before any notification.
    for (shard, field, value) in [(1, "paused", "1"), (2, "paused", "1")] {
        let conf = relay.key("conf").replace(":0}", &format!(":{shard}}}"));
        relay
            .command::<()>(redis::cmd("HSET").arg(conf).arg(field).arg(value))
            .await;
    }
    let mut forget = redis::cmd("HDEL");
    forget.arg(relay.key("conf")).arg("next");
    relay.command::<()>(&forget).await;
    relay.broker().refresh().await.unwrap();
    let namespace = relay.broker().namespace().clone();
    let other = Broker::new(connection(Server::shared()).await, namespace, HOUR, None);
    other.reshard(first.name(), 2).await.unwrap();
    let topic = other.known(first.name()).unwrap();
    assert!(!other.stats(&topic).await.unwrap().paused);
    let settled = [settlement(&held, retry(ms(0)))];
    let settled = other.settle(&topic, Shard::new(0), relay.group(), &settled);
    settled.await.unwrap();
}

#[tokio::test]
async fn a_message_that_one_group_has_done_stays_for_the_other() {
    let groups: [Group; 2] = ["a", "b"].map(|name| name.parse().unwrap());
    let settings = TopicSettings {
        groups: groups.to_vec(),
        ..settings()
    };
    let mut relay = Relay::with("reshard", settings).await;
    send(relay.broker(), relay.topic(), message("m", ms(0))).await;
    relay.step(1);
    relay.move_due(50).await;
    let topic = open(&relay, 2).await;
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    relay.set_topic(topic.clone());
    let shard = topic.shard_of_message(&message("m", ms(0)));
    let broker = relay.broker();
    broker.move_due(&topic, shard, 50, HOUR).await.unwrap();
    let read = relay.read_as(shard, "worker", 9).await.pop().unwrap();
    let acked = [settlement(&read, Verdict::Ack)];
    let settled = broker.settle(&topic, shard, &groups[0], &acked).await;
    assert_eq!(settled.unwrap(), [Settled::Acked]);
    let id = read.id.unwrap();
    let found = broker.lookup(&topic, &id, None).await.unwrap();
    assert!(matches!(found, Found::Stored { .. }), "{found:?}");
    let stats = broker.stats(&topic).await.unwrap();
    assert_eq!(
        (stats.counters.get("lost"), stats.conservation_error),
        (None, 0)
    );
}

#[tokio::test]
async fn a_paused_group_stays_paused_on_new_shards_of_a_plain_topic() {
    let relay = Relay::start("reshard").await;
    let group = relay.group().clone();
    let paused = relay.broker().pause_group(relay.topic(), &group, true);
    assert!(paused.await.unwrap());
    let topic = open(&relay, 2).await;
    send(relay.broker(), &topic, message("m", ms(0))).await;
    for shard in topic.shards() {
        let moved = relay.broker().move_due(&topic, shard, 50, HOUR);
        moved.await.unwrap();
    }
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!((stats.groups[0].ready, stats.groups[0].backlog), (0, 0));
    assert_eq!(stats.waiting, 1);
}

#[tokio::test]
async fn a_group_keeps_its_garbage_hook_on_new_shards() {
    let relay = Relay::start("reshard").await;
    let (broker, group) = (relay.broker(), relay.group());
    let (topic, lease) = (relay.topic(), ms(60_000));
    let taken = broker.take_garbage_hooks(topic, Shard::new(0), group, 1, lease);
    taken.await.unwrap();
    let topic = open(&relay, 2).await;
    let snapshot = relay.snapshot().await;
    for shard in topic.shards() {
        let conf = snapshot.hash(&relay.short_key(shard.get(), "conf"));
        let field = format!("garbage_hook:{group}");
        assert!(conf.keys().any(|key| key.0 == field.as_bytes()), "{shard}");
    }
}

#[tokio::test]
async fn a_topic_without_groups_takes_what_waits_along_to_its_new_shards() {
    let settings = TopicSettings {
        groups: Vec::new(),
        ..settings()
    };
    let relay = Relay::with("reshard", settings).await;
    let broker = relay.broker();
    for name in ["m1", "m2", "m3"] {
        send(broker, relay.topic(), message(name, ms(0))).await;
    }
    let topic = open(&relay, 2).await;
    assert_eq!(migrate_out(broker, &topic).await, 0);
    let topic = broker.known(topic.name()).unwrap();
    assert_eq!(broker.stats(&topic).await.unwrap().waiting, 3);
    let group: Group = "instance-1".parse().unwrap();
    broker.join(&topic, &group).await.unwrap();
    let topic = broker.known(topic.name()).unwrap();
    for shard in topic.shards() {
        broker.move_due(&topic, shard, 50, HOUR).await.unwrap();
    }
    let stats = broker.stats(&topic).await.unwrap();
    assert_eq!((stats.waiting, stats.groups[0].ready), (0, 3));
    assert_eq!(stats.conservation_error, 0);
}
