//! Several groups of one topic: each gets every message once, and no group affects the others.

use super::deployment::TOPIC;
use super::workers::Workers;
use super::{Deployment, SOON};
use lisa_consumer::{Delivery, Outcome};
use lisa_core::broker::Broker;
use lisa_core::topic::Group;
use lisa_producer::{NewMessage, Producer, SendOutcome};
use lisa_tests::eventually;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const MESSAGES: usize = 300;
const GROUPS: [&str; 3] = ["billing", "mail", "search"];

/// The number of runs of each message in each group.
#[derive(Clone, Default)]
struct Tally {
    runs: Arc<Mutex<BTreeMap<Group, BTreeMap<String, usize>>>>,
}

impl Tally {
    /// Starts consumers of a group that fail the first `failures` runs of each message.
    async fn workers(&self, here: &Deployment, group: &str, failures: usize) -> Workers {
        let runs = self.runs.clone();
        let work = move |delivery: Delivery| {
            let payload = String::from_utf8(delivery.payload.to_vec()).unwrap();
            let mut runs = runs.lock().unwrap();
            let of_group = runs.entry(delivery.group).or_default();
            let times = of_group.entry(payload).or_default();
            *times += 1;
            let outcome = if *times > failures {
                Outcome::Ack
            } else {
                Outcome::retry("not yet")
            };
            std::future::ready(outcome)
        };
        Workers::start(here, group, (2, 16), work).await
    }

    fn of(&self, group: &str) -> BTreeMap<String, usize> {
        let runs = self.runs.lock().unwrap();
        let group: Group = group.parse().unwrap();
        runs.get(&group).cloned().unwrap_or_default()
    }

    /// Waits until a group had exactly these messages, each this many times.
    #[track_caller]
    fn had(&self, group: &str, messages: &[String], times: usize) -> impl Future<Output = ()> {
        eventually(SOON, async move || {
            let had = self.of(group);
            let wrong: Vec<_> = messages
                .iter()
                .filter(|message| had.get(*message) != Some(&times))
                .collect();
            if wrong.is_empty() && had.len() == messages.len() {
                return Ok(());
            }
            Err(format!(
                "{group} had {} messages, {} of {} not {times} times",
                had.len(),
                wrong.len(),
                messages.len()
            ))
        })
    }
}

/// Sends messages that are due within half a second; returns their payloads.
async fn send(producer: &Producer, stem: &str, count: usize) -> Vec<String> {
    let names: Vec<String> = (0..count).map(|n| format!("{stem}-{n}")).collect();
    let messages = names.iter().map(|name| {
        let delay = lisa_tests::relay::ms(fastrand::u64(0..500));
        NewMessage::new(name.clone()).delay(delay)
    });
    let receipts = producer.send_batch(TOPIC, messages.collect()).await;
    for receipt in receipts.unwrap() {
        assert_eq!(receipt.unwrap().outcome, SendOutcome::Waiting);
    }
    names
}

/// Returns the number of stored payloads.
async fn stored(here: &Deployment) -> usize {
    let payloads = format!("v1:{{{TOPIC}:0}}:payload");
    here.snapshot().await.hash(&payloads).len()
}

async fn pause(broker: &Broker, group: &str, paused: bool) {
    let topic = broker.topic(&TOPIC.parse().unwrap()).await.unwrap();
    let group = group.parse().unwrap();
    assert!(broker.pause_group(&topic, &group, paused).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_three_groups_gets_each_message_once_though_one_fails_and_one_is_paused() {
    let retry = "retry = { kind = \"fixed\", delay = \"50ms\", jitter = 0.0 }";
    let here = Deployment::start(retry).await.groups(&GROUPS);
    let _manager = here.manager().await;
    let broker = here.broker().await;
    let producer = Producer::new(broker.clone());
    let tally = Tally::default();
    pause(&broker, "search", true).await;
    let mut workers = vec![
        tally.workers(&here, "billing", 0).await,
        tally.workers(&here, "mail", 2).await,
        tally.workers(&here, "search", 0).await,
    ];
    let messages = send(&producer, "m", MESSAGES).await;

    tally.had("billing", &messages, 1).await;
    tally.had("mail", &messages, 3).await;
    let owed = MESSAGES as u64;
    let stats = here
        .settled(&[
            ("waiting", 0),
            ("retry", 0),
            ("in_flight", 0),
            ("backlog", owed),
        ])
        .await;
    assert_eq!(Deployment::counter(&stats, "acked"), 2 * owed as i64);
    assert_eq!(Deployment::counter(&stats, "retried"), 2 * owed as i64);
    assert_eq!(stats["conservation_error"], 0, "{stats:#}");
    assert_eq!(tally.of("search"), BTreeMap::new());
    assert_eq!(stored(&here).await, MESSAGES, "one group owes them still");

    pause(&broker, "search", false).await;
    tally.had("search", &messages, 1).await;
    let stats = here.drained().await;
    assert_eq!(Deployment::counter(&stats, "acked"), 3 * owed as i64);
    assert_eq!(stored(&here).await, 0, "no group owes them any more");
    // This still holds at the end.
    tally.had("billing", &messages, 1).await;
    tally.had("mail", &messages, 3).await;
    for workers in workers.drain(..) {
        workers.stop().await;
    }
    here.conserved().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_goes_with_the_last_of_the_acks() {
    let here = Deployment::start("").await.groups(&GROUPS);
    let _manager = here.manager().await;
    let producer = Producer::new(here.broker().await);
    let tally = Tally::default();
    let messages = send(&producer, "m", 50).await;
    let mut owed = (GROUPS.len() * messages.len()) as u64;
    for group in GROUPS {
        here.settled(&[("waiting", 0), ("ready", owed)]).await;
        assert_eq!(stored(&here).await, messages.len(), "before {group}");
        let workers = tally.workers(&here, group, 0).await;
        tally.had(group, &messages, 1).await;
        owed -= messages.len() as u64;
        here.settled(&[("ready", owed), ("in_flight", 0)]).await;
        workers.stop().await;
    }
    assert_eq!(stored(&here).await, 0);
    let left = format!("v1:{{{TOPIC}:0}}:left");
    assert!(here.snapshot().await.hash(&left).is_empty());
    here.conserved().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_adds_a_group_for_what_becomes_due_afterwards_and_takes_none_away() {
    let mut here = Deployment::start("").await.groups(&["billing", "mail"]);
    let mut manager = here.manager().await;
    let producer = Producer::new(here.broker().await);
    let tally = Tally::default();
    let workers = [
        tally.workers(&here, "billing", 0).await,
        tally.workers(&here, "mail", 0).await,
    ];
    let early = send(&producer, "early", 100).await;
    tally.had("billing", &early, 1).await;
    tally.had("mail", &early, 1).await;
    // It waits when the group comes.
    let waiting = NewMessage::new("waiting").id("waiting").delay(SOON);
    producer.send_message(TOPIC, waiting).await.unwrap();

    manager.stop().await;
    here.set_groups(&["billing", "search"]);
    let _manager = here.manager().await;
    let added = tally.workers(&here, "search", 0).await;
    producer.deliver_now(TOPIC, "waiting").await.unwrap();
    // This producer knows the topic from before; senders need not know of the group.
    let mut late = send(&producer, "late", 100).await;
    late.push("waiting".to_owned());
    tally.had("search", &late, 1).await;
    let all = [&early[..], &late[..]].concat();
    tally.had("billing", &all, 1).await;
    tally.had("mail", &all, 1).await;
    let stats = here.drained().await;
    let groups = stats["groups"].as_array().expect("groups");
    let names: Vec<&str> = groups.iter().filter_map(|g| g["group"].as_str()).collect();
    assert_eq!(names, ["billing", "mail", "search"], "{stats:#}");
    assert_eq!(stored(&here).await, 0);
    for workers in workers {
        workers.stop().await;
    }
    added.stop().await;
    here.conserved().await;
}
