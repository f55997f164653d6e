//! Resharding on a cluster, under load, while a manager dies during a migration.

use super::load::{Load, TOPIC, settings};
use super::managers::{EACH_SECOND, manager_with_shards};
use super::{SOON, is_long};
use lisa_core::topic::TopicSettings;
use lisa_tests::{Aof, Binary, Cluster, eventually};
use redis::cmd;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const BEFORE: u16 = 3;
const AFTER: u16 = 8;
/// All keys of the topic's old shards.
async fn old_keys(here: &Cluster) -> Vec<String> {
    let mut keys = Vec::new();
    for master in here.masters().await {
        let pattern = format!("lisa:v1:{{{TOPIC}:[0-{}]}}:*", BEFORE - 1);
        let found: Vec<String> = here.ask(master, cmd("KEYS").arg(pattern)).await.unwrap();
        keys.extend(found);
    }
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_gets_more_shards_under_load_and_a_manager_dies_meanwhile() {
    let here = Cluster::start(Aof::EverySec).await;
    let settings = TopicSettings {
        shards: BEFORE,
        // No handler takes this long, and no process with a delivery dies.
        lease: Duration::from_secs(10),
        dedup_window: Duration::from_secs(1),
        ..settings()
    };
    let url = here.url();
    let access = [
        ("redis.url", url.clone()),
        ("manager.jobs.clean", EACH_SECOND.to_owned()),
    ];
    let mut load = Load::start(&access, settings).await;
    let mut others = Vec::new();
    let mut manager = manager_with_shards(&url, &mut others).await;
    // Messages that wait when it begins, so that it takes long enough to be interrupted.
    let (waiting, delay) = if is_long() { (6000, 7) } else { (3000, 4) };
    load.stock(waiting, Duration::from_secs(delay)).await;

    let number = AFTER.to_string();
    let verb = ["topics", "reshard", TOPIC, "--shards", &number, "--no-wait"];
    let verb = [&verb[..], &["--redis-url", &url]].concat();
    let done = Binary::Manager.with(verb).run(SOON).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let begun = Instant::now();
    while manager.counter("messages_migrated").await == 0 {
        assert!(begun.elapsed() < SOON, "nothing is migrated");
        sleep(Duration::from_millis(2)).await;
    }
    manager.process.kill9();
    let left = load.stats().await.migrating.unwrap_or(0);
    println!(
        "killed {:?} after the verb, {left} left on the old shards",
        begun.elapsed()
    );
    assert!(left > 0, "it had migrated all already");

    eventually(SOON, async || {
        let topic = load.topic().await;
        match topic.is_resharding() {
            false => Ok(()),
            true => Err(format!("{:?}", load.stats().await)),
        }
    })
    .await;
    println!("resharded after {:?}", begun.elapsed());
    load.passes(200).await;
    load.drained().await;
    assert_eq!(load.doubled(), Vec::<String>::new());
    assert_eq!(load.topic().await.settings().shards, AFTER);
    if !is_long() {
        load.leave().await;
    }
    eventually(SOON, async || match &old_keys(&here).await[..] {
        [key] if *key == format!("lisa:v1:{{{TOPIC}:0}}:conf") => Ok(()),
        keys => Err(format!("{keys:?}")),
    })
    .await;
    println!(
        "nothing is left of the old shards after {:?}",
        begun.elapsed()
    );
    let lost = load.finish().await;
    assert!(lost.is_empty(), "{lost:?}");
}
