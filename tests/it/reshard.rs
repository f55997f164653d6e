//! Resharding while a topic is in use: no message is lost, duplicated or out of order, whichever process stops at any
//! point.

mod changed;
mod counts;
mod gone;
mod groups;
mod instances;
mod keyed;
mod merges;
mod order;
mod rates;
mod run;
mod same_id;
mod stale;
mod wiped;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::model::{first_seed, number};
use lisa_core::broker::{Broker, Declare, Migration, Read, Resharded, TopicHandle, Verdict};
use lisa_core::message::PreparedMessage;
use lisa_core::state::{CancelOutcome, SendOutcome, Settled};
use lisa_core::topic::Shard;
use lisa_tests::Relay;
use lisa_tests::relay::{id, message, ms, retry, settlement};

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// Random steps of one run, before all is brought to its end.
const STEPS: u64 = 500;

/// Opens new shards, and returns the topic as it is then.
pub(crate) async fn open(relay: &Relay, shards: u16) -> std::sync::Arc<TopicHandle> {
    let resharded = relay.broker().reshard(relay.topic().name(), shards).await;
    match resharded.unwrap() {
        Resharded::UnderWay(topic) => topic,
        Resharded::Same => panic!("it has {shards} shards"),
    }
}

/// Migrates all old shards until nothing more can move; returns how many messages and deliveries are left there.
pub(crate) async fn migrate_out(broker: &Broker, topic: &TopicHandle) -> u64 {
    let mut left = 0;
    let retiring = topic.shards().filter(|shard| topic.is_retiring(*shard));
    for shard in retiring {
        let mut migration = Migration::default();
        for step in 0.. {
            assert!(step < 500, "shard {shard} has no rest");
            let newest = broker.known(topic.name()).unwrap();
            if !newest.is_retiring(shard) {
                break;
            }
            let step = broker.migrate_out(&newest, shard, &mut migration).await;
            let step = step.unwrap();
            if !step.more {
                left += step.left;
                break;
            }
        }
    }
    left
}

fn keyed(name: &str, key: &str, delay: Duration) -> PreparedMessage {
    let mut message = message(name, delay);
    message.options.key = Some(key.parse().unwrap());
    message
}

async fn send(broker: &Broker, topic: &TopicHandle, message: PreparedMessage) -> SendOutcome {
    let shard = topic.shard_of_message(&message);
    let sent = broker.send(topic, shard, &[message]).await.unwrap();
    assert_eq!(sent.len(), 1);
    sent[0].outcome
}

/// Moves what is due on a shard, and reads the one message that must be ready there.
async fn next_of(relay: &Relay, topic: &TopicHandle, shard: Shard) -> Read {
    let moved = relay.broker().move_due(topic, shard, 50, HOUR).await;
    moved.unwrap();
    let mut reads = relay.read_as(shard, "worker", 9).await;
    assert_eq!(reads.len(), 1);
    reads.remove(0)
}

/// Acknowledges a delivery.
async fn ack(relay: &Relay, topic: &TopicHandle, shard: Shard, read: &Read) {
    let acked = [settlement(read, Verdict::Ack)];
    let settled = relay
        .broker()
        .settle(topic, shard, relay.group(), &acked)
        .await;
    assert_eq!(settled.unwrap(), [Settled::Acked]);
}

#[tokio::test]
async fn waiting_messages_are_on_the_shards_of_their_routes_afterwards() {
    let relay = Relay::start("reshard").await;
    for n in 0..300 {
        send(
            relay.broker(),
            relay.topic(),
            message(&format!("m-{n}"), HOUR),
        )
        .await;
    }
    for key in ["series", "series15", "failures"] {
        let key = relay.key(key);
        let _: String = relay
            .command(redis::cmd("XADD").arg(&key).arg(&["1-0", "s", "1"]))
            .await;
    }
    let observed = relay.key("observed");
    let _: u64 = relay
        .command(redis::cmd("HINCRBY").arg(&observed).arg(&["0", "1"]))
        .await;
    let topic = open(&relay, 3).await;
    assert!(topic.is_resharding());
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    let topic = relay.broker().known(topic.name()).unwrap();
    assert!(!topic.is_resharding());
    assert_eq!(
        topic.shards().collect::<Vec<_>>(),
        [1, 2, 3].map(Shard::new)
    );
    let snapshot = relay.snapshot().await;
    for n in 0..300 {
        let id = id(&format!("m-{n}"));
        let waiting = snapshot.zset(&relay.short_key(topic.shard_of(&id).get(), "waiting"));
        assert!(
            waiting
                .keys()
                .any(|member| member.0 == id.as_str().as_bytes()),
            "{id}"
        );
    }
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!((stats.waiting, stats.conservation_error), (300, 0));
    assert_eq!(stats.counters["accepted"], 300);
    // The rest of the old shard leads to the new ones, also for processes that knew only the old one.
    relay.broker().drop_retired_keys(&topic).await.unwrap();
    let left: Vec<String> = relay
        .snapshot()
        .await
        .iter()
        .map(|(key, _)| key.to_owned())
        .filter(|key| key.starts_with("v1:{t:0}"))
        .collect();
    assert_eq!(left, ["v1:{t:0}:conf"]);
    let outcome = send(relay.broker(), relay.topic(), message("m-7", HOUR)).await;
    assert_eq!(outcome, SendOutcome::Duplicate);
    let cancelled = relay.broker().cancel(relay.topic(), &id("m-8"), None).await;
    assert!(matches!(
        cancelled.unwrap(),
        CancelOutcome::Cancelled { .. }
    ));
}

#[tokio::test]
async fn what_is_on_its_way_when_a_manager_dies_arrives_once() {
    let relay = Relay::start("reshard").await;
    for n in 0..60 {
        send(
            relay.broker(),
            relay.topic(),
            keyed(&format!("m-{n}"), &format!("k-{}", n % 7), HOUR),
        )
        .await;
    }
    let topic = open(&relay, 2).await;
    let old = Shard::new(0);
    // Each time another manager continues, after the batch was stored and before the old shard was notified.
    for _ in 0..4 {
        relay
            .broker()
            .migrate_out(&topic, old, &mut Migration::default())
            .await
            .unwrap();
        let stats = relay.broker().stats(&topic).await.unwrap();
        assert_eq!(stats.conservation_error, 0);
    }
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!((stats.waiting, stats.conservation_error), (60, 0));
    assert_eq!(stats.migrating, None);
}

#[tokio::test]
async fn what_nobody_has_read_comes_off_the_old_stream() {
    let mut relay = Relay::start("reshard").await;
    send(relay.broker(), relay.topic(), message("unread", ms(5))).await;
    relay.step(10);
    relay.move_due(50).await;
    let topic = open(&relay, 2).await;
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    relay.set_topic(topic.clone());
    let shard = topic.shard_of(&id("unread"));
    let read = next_of(&relay, &topic, shard).await;
    assert_eq!((read.attempt.number, read.attempt.due), (1, relay.at(-5)));
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!(stats.conservation_error, 0);
}

#[tokio::test]
async fn a_message_whose_payload_is_gone_holds_nothing_up_and_is_counted() {
    let relay = Relay::start("reshard").await;
    let read = relay.hold("ghost").await;
    relay.settle(&read, retry(ms(5))).await;
    relay.lose_payload("ghost").await;
    send(relay.broker(), relay.topic(), message("other", HOUR)).await;
    let topic = open(&relay, 2).await;
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    let topic = relay.broker().known(topic.name()).unwrap();
    assert!(!topic.is_resharding());
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!((stats.waiting, stats.counters["lost"]), (1, 1));
    assert_eq!(stats.conservation_error, 0);
}

#[tokio::test]
async fn a_file_may_name_the_old_number_while_the_topic_is_resharded_and_afterwards() {
    let relay = Relay::start("reshard").await;
    send(relay.broker(), relay.topic(), message("m", HOUR)).await;
    let (name, old) = (relay.topic().name(), relay.topic().settings());
    let topic = open(&relay, 3).await;
    let declare = async || relay.broker().declare(name, old, Declare::Update).await;
    let declared = declare().await.unwrap();
    assert_eq!(
        (declared.settings().shards, declared.is_resharding()),
        (3, true)
    );
    migrate_out(relay.broker(), &topic).await;
    let declared = declare().await.unwrap();
    assert_eq!(
        (declared.settings().shards, declared.is_resharding()),
        (3, false)
    );
    let found = relay.broker().reshard(name, 3).await.unwrap();
    assert!(matches!(found, Resharded::Same), "{found:?}");
}

#[tokio::test]
async fn another_number_meanwhile_is_refused_and_the_same_goes_on() {
    let relay = Relay::start("reshard").await;
    send(relay.broker(), relay.topic(), message("m", HOUR)).await;
    let name = relay.topic().name();
    open(&relay, 3).await;
    let error = relay
        .broker()
        .reshard(name, 4)
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "topic t is being resharded to 3 shards: try again when that has finished; if `lisa-manager topics reshard` was interrupted, run it again"
    );
    let topic = open(&relay, 3).await;
    migrate_out(relay.broker(), &topic).await;
    assert!(matches!(
        relay.broker().reshard(name, 3).await.unwrap(),
        Resharded::Same
    ));
    let error = relay
        .broker()
        .reshard(name, 0)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("shards"), "{error}");
}

#[tokio::test]
async fn ids_that_ended_are_remembered_until_the_dedup_window_is_over() {
    let relay = Relay::start("reshard").await;
    send(relay.broker(), relay.topic(), message("gone", HOUR)).await;
    relay
        .broker()
        .cancel(relay.topic(), &id("gone"), None)
        .await
        .unwrap();
    let topic = open(&relay, 2).await;
    assert_eq!(migrate_out(relay.broker(), &topic).await, 0);
    let topic = relay.broker().known(topic.name()).unwrap();
    assert!(
        topic.is_resharding(),
        "its old shard still knows of one that ended"
    );
    // No counter is added twice while it waits.
    migrate_out(relay.broker(), &topic).await;
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!(
        (stats.counters["accepted"], stats.counters["cancelled"]),
        (1, 1)
    );
    assert_eq!(stats.conservation_error, 0);
    let outcome = send(relay.broker(), &topic, message("gone", HOUR)).await;
    assert_eq!(outcome, SendOutcome::Duplicate);
    relay.step(11 * 60 * 1000);
    let forgotten = relay.broker().forget(&topic, Shard::new(0)).await;
    assert_eq!(forgotten.unwrap().dropped, 1);
    migrate_out(relay.broker(), &topic).await;
    assert!(!relay.broker().known(topic.name()).unwrap().is_resharding());
}

/// The messages of a merge key that wait on the old shard are still merged into, and arrive as one.
#[tokio::test]
async fn messages_merge_with_those_of_the_old_shard() {
    let relay = Relay::start("reshard").await;
    let merged = |name: &str, delay| {
        let mut message = message(name, delay);
        message.options.merge_key = Some("page-1".parse().unwrap());
        message
    };
    send(relay.broker(), relay.topic(), merged("a", HOUR)).await;
    let topic = open(&relay, 2).await;
    // Closed, with `a` still on its way.
    relay
        .broker()
        .migrate_out(&topic, Shard::new(0), &mut Migration::default())
        .await
        .unwrap();
    migrate_out(relay.broker(), &topic).await;
    let outcome = send(relay.broker(), &topic, merged("b", ms(5000))).await;
    assert_eq!(outcome, SendOutcome::Merged);
    let topic = relay.broker().known(topic.name()).unwrap();
    let found = relay.broker().stats(&topic).await.unwrap();
    assert_eq!((found.waiting, found.conservation_error), (1, 0));
    let counters: BTreeMap<&str, i64> = found
        .counters
        .iter()
        .map(|(k, v)| (k.as_str(), *v))
        .collect();
    assert_eq!((counters["accepted"], counters["merged"]), (2, 1));
}

/// Random work on random topics, resharded again and again; for `LISA_MODEL_MINUTES`, from `LISA_RESHARD_SEED` on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_work_loses_doubles_and_reorders_nothing() {
    let first = first_seed("LISA_RESHARD_SEED");
    let minutes = number("LISA_MODEL_MINUTES").unwrap_or(0);
    let begun = Instant::now();
    for seed in first.. {
        println!("LISA_RESHARD_SEED={seed}");
        run::random(seed, STEPS).await;
        if seed > first && begun.elapsed() >= Duration::from_secs(60 * minutes) {
            break;
        }
    }
}

#[tokio::test]
async fn large_messages_are_migrated_a_few_at_a_time() {
    const COUNT: u64 = 12;
    let relay = Relay::start("reshard").await;
    let send_large = async |name: String, delay| {
        let mut message = message(&name, delay);
        message.record.payload = vec![b'x'; 100 * 1024].into();
        send(relay.broker(), relay.topic(), message).await;
    };
    let mut large = Vec::new();
    for n in 0..COUNT {
        send_large(format!("waits-{n}"), HOUR).await;
        send_large(format!("m-{n}"), ms(0)).await;
        large.push(relay.read_one().await);
    }
    // In garbage they are found only by a scan of all messages, which reads their payloads. Those that wait are listed
    // by id, many at once.
    let reject = |read| {
        let error = "no good".to_owned();
        settlement(read, Verdict::Reject { error })
    };
    let rejected: Vec<_> = large.iter().map(reject).collect();
    relay.settle_all(&rejected).await;
    let topic = open(&relay, 2).await;
    let (broker, mut migration) = (relay.broker(), Migration::default());
    let (mut moved, mut most) = (0, 0);
    while moved < 2 * COUNT {
        let step = broker.migrate_out(&topic, Shard::new(0), &mut migration);
        let step = step.await.unwrap();
        (moved, most) = (moved + step.count, most.max(step.count));
    }
    assert!((1..=2).contains(&most), "{most} at once");
    assert_eq!(migrate_out(broker, &topic).await, 0);
    let stats = relay.stats().await;
    assert_eq!((stats.waiting, stats.groups[0].garbage), (COUNT, COUNT));
}
