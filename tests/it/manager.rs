//! The manager as a whole: exactness, assignments, jobs, healing, HTTP interface and command line.
//!
//! Single scripts are tested in `scripts`; here real managers run on the real clock.

mod attention;
mod audit;
mod backfill;
mod cli_url;
mod damage;
mod dashboard;
mod doctor;
mod events;
mod forwarder;
mod garbage_jobs;
mod garbage_search;
mod groups;
mod health;
mod history;
mod idle;
mod isolation;
mod jobs;
mod moving;
mod operators;
mod readers;
mod recurring;
mod run;
mod run_time_groups;
mod schedules;
mod served;
mod snapshot;
mod supervised;
mod tokens;
mod topics;
mod unsound;
mod watching;
mod workers;

use lisa_core::broker::{Broker, Read, TopicHandle, Verdict};
use lisa_core::message::{MessageId, PreparedMessage};
use lisa_core::state::State;
use lisa_manager::Manager;
use lisa_service::config::{Config, LoadOptions};
use lisa_service::role::Runtime;
use lisa_service::shutdown::Shutdown;
use lisa_tests::relay::{self, WORKER, ms};
use lisa_tests::{SOON, Server, eventually};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A configuration of these keys, on a namespace of a server.
fn config(server: &Server, namespace: &str, keys: &[(&str, &str)]) -> Config {
    let url = server.socket_url();
    let own = [("redis.url", url.as_str()), ("namespace", namespace)];
    let keys = own.iter().chain(keys);
    let overrides: BTreeMap<_, _> = keys
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let options = LoadOptions {
        overrides,
        ..LoadOptions::default()
    };
    Config::load(options).expect("a valid configuration")
}

/// A manager in this process. Dropping it is a crash: it does not leave.
struct Running {
    runtime: Runtime,
    manager: Manager,
}

impl Running {
    async fn start(config: &Config) -> Self {
        let shutdown = Shutdown::manual(SOON);
        let runtime =
            Runtime::with_shutdown("manager", config.clone(), shutdown).expect("a usable address");
        let manager = Manager::of(&runtime);
        manager.declare().await.expect("declared");
        manager.start(&runtime.supervisor);
        let running = Self { runtime, manager };
        // Until it is registered, verbs say that no manager runs.
        eventually(SOON, async || match running.broker().managers().await {
            Ok(managers) if managers.is_empty() => Err("not registered".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        })
        .await;
        running
    }

    fn broker(&self) -> &Broker {
        &self.runtime.broker
    }

    async fn topic(&self, name: &str) -> Arc<TopicHandle> {
        let name = name.parse().expect("a topic");
        self.broker()
            .topic(&name)
            .await
            .expect("a registered topic")
    }

    /// Waits until it holds this many shards, at least.
    async fn holds(&self, shards: usize) {
        eventually(SOON, async || {
            let held = self.manager.assignments().now().shards.len();
            if held >= shards {
                Ok(())
            } else {
                Err(format!("holds {held} of {shards} shards"))
            }
        })
        .await;
    }

    /// Runs a job and returns its report.
    async fn job(&self, name: &str) -> Value {
        let run = self.manager.schedule().run_now(name).await.expect("a job");
        assert!(run.ok, "{run:?}");
        run.report.expect("a report")
    }
}

fn after(delay: Duration) -> PreparedMessage {
    PreparedMessage {
        when: delay.into(),
        ..PreparedMessage::new("payload")
    }
}

async fn send(broker: &Broker, topic: &TopicHandle, message: PreparedMessage) -> MessageId {
    let id = message.id.clone();
    let shard = topic.shard_of(&id);
    let sent = broker.send(topic, shard, &[message]).await;
    sent.expect("sent");
    id
}

/// Reads from the first shard until there are `count` messages.
async fn read(broker: &Broker, topic: &TopicHandle, count: usize) -> Vec<Read> {
    let mut reader = broker.connection().any().reader().await.expect("a reader");
    let (shard, group) = (topic.shards().next().expect("a shard"), &topic.groups()[0]);
    let deadline = Instant::now() + SOON;
    let mut all = Vec::new();
    while all.len() < count {
        let left = count - all.len();
        let block = Duration::from_millis(200);
        let read = broker
            .read(&mut reader, topic, shard, group, WORKER, left, block)
            .await;
        all.extend(read.expect("read"));
        assert!(Instant::now() < deadline, "read {} of {count}", all.len());
    }
    all
}

/// Returns the time at which Redis created the entry, minus the due time, in ms.
fn lateness(read: &Read) -> i64 {
    let entry = read.attempt.entry.to_string();
    let (at, _) = entry.split_once('-').expect("ms and a sequence");
    let at: i64 = at.parse().expect("ms");
    at - i64::try_from(read.attempt.due.get()).expect("a time")
}

async fn wait_for(
    broker: &Broker,
    topic: &TopicHandle,
    state: State,
    count: usize,
    within: Duration,
) {
    eventually(within, async || {
        let found = broker
            .list(topic, &topic.groups()[0], state, None, 1000)
            .await
            .expect("a page")
            .items
            .len();
        if found == count {
            Ok(())
        } else {
            let stats = broker.stats(topic).await.expect("counted");
            Err(format!("{found} of {count} are {state}: {stats:?}"))
        }
    })
    .await;
}

/// Rejects a delivery.
async fn reject(broker: &Broker, topic: &TopicHandle, read: &Read) {
    let verdict = Verdict::Reject {
        error: "no such order".to_owned(),
    };
    let shard = topic.shards().next().expect("a shard");
    let settlement = relay::settlement(read, verdict);
    let group = &topic.groups()[0];
    let settled = broker.settle(topic, shard, group, &[settlement]).await;
    settled.expect("settled");
}

/// Puts a message into garbage.
async fn put_in_garbage(broker: &Broker, topic: &TopicHandle, id: &str) {
    send(broker, topic, relay::message(id, ms(0))).await;
    let read = read(broker, topic, 1).await;
    reject(broker, topic, &read[0]).await;
}
