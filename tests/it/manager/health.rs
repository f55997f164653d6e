//! What `/healthz` says: a loop that keeps trying is alive, one that gets nowhere while Redis answers is not.

use super::{Running, SOON, config};
use lisa_consumer::{Consumer, Context, delivery_fn};
use lisa_tests::{Server, eventually};
use redis::cmd;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How soon a loop that gets nowhere must show.
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

#[tokio::test]
async fn every_loop_is_well_while_redis_is_away_and_when_it_is_back() {
    let mut server = Server::start();
    let running = start(&server, "away").await;
    let health = running.runtime.supervisor.health();
    server.stop();
    eventually(SOON, async || match running.runtime.link.is_up() {
        true => Err("up"),
        false => Ok(()),
    })
    .await;
    let stay_green = async |span: Duration| {
        let end = Instant::now() + span;
        while Instant::now() < end {
            assert!(health.is_green(), "{:#?}", health.tasks());
            sleep(Duration::from_millis(20)).await;
        }
    };
    // For longer than any loop may be silent.
    stay_green(SHOWS + Duration::from_secs(2)).await;
    assert!(!running.runtime.readiness.reasons().is_empty());
    server.restart();
    stay_green(SHOWS).await;
    assert!(running.runtime.link.is_up());
}

#[tokio::test]
async fn a_loop_that_gets_nowhere_while_redis_answers_shows_within_five_seconds() {
    let server = Server::start();
    let running = start(&server, "stuck").await;
    for key in ["waiting", "ready:default"] {
        let key = format!("stuck:v1:{{t:0}}:{key}");
        let kept = format!("{key}:kept");
        let run = async |words: &[&str]| {
            let mut command = cmd(words[0]);
            command.arg(&words[1..]);
            let mut connection = server.connection().await;
            let _: redis::Value = command.query_async(&mut connection).await.expect(words[0]);
        };
        if key.contains("ready") {
            run(&["RENAME", &key, &kept]).await;
        }
        run(&["SET", &key, "x"]).await;
        // One second for the test itself.
        green(&running, false, SHOWS + Duration::from_secs(1)).await;
        assert!(running.runtime.link.is_up());
        run(&["DEL", &key]).await;
        if key.contains("ready") {
            run(&["RENAME", &kept, &key]).await;
        }
        green(&running, true, SOON).await;
    }
}
