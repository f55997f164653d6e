//! A group for each running process: every one gets every message, and one that was killed, or frozen for too long,
//! leaves nothing behind.

use super::deployment::{GROUP, STDOUT, TOPIC};
use super::workers::Workers;
use super::{Deployment, SOON, by_id, lines};
use lisa_consumer::Outcome;
use lisa_core::broker::TopicStats;
use lisa_tests::{Stopwatch, eventually};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const PROCESSES: usize = 4;
const MESSAGES: usize = 100;
/// The topic's `instance_ttl`, plus the rounds of the job that removes groups.
const TTL: Duration = Duration::from_secs(5);
const ON_TOP: Duration = Duration::from_secs(5);

fn messages(stem: &str) -> Vec<Value> {
    let message = |n| {
        let delay = format!("{}ms", fastrand::u64(0..300));
        json!({ "id": format!("{stem}-{n}"), "payload": n, "delay": delay })
    };
    (0..MESSAGES).map(message).collect()
}

/// The ready messages of each instance's group.
fn of_instances(stats: &TopicStats) -> BTreeMap<String, u64> {
    let groups = stats.groups.iter().filter(|group| group.instance);
    groups
        .map(|group| (group.group.to_string(), group.ready))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_process_gets_each_message_once_and_one_that_falls_silent_leaves_nothing_behind() {
    let here = Deployment::start(&format!("instance_ttl = \"{}s\"", TTL.as_secs()))
        .await
        .reader("{instance}")
        .with("[manager.jobs]\nclean = \"* * * * * *\"");
    let relay = here.combined().await;
    let work = |_| std::future::ready(Outcome::Ack);
    let shared = Workers::start(&here, GROUP, (1, 16), work).await;
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        processes.push(here.consumer(STDOUT).await);
    }
    let broker = here.broker().await;
    let topic = broker.topic(&TOPIC.parse().unwrap()).await.unwrap();
    let stats = async || broker.stats(&topic).await.unwrap();
    let alive = async |count: usize| {
        let of_instances = eventually(SOON, async || match of_instances(&stats().await) {
            groups if groups.len() == count => Ok(groups),
            groups => Err(format!("{groups:?}")),
        });
        of_instances.await
    };
    let all = alive(PROCESSES).await;

    relay.api.batch(TOPIC, &messages("first")).await;
    for process in &mut processes {
        let lines = lines(process, MESSAGES, SOON).await;
        assert_eq!(by_id(&lines).len(), MESSAGES, "each once");
    }
    let counts = here.drained().await;
    let acked = ((PROCESSES + 1) * MESSAGES) as i64;
    assert_eq!(Deployment::counter(&counts, "acked"), acked, "{counts:#}");

    processes.remove(0).process.kill9();
    let mut frozen = processes.remove(0);
    frozen.process.stop();
    let killed = Stopwatch::start();
    relay.api.batch(TOPIC, &messages("second")).await;
    let owed = eventually(TTL, async || {
        let groups = of_instances(&stats().await);
        let owed = groups.iter().find(|(_, ready)| **ready == MESSAGES as u64);
        match owed {
            Some((group, _)) => Ok(group.clone()),
            None => Err(format!("{groups:?}")),
        }
    })
    .await;
    for process in &mut processes {
        let lines = lines(process, MESSAGES, SOON).await;
        assert_eq!(by_id(&lines).len(), MESSAGES, "each once");
    }

    let left = alive(PROCESSES - 2).await;
    let took = killed.elapsed();
    println!("{owed} gone {took:?} after the kill");
    killed.assert_took(took, TTL, ON_TOP);
    assert!(all.contains_key(&owed) && !left.contains_key(&owed));
    let counts = here.drained().await;
    assert_eq!(
        Deployment::counter(&counts, "dropped"),
        2 * MESSAGES as i64,
        "{counts:#}"
    );
    let snapshot = here.snapshot().await;
    for (key, _) in snapshot.iter() {
        assert!(!key.ends_with(&format!(":{owed}")), "{key} is left");
    }
    let payloads = format!("v1:{{{TOPIC}:0}}:payload");
    assert!(snapshot.hash(&payloads).is_empty(), "{snapshot}");
    // The frozen one continues in a newly created group, and reports that it may have missed messages.
    frozen.process.cont();
    alive(PROCESSES - 1).await;
    relay.api.batch(TOPIC, &messages("third")).await;
    for process in &mut processes {
        let lines = lines(process, MESSAGES, SOON).await;
        assert_eq!(by_id(&lines).len(), MESSAGES, "each once");
    }
    let mut thirds = 0;
    while thirds < MESSAGES {
        // Messages that it had read before it was frozen may be printed now.
        let line = lines(&mut frozen, 1, SOON).await;
        thirds += usize::from(line[0].id.starts_with("third"));
    }
    let log = frozen.process.stderr();
    assert!(log.contains("silent for longer than instance_ttl"), "{log}");
    processes.push(frozen);
    for process in &mut processes {
        process.stop().await;
        assert_eq!(process.process.lines(), Vec::<String>::new(), "none twice");
    }
    shared.stop().await;
    here.conserved().await;
}
