//! Groups that go away, and pauses, while a topic is resharded.

use std::time::Duration;

use lisa_shared::broker::{Broker, Removed, Retirement};
use lisa_shared::topic::{Group, Shard, TopicSettings};
use lisa_tests::relay::{link, message, ms, retry, settings, settlement};
use lisa_tests::{Relay, Server};

use super::{HOUR, hand_over, open, send};

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
    assert_eq!(hand_over(broker, &topic).await, 0);
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
    let other = Broker::new(link(server).await, namespace, Duration::from_secs(5), None);
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
    // As if whoever began had stopped before anybody was told.
    for (shard, field, value) in [(1, "paused", "1"), (2, "paused", "1")] {
        let conf = relay.key("conf").replace(":0}", &format!(":{shard}}}"));
        relay
            .command::<()>(redis::cmd("HSET").arg(conf).arg(field).arg(value))
            .await;
    }
    let mut untell = redis::cmd("HDEL");
    untell.arg(relay.key("conf")).arg("next");
    relay.command::<()>(&untell).await;
    relay.broker().refresh().await.unwrap();
    let namespace = relay.broker().namespace().clone();
    let other = Broker::new(link(Server::shared()).await, namespace, HOUR, None);
    other.reshard(first.name(), 2).await.unwrap();
    let topic = other.known(first.name()).unwrap();
    assert!(!other.stats(&topic).await.unwrap().paused);
    let settled = [settlement(&held, retry(ms(0)))];
    let settled = other.settle(&topic, Shard::new(0), relay.group(), &settled);
    settled.await.unwrap();
}
