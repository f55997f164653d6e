//! A consumer killed between a read and the end of its shutdown.

use super::calls::Side::{self, Behind};
use super::cell::{Cell, TOPIC, now_ms};
use super::{CONCURRENCY, COUNT, Scene};
use crate::faults::role;
use Scene::{Defer, Fail, Join, Leave, Long, Order, Reject, Suspects};
use lisa_producer::Producer;
use lisa_tests::relay::ms;
use lisa_tests::{Answer, Binary, SOON, Webhook, eventually};

/// Starts a webhook target that records what it received and accepted.
async fn target(cell: &Cell<'_>, scene: Scene) -> Webhook {
    let (handled, mut count) = (cell.handled.clone(), 0);
    Webhook::answering(move |request| {
        count += 1;
        let answer = match scene {
            Fail if count <= COUNT / 2 => return Answer::status(500),
            Defer if count <= COUNT / 2 => return Answer::status(503).header("retry-after", "1"),
            Reject => return Answer::status(422).header("lisa-outcome", "reject"),
            Leave if count <= CONCURRENCY => return Answer::hang(),
            Long => Answer::status(200).after(ms(1200)),
            _ => Answer::status(200),
        };
        let id = request.header("webhook-id").to_owned();
        handled.lock().unwrap().push((id, now_ms()));
        answer
    })
    .await
}

pub(super) async fn run(mut cell: Cell<'_>, scene: Scene, call: &'static str, side: Side) {
    let hook = target(&cell, scene).await;
    let url = hook.url();
    cell.sink = format!(
        r#"{{ type = "http", url = "{url}", allow_private = true, retry_after = "defer" }}"#
    );
    if scene == Join {
        cell.group = "{instance}";
        cell.topic = "instance_ttl = \"5s\"".to_owned();
    }
    let config = cell.config();
    let manager = role::Role::manager(&config).await;
    let broker = &manager.broker;
    let producer = Producer::new(broker.clone());
    cell.declared(broker).await;
    let (count, keyed) = (
        if scene == Leave { CONCURRENCY } else { COUNT },
        scene == Order,
    );
    if scene == Suspects {
        cell.send(&producer, count, false).await;
        cell.take(broker, count).await;
        cell.calls.hold(call, side);
    }
    let mut others = None;
    if scene == Join {
        others = Some(role::Role::consumer_of(&config, &[TOPIC], |_| {}).await);
        cell.calls.hold(call, side);
    }
    let mut victim = cell.victim(Binary::Consumer);
    if !matches!(scene, Suspects | Join) {
        victim.ready().await;
        if scene != Leave {
            cell.calls.hold(call, side);
        }
        cell.send(&producer, count, keyed).await;
    }
    if scene == Leave {
        eventually(SOON, async || match hook.count() {
            CONCURRENCY => Ok(()),
            other => Err(format!("{}: {other} requests", cell.what)),
        })
        .await;
        cell.calls.hold(call, side);
        victim.process.sigterm();
    }
    cell.kill(&mut victim).await;
    let back = cell.again(Binary::Consumer).await;
    if scene == Join {
        // The dead one's group lasts for some seconds.
        cell.joined(broker, if side == Behind { 2 } else { 1 })
            .await;
        cell.send(&producer, count, keyed).await;
    }
    let (garbage, most) = if scene == Reject { (count, 0) } else { (0, 2) };
    if scene == Reject {
        cell.expect_nothing();
    }
    cell.finish(broker, garbage, most, keyed).await;
    drop(back);
    if let Some(others) = others {
        others.stop().await;
    }
    manager.stop().await;
}
