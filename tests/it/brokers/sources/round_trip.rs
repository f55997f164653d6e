//! From a queue of RabbitMQ through Lisa into another queue, while the processes of Lisa are killed.

use super::amqp::{QUEUE, from};
use super::{Intake, SOON, config};
use crate::brokers::amqp::{Peer, id};
use crate::brokers::{all_received, ids};
use crate::scenarios::Deployment;
use lisa_tests::{RabbitMq, eventually};

/// Sends `count` messages through Lisa, and kills producer and consumer `kills` times at random points.
async fn round_trip(count: usize, kills: usize) {
    let Some(rabbit) = RabbitMq::shared().await else {
        return;
    };
    let url = rabbit.vhost().await;
    let peer = Peer::new(&url).await;
    peer.queue(QUEUE).await;
    peer.queue("out").await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    // What a killed consumer holds comes again after the lease. Its attempts count as crashes.
    let topic = "lease = \"2s\"\nmax_attempts = 1000";
    let here = Deployment::start(topic)
        .await
        .with(&config(&from(&url), ""));
    let sink = format!(
        r#"concurrency = 100
        sink = {{ type = "amqp", url = "{url}", routing_key = "out" }}"#
    );
    let mut intake = Intake {
        _manager: here.manager().await,
        producer: here.producer().await,
        here,
    };
    let mut consumer = intake.here.consumer(&sink).await;
    let part = count / kills;
    for kill in 0..kills {
        let published = kill * part..(kill + 1) * part;
        peer.publish_ids(published.map(|n| format!("m-{n}"))).await;
        let point = random.i64(1..=part as i64);
        if random.bool() {
            intake.takes("accepted", point).await;
            intake.kill_producer().await;
        } else {
            let before = acked(&intake.here).await;
            let published = (kill as i64 + 1) * part as i64;
            acks(&intake, published.min(before + point)).await;
            consumer.process.kill9();
            consumer = intake.here.consumer(&sink).await;
        }
    }
    let rest = kills * part..count;
    peer.publish_ids(rest.map(|n| format!("m-{n}"))).await;
    intake.delivered(count as i64).await;
    peer.holds(0).await;
    let out: Vec<String> = peer.take("out").await.iter().map(id).collect();
    println!("{} of {count} messages twice", out.len() - count);
    all_received(ids(count).map(|id| format!("in:{id}")), &out);
    drop(consumer);
}

async fn acked(here: &Deployment) -> i64 {
    Deployment::counter(&here.stats().await, "acked")
}

/// Waits until `count` messages are acknowledged.
async fn acks(intake: &Intake, count: i64) {
    eventually(SOON, async || match acked(&intake.here).await {
        acked if acked >= count => Ok(()),
        acked => Err(format!("{acked} of {count}")),
    })
    .await;
}

#[tokio::test]
async fn with_processes_killed_at_random_points_each_message_comes_out() {
    round_trip(3000, 6).await;
}

#[tokio::test]
#[ignore = "takes minutes; `make brokers` runs it"]
async fn with_processes_killed_at_fifty_random_points_each_message_comes_out() {
    round_trip(20_000, 50).await;
}
