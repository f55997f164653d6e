//! Sources on real message brokers: what is taken off them is delivered by Lisa, and nothing is lost.

mod amqp;
mod kafka;
mod nats;
mod round_trip;

use super::SOON;
use crate::scenarios::deployment::{STDOUT, TOPIC};
use crate::scenarios::targets::{gauge, nothing_lost, shows};
use crate::scenarios::{Deployment, Role};
use lisa_tests::{Binary, eventually};
use serde_json::Value;
use std::time::Instant;

/// The name of the source in all tests.
const SOURCE: &str = "in";

/// A relay whose producer has a source.
struct Intake {
    here: Deployment,
    _manager: Role,
    producer: Role,
}

impl Intake {
    /// Starts with a source, whose `from` is in TOML, and further keys of the source and of the topic.
    async fn start(from: &str, source: &str, topic: &str) -> Self {
        let here = Deployment::start(topic).await.with(&config(from, source));
        let (manager, producer) = (here.manager().await, here.producer().await);
        Self {
            here,
            _manager: manager,
            producer,
        }
    }

    /// Starts with a source and the topic of the scenarios.
    async fn of(from: &str) -> Self {
        Self::start(from, "", "").await
    }

    /// Starts a consumer, which acknowledges all messages.
    async fn consumer(&self) -> Role {
        self.here.consumer(STDOUT).await
    }

    /// The number of the source's messages with one outcome, counted by the running producer.
    async fn counted(&self, outcome: &str) -> i64 {
        let name =
            format!("lisa_source_messages_total{{source=\"{SOURCE}\",outcome=\"{outcome}\"}}");
        gauge(&self.producer, &name).await.unwrap_or(0)
    }

    /// Waits until the running producer has counted at least this number of messages with one outcome.
    async fn takes(&self, outcome: &str, count: i64) {
        eventually(SOON, async || match self.counted(outcome).await {
            counted if counted >= count => Ok(()),
            counted => Err(format!(
                "{counted} {outcome}\n{}",
                self.producer.process.stderr()
            )),
        })
        .await;
    }

    /// Waits until the source does not work for this reason, which `/readyz` reports while it stays ready.
    async fn unavailable(&self, reason: &str) {
        self.warns(reason).await;
        shows(&self.producer, "lisa_source_up", 0).await;
    }

    /// Waits until `/readyz` reports this problem of the source while it stays ready.
    async fn warns(&self, reason: &str) {
        eventually(SOON, async || {
            let ready = self.producer.api.get("/readyz").await;
            assert_eq!(ready.status, 200, "{}", ready.body);
            match ready.body.contains("source in ") && ready.body.contains(reason) {
                true => Ok(()),
                false => Err(format!(
                    "{}\n{}",
                    ready.body,
                    self.producer.process.stderr()
                )),
            }
        })
        .await;
    }

    /// Kills the producer and starts another.
    async fn kill_producer(&mut self) {
        self.producer.process.kill9();
        self.producer = self.here.producer().await;
    }

    /// Starts a consumer, and waits until exactly `count` messages are delivered.
    async fn delivers(&self, count: i64) {
        let _consumer = self.consumer().await;
        self.delivered(count).await;
    }

    /// Waits until exactly `count` messages are delivered.
    async fn delivered(&self, count: i64) {
        eventually(SOON, async || {
            let stats = self.here.stats().await;
            match Deployment::counter(&stats, "acked") {
                acked if acked >= count => Ok(()),
                _ => Err(format!("{stats:#}\n{}", self.producer.process.stderr())),
            }
        })
        .await;
        nothing_lost(&self.here, count).await;
    }

    /// Returns a message as the producer's interface shows it, once it is there.
    async fn message(&self, id: &str) -> Value {
        let path = format!("/v1/topics/{TOPIC}/messages/{id}");
        eventually(SOON, async || {
            let reply = self.producer.api.get(&path).await;
            match reply.status {
                200 => Ok(reply.json()),
                _ => Err(format!(
                    "{}\n{}",
                    reply.body,
                    self.producer.process.stderr()
                )),
            }
        })
        .await
    }

    /// Prints the rate at which messages were taken since `start`.
    fn rate(&self, count: i64, start: Instant) {
        let seconds = start.elapsed().as_secs_f64();
        let rate = count as f64 / seconds;
        println!("{count} messages in {seconds:.1} s, {rate:.0}/s (debug build)");
    }
}

/// The table of a source.
fn config(from: &str, source: &str) -> String {
    let topic = match source.contains("topic =") {
        true => String::new(),
        false => format!("topic = {TOPIC:?}"),
    };
    format!("[[producer.sources]]\nname = {SOURCE:?}\nfrom = {from}\n{topic}\n{source}\n")
}

#[tokio::test]
async fn config_check_lists_what_is_wrong_with_a_source() {
    let source = config(
        r#"{ type = "amqp", url = "amqp://h" }"#,
        r#"topic = "{header:to}""#,
    );
    let check = Binary::Manager.with(["config", "check"]).config(&source);
    let done = check.run(SOON).await;
    assert_eq!(done.code, Some(78), "{done:?}");
    for path in [
        "producer.sources[0].from.queue",
        "producer.sources[0].topics",
    ] {
        assert!(done.stderr.contains(path), "{path}: {done:?}");
    }
}
