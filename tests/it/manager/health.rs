//! The answers of `/healthz`: a loop that keeps trying is alive, whether Redis is unavailable or one topic is damaged.

use super::{Running, SOON, config};
use lisa_consumer::{Consumer, Context, delivery_fn};
use lisa_tests::{Server, eventually};
use redis::cmd;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// The time after which a loop that makes no progress must show.
const SHOWS: Duration = Duration::from_secs(5);

/// A manager and a consumer in one process, all loops well.
async fn start(server: &Server, namespace: &str) -> Running {
    let config = config(server, namespace, &[("topics.t.shards", "1")]);
    let running = Running::start(&config).await;
    let handler = delivery_fn(|_, _: Context| async {});
    let consumer = Consumer::builder(running.broker().clone()).topic("t", handler);
    let consumer = consumer.build().expect("a consumer");
    consumer.start(&running.runtime.supervisor, &running.runtime.shutdown);
    running.holds(1).await;
    green(&running, true, SOON).await;
    running
}

async fn green(running: &Running, wanted: bool, within: Duration) {
    let health = running.runtime.supervisor.health();
    eventually(within, async || {
        if health.is_green() == wanted {
            Ok(())
        } else {
            Err(format!("{:#?}", health.tasks()))
        }
    })
    .await;
}

async fn stay_green(running: &Running, span: Duration) {
    let health = running.runtime.supervisor.health();
    let end = Instant::now() + span;
    while Instant::now() < end {
        assert!(health.is_green(), "{:#?}", health.tasks());
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn every_loop_is_well_while_redis_is_away_and_when_it_is_back() {
    let mut server = Server::start();
    let running = start(&server, "away").await;
    server.stop();
    eventually(SOON, async || match running.runtime.connection.is_up() {
        true => Err("up"),
        false => Ok(()),
    })
    .await;
    // For longer than any loop may be silent.
    stay_green(&running, SHOWS + Duration::from_secs(2)).await;
    assert!(!running.runtime.readiness.reasons().is_empty());
    server.restart();
    stay_green(&running, SHOWS).await;
    assert!(running.runtime.connection.is_up());
}

/// No requests go to an idle server, so the connection notices last that it is silent.
#[tokio::test]
async fn every_loop_is_well_while_redis_is_frozen_and_when_it_goes_on() {
    let mut server = Server::start();
    let running = start(&server, "frozen").await;
    server.pause();
    stay_green(&running, SHOWS + Duration::from_secs(2)).await;
    assert!(!running.runtime.connection.is_up());
    server.resume();
    stay_green(&running, Duration::from_secs(2)).await;
    eventually(SOON, async || match running.runtime.connection.is_up() {
        true => Ok(()),
        false => Err("down"),
    })
    .await;
}

#[tokio::test]
async fn a_damaged_topic_does_not_make_the_process_look_dead() {
    let server = Server::start();
    let running = start(&server, "damaged").await;
    let mut connection = server.connection().await;
    let mut set = cmd("SET");
    let _: redis::Value = set
        .arg("damaged:v1:{t:0}:waiting")
        .arg("x")
        .query_async(&mut connection)
        .await
        .expect("SET");
    stay_green(&running, SHOWS + Duration::from_secs(2)).await;
    let errors = running.runtime.metrics.encode();
    assert!(
        errors.contains("lisa_redis_errors_total{code=\"WRONGTYPE\"}"),
        "{errors}"
    );
}
