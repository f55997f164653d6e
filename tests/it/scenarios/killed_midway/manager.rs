//! A manager killed at its work, and the verb that reshards a topic.

use super::calls::Side;
use super::cell::{Cell, TOPIC};
use super::{COUNT, SHARD, SHARDS, Scene};
use crate::faults::role;
use Scene::{Dropped, Garbage, Ghost, MigrateOut, Parked, Recur, Relay, Start};
use lisa_core::broker::{Retirement, Verdict};
use lisa_producer::Producer;
use lisa_tests::Binary;
use lisa_tests::relay::settlement;

pub(super) async fn run(mut cell: Cell<'_>, scene: Scene, call: &'static str, side: Side) {
    match scene {
        Garbage => {
            cell.topic = "garbage = { max_age = \"1s\" }".to_owned();
            // No delivery may be reclaimed before it is rejected.
            cell.lease = "30s";
        }
        Dropped => cell.groups = &["default", "other"],
        Recur => cell.miss().await,
        _ => {}
    }
    let config = cell.config();
    let at_start = matches!(scene, Start | Recur);
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
        Start | Recur => {}
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
    let keyed = matches!(scene, Parked | MigrateOut);
    cell.finish(broker, 0, 1, keyed).await;
    consumer.stop().await;
    sender.stop().await;
    drop(back);
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
