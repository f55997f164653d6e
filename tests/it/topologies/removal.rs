//! A topic is removed from a cluster while it is in use, another one is under load, and managers die.

use super::SOON;
use super::load::{Load, settings};
use super::managers::{Manager, manager_with_shards};
use lisa_core::connect::ConnectOptions;
use lisa_core::topic::TopicSettings;
use lisa_producer::{NewMessage, Producer};
use lisa_tests::relay::ms;
use lisa_tests::{Aof, Cluster, eventually};
use redis::cmd;
use reqwest::Method;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The topic that is removed, and its number of shards: each of the three masters has some.
const BRIEF: &str = "brief";
const SHARDS: u16 = 6;
/// Messages that it has when the removal begins, so that it takes long enough to be interrupted.
const STORED: usize = 6000;
/// The keys of the registry that name topics.
const REGISTRY: [&str; 2] = ["lisa:v1:{registry}:topics", "lisa:v1:{registry}:snapshot"];

/// Sends messages, half of which are due at once, and counts those that are accepted.
async fn keep_sending(producer: Producer, accepted: Arc<AtomicUsize>) {
    for number in 0_u64.. {
        let delay = Duration::from_secs(3600 * (number % 2));
        let message = NewMessage::new("x").delay(delay);
        match producer.send_message(BRIEF, message).await {
            Ok(_) => drop(accepted.fetch_add(1, Ordering::Relaxed)),
            Err(_) => sleep(ms(10)).await,
        }
    }
}

/// Returns what is left of the topic on all masters, except the record of its removal, which expires.
async fn left(here: &Cluster) -> Vec<String> {
    let mut left = Vec::new();
    for master in here.masters().await {
        let pattern = format!("lisa:v1:{{{BRIEF}:*");
        let keys: Vec<String> = here.ask(master, cmd("KEYS").arg(pattern)).await.unwrap();
        for key in keys {
            let ttl: i64 = here.ask(master, cmd("PTTL").arg(&key)).await.unwrap();
            if ttl <= 0 || key != format!("lisa:v1:{{{BRIEF}:0}}:conf") {
                left.push(key);
            }
        }
    }
    for registry in REGISTRY {
        let slot = here.slot_of(registry).await;
        let of_topic = cmd("HEXISTS").arg(registry).arg(BRIEF).to_owned();
        if here
            .ask(here.master_of(slot).await, &of_topic)
            .await
            .unwrap()
        {
            left.push(registry.to_owned());
        }
    }
    left
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_in_use_is_removed_while_managers_die_and_leaves_nothing() {
    let here = Cluster::start(Aof::EverySec).await;
    let url = here.url();
    let settings = TopicSettings {
        // No handler takes this long, and no process with a delivery dies.
        lease: Duration::from_secs(10),
        ..settings()
    };
    let mut load = Load::start(&[("redis.url", url.clone())], settings).await;
    let mut others = Vec::new();
    let mut manager = manager_with_shards(&url, &mut others).await;

    let path = format!("/v1/topics/{BRIEF}");
    let create = json!({ "shards": SHARDS, "groups": ["default", "audit"] });
    let created = manager.api.call(Method::PUT, &path, &create);
    created.await.expect(201);
    let broker = ConnectOptions::new(&url).unwrap().connect().await.unwrap();
    let producer = Producer::new(broker);
    let (accepted, mut senders) = (Arc::new(AtomicUsize::new(0)), JoinSet::new());
    for _ in 0..50 {
        senders.spawn(keep_sending(producer.clone(), accepted.clone()));
    }
    eventually(SOON, async || match accepted.load(Ordering::Relaxed) {
        STORED.. => Ok(()),
        count => Err(format!("{count} accepted")),
    })
    .await;

    let force = format!("{path}?how=force");
    let nothing = json!({});
    let removed = manager.api.call(Method::DELETE, &force, &nothing);
    removed.await.expect(202);
    manager.process.kill9();
    println!("{} keys left when a manager died", left(&here).await.len());
    let mut next = Manager::start(&url).await;
    sleep(ms(200)).await;
    next.process.kill9();

    let gone = async || match &left(&here).await[..] {
        [] => Ok(()),
        keys => Err(format!("{keys:?}")),
    };
    eventually(SOON, gone).await;
    // The senders, which still know it, have not brought it back.
    sleep(ms(500)).await;
    eventually(SOON, gone).await;
    senders.shutdown().await;

    load.passes(200).await;
    load.drained().await;
    assert_eq!(load.doubled(), Vec::<String>::new());
    let lost = load.finish().await;
    assert!(lost.is_empty(), "{lost:?}");
}
