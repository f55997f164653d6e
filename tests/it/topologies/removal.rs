//! A topic is removed from a cluster while it is in use, another one is under load, and managers die.

use super::SOON;
use super::load::{Load, settings};
use super::managers::{Manager, manager_with_shards};
use lisa_core::connect::ConnectOptions;
use lisa_core::topic::TopicSettings;
use lisa_producer::{NewMessage, Producer};
use lisa_tests::relay::ms;
use lisa_tests::{Aof, Binary, Cluster, eventually};
use redis::cmd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The topic that is removed, and its number of shards: each of the three masters has some.
const BRIEF: &str = "brief";
const SHARDS: &str = "shards=6";
/// Messages that it has when the removal begins, so that it takes long enough to be interrupted.
const STORED: usize = 6000;
/// The keys of the registry that name topics.
const REGISTRY: [&str; 2] = ["lisa:v1:{registry}:topics", "lisa:v1:{registry}:snapshot"];

/// Runs a verb of an operator to its end.
async fn verb(url: &str, words: &[&str]) {
    let words = [words, &["--redis-url", url]].concat();
    let done = Binary::Manager.with(words).run(SOON).await;
    assert_eq!(done.code, Some(0), "{done:?}");
}

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

async fn is_being_removed(here: &Cluster) -> bool {
    let conf = format!("lisa:v1:{{{BRIEF}:0}}:conf");
    let master = here.master_of(here.slot_of(&conf).await).await;
    let removed = cmd("HEXISTS").arg(conf).arg("removed").to_owned();
    here.ask(master, &removed).await.unwrap()
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

    verb(
        &url,
        &["topics", "create", BRIEF, SHARDS, "groups=default,audit"],
    )
    .await;
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

    let request = ["topics", "remove", BRIEF, "--force", "--yes"];
    // It waits until the topic is gone.
    let removing = verb(&url, &request);
    let killing = async {
        eventually(SOON, async || match is_being_removed(&here).await {
            true => Ok(()),
            false => Err("the removal has not begun".to_owned()),
        })
        .await;
        manager.process.kill9();
        println!("{} keys left when a manager died", left(&here).await.len());
        let mut next = Manager::start(&url).await;
        sleep(ms(200)).await;
        next.process.kill9();
    };
    tokio::join!(removing, killing);

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
