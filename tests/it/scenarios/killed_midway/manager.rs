//! A manager killed at its work, and the verb that reshards a topic.

use super::calls::Side;
use super::cell::{Cell, TOPIC};
use super::{COUNT, SHARD, SHARDS, Scene};
use crate::faults::role;
use Scene::{Dropped, Garbage, Ghost, MigrateOut, Parked, Recur, Relay, Remove, Start, Take};
use std::time::Duration;

use lisa_core::broker::{Broker, Declare, Removal, Retirement, Verdict};
use lisa_core::topic::{Topic, TopicSettings};
use lisa_producer::Producer;
use lisa_tests::relay::{message, settlement};
use lisa_tests::{Binary, SOON, eventually};

pub(super) async fn run(mut cell: Cell<'_>, scene: Scene, call: &'static str, side: Side) {
    match scene {
        Garbage => {
            cell.topic = "garbage = { max_age = \"1s\" }".to_owned();
            // No delivery may be reclaimed before it is rejected.
            cell.lease = "30s";
        }
        Dropped => cell.groups = &["default", "other"],
        Recur => cell.miss().await,
        Take => cell.miss_stored().await,
        _ => {}
    }
    let config = cell.config();
    let at_start = matches!(scene, Start | Recur | Take);
    if at_start {
        cell.calls.hold(call, side);
    }
    let mut victim = cell.victim(Binary::Manager);
    if !at_start {
        victim.ready().await;
    }
    let (sender, producer) = role::Role::producer(&config).await;
    let broker = &sender.broker;
    let mut consumer = None;
    match scene {
        Start | Recur | Take => {}
        Relay | Parked => {
            consumer = Some(cell.consumer(&config).await);
            cell.calls.hold(call, side);
            cell.send(&producer, COUNT, scene == Parked).await;
        }
        Ghost | Garbage => {
            cell.send(&producer, COUNT, false).await;
            cell.ready(broker, COUNT).await;
            // Before the lease can be over.
            cell.calls.hold(call, side);
            let taken = cell.take(broker, COUNT).await;
            if scene == Garbage {
                let error = "no good".to_owned();
                let reject = |read| {
                    settlement(
                        read,
                        Verdict::Reject {
                            error: error.clone(),
                        },
                    )
                };
                let rejected: Vec<_> = taken.iter().map(reject).collect();
                let topic = cell.handle(broker).await;
                let group = &topic.groups()[0];
                broker
                    .settle(&topic, SHARD, group, &rejected)
                    .await
                    .unwrap();
                cell.expect_nothing();
            }
        }
        Dropped => {
            consumer = Some(cell.consumer(&config).await);
            cell.send(&producer, COUNT, false).await;
            cell.calls.hold(call, side);
            let topic = cell.handle(broker).await;
            let (other, drop) = ("other".parse().unwrap(), Some(Retirement::Drop));
            broker.retire(&topic, &other, drop).await.unwrap();
        }
        MigrateOut => {
            consumer = Some(cell.consumer(&config).await);
            cell.send(&producer, COUNT, true).await;
            // Some that are there when the old shard closes.
            cell.send_later(&producer).await;
            cell.calls.hold(call, side);
            let topic = TOPIC.parse().unwrap();
            broker.reshard(&topic, SHARDS).await.unwrap();
        }
        Remove => {
            cell.send(&producer, COUNT, false).await;
            let gone = other_topic(broker).await;
            cell.calls.hold(call, side);
            broker
                .remove_topic(&gone, Removal::Force, None)
                .await
                .unwrap();
        }
        other => panic!("{other:?} is no manager's"),
    }
    cell.kill(&mut victim).await;
    // The operator has changed the file, too.
    cell.groups = &["default"];
    if scene == MigrateOut {
        cell.topic = format!("shards = {SHARDS}");
    }
    let back = cell.again(Binary::Manager).await;
    if scene == Start {
        cell.send(&producer, COUNT, false).await;
    }
    let consumer = match consumer {
        Some(consumer) => consumer,
        None => cell.consumer(&config).await,
    };
    if scene == Remove {
        eventually(SOON, async || {
            let topics = broker.refresh().await.unwrap();
            let only = topics.iter().all(|topic| topic.name().as_str() == TOPIC);
            only.then_some(()).ok_or("the other topic is there")
        })
        .await;
        cell.assert_only_its_topic_has_keys().await;
    }
    let keyed = matches!(scene, Parked | MigrateOut);
    cell.finish(broker, 0, 1, keyed).await;
    consumer.stop().await;
    sender.stop().await;
    drop(back);
}

/// Creates a topic of two shards that no file declares, with a message on each.
async fn other_topic(broker: &Broker) -> Topic {
    let name: Topic = "other".parse().unwrap();
    let settings = TopicSettings {
        shards: 2,
        ..TopicSettings::default()
    };
    broker
        .declare(&name, &settings, Declare::Update)
        .await
        .unwrap();
    let topic = broker.topic(&name).await.unwrap();
    for shard in topic.shards() {
        let later = message(&format!("m-{shard}"), Duration::from_secs(3600));
        broker.send(&topic, shard, &[later]).await.unwrap();
    }
    name
}

/// Kills the verb that reshards a topic, and calls it again.
pub(super) async fn reshard(cell: Cell<'_>, call: &'static str, side: Side) {
    let config = cell.config();
    let manager = role::Role::manager(&config).await;
    let consumer = cell.consumer(&config).await;
    let producer = Producer::new(manager.broker.clone());
    cell.declared(&manager.broker).await;
    cell.send(&producer, COUNT, true).await;
    cell.send_later(&producer).await;
    cell.calls.hold(call, side);
    let shards = SHARDS.to_string();
    let verb = ["topics", "reshard", TOPIC, "--shards", &shards];
    let mut victim = cell.launch_victim(Binary::Manager, &verb);
    cell.kill(&mut victim).await;
    cell.verb(&verb).await;
    cell.finish(&manager.broker, 0, 1, true).await;
    consumer.stop().await;
    manager.stop().await;
}
