//! Groups of one running process each, while a topic is resharded.

use lisa_core::broker::{Broker, Membership, Migration, Moved, Removed, TopicHandle, Verdict};
use lisa_core::state::Settled;
use lisa_core::topic::{Group, Shard};
use lisa_tests::relay::{connection, message, ms, settlement};
use lisa_tests::{Relay, Server};

use super::{HOUR, migrate_out, open, send};

/// Lets the group of a process that joins see all messages from now on.
async fn join(broker: &Broker, topic: &TopicHandle) -> Group {
    let group = Group::for_instance();
    let joined = broker.join(topic, &group).await.unwrap();
    assert_eq!(joined, Membership::Member);
    group
}

/// Moves all that is due, then handles up to `most` of a group's messages on all shards together; returns their ids,
/// sorted.
async fn handle(broker: &Broker, topic: &TopicHandle, group: &Group, most: usize) -> Vec<String> {
    let mut ids = Vec::new();
    let mut reader = broker.connection().any().reader().await.unwrap();
    for shard in topic.shards() {
        let step = async || broker.move_due(topic, shard, 50, HOUR).await.unwrap();
        while matches!(step().await, Moved::Moved { count, .. } if count > 0) {}
        while ids.len() < most {
            let left = most - ids.len();
            let read = broker.read(&mut reader, topic, shard, group, "process", left, ms(1));
            let reads = read.await.unwrap();
            if reads.is_empty() {
                break;
            }
            for read in reads {
                let acked = [settlement(&read, Verdict::Ack)];
                let settled = broker.settle(topic, shard, group, &acked).await;
                assert_eq!(settled.unwrap(), [Settled::Acked]);
                ids.push(read.id.unwrap().to_string());
            }
        }
    }
    ids.sort();
    ids
}

fn names(stem: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{stem}-{n:02}")).collect()
}

#[tokio::test]
async fn each_instance_gets_each_message_once_over_old_and_new_shards() {
    let relay = Relay::start("instances").await;
    let broker = relay.broker();
    let instances = [
        join(broker, relay.topic()).await,
        join(broker, relay.topic()).await,
    ];
    let old = broker.known(relay.topic().name()).unwrap();
    for name in names("due", 20) {
        send(broker, &old, message(&name, ms(0))).await;
    }
    for name in names("later", 20) {
        send(broker, &old, message(&name, ms(5000))).await;
    }
    relay.step(1);
    // One has handled some before the shards change, the other one none.
    let mut got = [handle(broker, &old, &instances[0], 7).await, Vec::new()];
    assert_eq!(got[0].len(), 7);
    let topic = open(&relay, 3).await;
    assert_eq!(topic.groups(), old.groups());
    assert_eq!(migrate_out(broker, &topic).await, 0);
    for name in names("new", 20) {
        send(broker, &topic, message(&name, ms(0))).await;
    }
    relay.step(6000);
    let expected = [names("due", 20), names("later", 20), names("new", 20)].concat();
    for (got, group) in got.iter_mut().zip(&instances) {
        let topic = broker.known(topic.name()).unwrap();
        got.extend(handle(broker, &topic, group, 99).await);
        got.sort();
        assert_eq!(*got, expected);
    }
}

/// Its process knows only the old shards, and a lookup of the topic does not lead to the new ones yet.
#[tokio::test]
async fn an_instance_that_joins_while_shards_are_opened_misses_nothing() {
    let relay = Relay::start("instances").await;
    let name = relay.topic().name();
    let namespace = relay.broker().namespace().clone();
    let process = Broker::new(connection(Server::shared()).await, namespace, HOUR, None);
    process.set_virtual_now(relay.now());
    let before = process.topic(name).await.unwrap();
    open(&relay, 2).await;
    let mut unlead = redis::cmd("HDEL");
    unlead.arg(relay.key("conf")).arg("next");
    relay.command::<()>(&unlead).await;
    let group = join(&process, &before).await;
    let on = |topic: &TopicHandle| topic.shards().map(Shard::get).collect::<Vec<_>>();
    assert_eq!(on(&process.known(name).unwrap()), [0]);
    // The process that opens the shards continues.
    let namespace = relay.broker().namespace().clone();
    let operator = Broker::new(connection(Server::shared()).await, namespace, HOUR, None);
    operator.set_virtual_now(relay.now());
    operator.reshard(name, 2).await.unwrap();
    send(&process, &before, message("m", ms(0))).await;
    relay.step(1);
    for broker in [&process, &operator] {
        broker.set_virtual_now(relay.now());
    }
    process
        .move_due(&before, Shard::new(0), 50, HOUR)
        .await
        .unwrap();
    // The process reads of the new shards in the registry, and renews its lease there.
    process.refresh().await.unwrap();
    let topic = process.known(name).unwrap();
    assert_eq!(on(&topic), [0, 1, 2]);
    let joined = process.join(&topic, &group).await.unwrap();
    assert_eq!(joined, Membership::Member);
    let topic = operator.topic(name).await.unwrap();
    assert_eq!(migrate_out(&operator, &topic).await, 0);
    process.refresh().await.unwrap();
    let topic = process.known(name).unwrap();
    assert_eq!(on(&topic), [1, 2]);
    send(&process, &topic, message("n", ms(0))).await;
    relay.step(1);
    process.set_virtual_now(relay.now());
    let got = handle(&process, &topic, &group, 9).await;
    assert_eq!(got, ["m", "n"]);
}

#[tokio::test]
async fn an_instance_that_is_gone_is_retired_with_its_backlog_on_all_shards() {
    let relay = Relay::start("instances").await;
    let broker = relay.broker();
    let gone = join(broker, relay.topic()).await;
    let old = broker.known(relay.topic().name()).unwrap();
    let all = names("m", 80);
    for name in &all {
        send(broker, &old, message(name, ms(0))).await;
    }
    relay.step(1);
    assert_eq!(handle(broker, &old, relay.group(), 99).await, all);
    let topic = open(&relay, 2).await;
    // Some of its messages are on the new shards when its lease is over, and some on the old one.
    let mut migration = Migration::default();
    let mut moved = 0;
    while moved == 0 {
        let step = broker
            .migrate_out(&topic, Shard::new(0), &mut migration)
            .await;
        moved = step.unwrap().count;
    }
    let stats = broker.stats(&topic).await.unwrap();
    let left = stats.migrating.unwrap();
    assert!((1..80).contains(&left), "{left}");
    relay.step(topic.settings().instance_ttl.as_millis() as i64 + 1);
    for shard in topic.shards() {
        let cleaned = broker.clean(&topic, shard, &gone, None).await.unwrap();
        assert!(cleaned.retiring.is_some(), "{shard}");
        loop {
            match broker.remove_group(&topic, shard, &gone).await.unwrap() {
                Removed::More { .. } => {}
                Removed::Gone { .. } => break,
                Removed::Kept => panic!("it stays on shard {shard}"),
            }
        }
    }
    let joined = broker.join(&topic, &gone).await.unwrap();
    assert_eq!(joined, Membership::Member, "as a new one");
    relay.step(topic.settings().dedup_window.as_millis() as i64 + 1);
    let topic = broker.known(topic.name()).unwrap();
    for shard in topic.shards() {
        broker.forget(&topic, shard).await.unwrap();
    }
    assert_eq!(migrate_out(broker, &topic).await, 0);
    let topic = broker.known(topic.name()).unwrap();
    assert!(!topic.is_resharding());
    let stats = broker.stats(&topic).await.unwrap();
    assert_eq!(stats.conservation_error, 0);
    assert_eq!(
        (stats.counters["acked"], stats.counters["dropped"]),
        (80, 80)
    );
    let of_gone = stats
        .groups
        .iter()
        .find(|group| group.group == gone)
        .unwrap();
    assert_eq!((of_gone.retry, of_gone.ready, of_gone.backlog), (0, 0, 0));
    let snapshot = relay.snapshot().await;
    for shard in topic.shards() {
        let payloads = snapshot.hash(&relay.short_key(shard.get(), "payload"));
        assert!(payloads.is_empty(), "{shard}");
    }
}
