//! The messages of a key are found while they go from one shard to another.

use super::{HOUR, keyed, migrate_out, open, send};
use lisa_core::broker::{Broker, Migration, TopicHandle};
use lisa_core::topic::{Shard, TopicSettings};
use lisa_tests::relay::{connection, settings};
use lisa_tests::{Relay, Server};
use std::collections::BTreeSet;
use std::time::Duration;

const COUNT: usize = 230;

async fn listed(broker: &Broker, topic: &TopicHandle) -> BTreeSet<String> {
    let (mut all, mut cursor) = (BTreeSet::new(), None);
    loop {
        let page = broker
            .of_key(topic, &"k".parse().unwrap(), cursor, 100)
            .await
            .unwrap();
        all.extend(page.ids.iter().map(ToString::to_string));
        cursor = page.next;
        if cursor.is_none() {
            return all;
        }
    }
}

/// A relay of one shard with many messages of one key, and their ids.
async fn filled() -> (Relay, BTreeSet<String>) {
    let settings = TopicSettings {
        shards: 1,
        key_index: true,
        ..settings()
    };
    let relay = Relay::with("reshard", settings).await;
    let mut expected = BTreeSet::new();
    for n in 0..COUNT {
        let name = format!("m{n}");
        send(relay.broker(), relay.topic(), keyed(&name, "k", HOUR)).await;
        expected.insert(name);
    }
    (relay, expected)
}

/// A second process.
async fn other(relay: &Relay) -> Broker {
    let namespace = relay.broker().namespace().clone();
    Broker::new(connection(Server::shared()).await, namespace, HOUR, None)
}

#[tokio::test]
async fn all_messages_of_a_key_are_listed_before_while_and_after_they_go_to_another_shard() {
    let (relay, expected) = filled().await;
    let broker = relay.broker();
    assert_eq!(listed(broker, relay.topic()).await, expected);
    let topic = open(&relay, 4).await;
    // Each batch stays on its way for a while.
    let steps = async {
        let mut migration = Migration::default();
        for _ in 0..4 {
            let step = broker
                .migrate_out(&topic, Shard::new(0), &mut migration)
                .await;
            step.unwrap();
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    };
    let looks = async {
        loop {
            assert_eq!(listed(broker, relay.topic()).await, expected);
        }
    };
    tokio::select! {
        () = steps => {}
        () = looks => {}
    }
    assert_eq!(migrate_out(broker, &topic).await, 0);
    assert_eq!(listed(broker, relay.topic()).await, expected);
    let new = relay.snapshot().await;
    let shard = topic.shard_of_message(&keyed("m0", "k", HOUR)).get();
    assert_eq!(new.zset(&relay.short_key(shard, "bykey")).len(), COUNT);
    assert_eq!(new.zset(&relay.short_key(0, "bykey")).len(), 0);
}

#[tokio::test]
async fn who_has_not_heard_of_the_new_shards_finds_all_messages_of_a_key_too() {
    let (relay, expected) = filled().await;
    let broker = relay.broker();
    // One is not notified of anything; one has read a page.
    let [late, reader] = [(), ()].map(|()| other(&relay));
    let (late, reader) = (late.await, reader.await);
    assert_eq!(listed(&late, relay.topic()).await, expected);
    let (mut all, key) = (BTreeSet::new(), "k".parse().unwrap());
    let first = reader.of_key(relay.topic(), &key, None, 100).await.unwrap();
    all.extend(first.ids.iter().map(ToString::to_string));
    let topic = open(&relay, 4).await;
    assert_eq!(migrate_out(broker, &topic).await, 0);
    assert_eq!(listed(&late, relay.topic()).await, expected);
    let mut cursor = first.next;
    while cursor.is_some() {
        let page = reader.of_key(relay.topic(), &key, cursor, 100).await;
        let page = page.unwrap();
        all.extend(page.ids.iter().map(ToString::to_string));
        cursor = page.next;
    }
    assert_eq!(all, expected);
}
