//! The guarantees of sinks and sources, tested on real message brokers. `make brokers` runs these tests, including the long ones.

mod amqp;
mod hostile;
mod kafka;
mod nats;
mod redis_stream;
mod servers;
mod sources;

use crate::scenarios::deployment::TOPIC;
use crate::scenarios::targets::{nothing_lost, shows};
use crate::scenarios::{Deployment, Role};
use lisa_tests::{Binary, SOON, eventually};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Keys of the topic: retries that come soon.
const RETRY: &str = r#"retry = { base = "100ms", factor = 2.0, max = "1s", jitter = 0.0 }"#;

/// A relay whose consumer has a sink.
struct Scene {
    here: Deployment,
    relay: Role,
    consumer: Role,
}

impl Scene {
    /// Starts with a sink, in TOML, and 100 deliveries at a time.
    async fn start(sink: &str) -> Self {
        Self::with(RETRY, sink).await
    }

    /// Starts with further keys of the topic.
    async fn with(topic: &str, sink: &str) -> Self {
        let here = Deployment::start(topic).await;
        let settings = format!("concurrency = 100\nsink = {sink}");
        let (relay, consumer) = (here.combined().await, here.consumer(&settings).await);
        Self {
            here,
            relay,
            consumer,
        }
    }

    /// Sends messages that are due now, with these ids.
    async fn send(&self, ids: impl IntoIterator<Item = String>) {
        let messages: Vec<Value> = ids
            .into_iter()
            .map(|id| json!({"id": id, "payload": format!("payload of {id}")}))
            .collect();
        self.send_all(&messages).await;
    }

    async fn send_all(&self, messages: &[Value]) {
        for batch in messages.chunks(500) {
            self.relay.api.batch(TOPIC, batch).await;
        }
    }

    /// Waits until `count` messages are acknowledged.
    async fn acked(&self, count: i64) {
        eventually(SOON, async || {
            let stats = self.here.stats().await;
            match Deployment::counter(&stats, "acked") {
                acked if acked >= count => Ok(()),
                _ => Err(format!("{stats:#}\n{}", self.consumer.process.stderr())),
            }
        })
        .await;
    }

    /// Waits until an attempt has failed.
    async fn retried(&self) {
        eventually(SOON, async || {
            let stats = self.here.stats().await;
            match Deployment::counter(&stats, "retried") {
                0 => Err(format!("{stats:#}\n{}", self.consumer.process.stderr())),
                _ => Ok(()),
            }
        })
        .await;
    }

    /// Checks that no attempt was counted so far.
    async fn no_attempt(&self) {
        let stats = self.here.stats().await;
        assert_eq!(Deployment::counter(&stats, "retried"), 0, "{stats:#}");
        assert_eq!(Deployment::count(&stats, "garbage"), 0, "{stats:#}");
    }

    /// Waits until `count` messages are in garbage and no other one is underway.
    async fn in_garbage(&self, count: u64) -> Value {
        let settled = [
            ("garbage", count),
            ("in_flight", 0),
            ("retry", 0),
            ("ready", 0),
        ];
        self.here.settled(&settled).await
    }

    /// Checks the last error of the oldest message in garbage.
    async fn garbage_says(&self, text: &str) {
        let list = ["garbage", "list", TOPIC];
        let (_, page) = self.here.json(Binary::Manager, &list).await;
        let error = page["messages"][0]["error"].as_str().unwrap_or_default();
        assert!(error.contains(text), "{page:#}");
    }

    /// Waits until the target is unavailable for this reason, which `/readyz` reports while it stays ready.
    async fn unavailable(&self, reason: &str) {
        shows(&self.consumer, "lisa_sink_up", 0).await;
        let ready = self.consumer.api.get("/readyz").await;
        assert_eq!(ready.status, 200, "{}", ready.body);
        assert!(ready.body.contains("target unavailable"), "{}", ready.body);
        assert!(ready.body.contains(reason), "{}", ready.body);
    }

    /// Waits until all messages are acknowledged, and checks that none was lost.
    async fn nothing_lost(&self, sent: i64) -> Value {
        self.acked(sent).await;
        nothing_lost(&self.here, sent).await
    }

    /// Waits until all messages are acknowledged, and checks that none was lost and no attempt was counted.
    async fn no_attempt_lost(&self, sent: i64) {
        let stats = self.nothing_lost(sent).await;
        assert_eq!(Deployment::counter(&stats, "retried"), 0, "{stats:#}");
        shows(&self.consumer, "lisa_sink_up", 1).await;
    }
}

/// Returns the ids of `count` messages.
fn ids(count: usize) -> impl Iterator<Item = String> + Clone {
    (0..count).map(|n| format!("m-{n}"))
}

/// Checks that each of `sent` was received at least once, and nothing else.
#[track_caller]
fn all_received(sent: impl Iterator<Item = String>, received: &[String]) {
    let (sent, received): (BTreeSet<String>, BTreeSet<String>) =
        (sent.collect(), received.iter().cloned().collect());
    let missing: Vec<_> = sent.difference(&received).take(5).collect();
    let foreign: Vec<_> = received.difference(&sent).take(5).collect();
    assert!(
        missing.is_empty() && foreign.is_empty(),
        "missing {missing:?}, foreign {foreign:?}"
    );
}
