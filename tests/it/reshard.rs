//! Another number of shards while a topic is in use: nothing lost, doubled or out of order, whoever stops where.

mod run;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lisa_shared::broker::{Broker, Departure, Resharded, TopicHandle};
use lisa_shared::message::{NewMessage, route_of_key};
use lisa_shared::state::{CancelOutcome, SendOutcome, Settled};
use lisa_shared::topic::{Shard, TopicSettings};
use lisa_tests::Relay;
use lisa_tests::relay::{id, message, ms, settings};

const HOUR: Duration = Duration::from_secs(3600);
/// Random steps of one run, before all is brought to its end.
const STEPS: u64 = 500;

/// Opens new shards, and gives the topic as it is then.
async fn open(relay: &Relay, shards: u16) -> std::sync::Arc<TopicHandle> {
    let resharded = relay.broker().reshard(relay.topic().name(), shards).await;
    match resharded.unwrap() {
        Resharded::UnderWay(topic) => topic,
        Resharded::Same => panic!("it has {shards} shards"),
    }
}

/// Lets all old shards hand over until nothing can go any more; gives how many messages and deliveries are left there.
async fn hand_over(broker: &Broker, topic: &TopicHandle) -> u64 {
    let mut left = 0;
    let leaving = topic.shards().filter(|shard| topic.is_leaving(*shard));
    for shard in leaving {
        let mut departure = Departure::default();
        loop {
            let newest = broker.known(topic.name()).unwrap();
            if !newest.is_leaving(shard) {
                break;
            }
            let step = broker.hand_over(&newest, shard, &mut departure).await;
            let step = step.unwrap();
            if !step.more {
                left += step.left;
                break;
            }
        }
    }
    left
}

fn keyed(name: &str, key: &str, delay: Duration) -> NewMessage {
    let mut message = message(name, delay);
    message.options.key = Some(key.parse().unwrap());
    message
}

async fn send(broker: &Broker, topic: &TopicHandle, message: NewMessage) -> SendOutcome {
    let shard = topic.shard_of_message(&message);
    let sent = broker.send(topic, shard, &[message]).await.unwrap();
    assert_eq!(sent.len(), 1);
    sent[0].outcome
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
    let topic = open(&relay, 3).await;
    assert!(topic.is_resharding());
    assert_eq!(hand_over(relay.broker(), &topic).await, 0);
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
    // What is left of the old shard leads to the new ones, also for those who knew only the old one.
    relay.broker().vacate(&topic).await.unwrap();
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
    // Each time another manager goes on, after the batch was taken in and before the old shard was told.
    for _ in 0..4 {
        relay
            .broker()
            .hand_over(&topic, old, &mut Departure::default())
            .await
            .unwrap();
        let stats = relay.broker().stats(&topic).await.unwrap();
        assert_eq!(stats.conservation_error, 0);
    }
    assert_eq!(hand_over(relay.broker(), &topic).await, 0);
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!((stats.waiting, stats.conservation_error), (60, 0));
    assert_eq!(stats.leaving, None);
}

#[tokio::test]
async fn a_message_of_a_key_waits_for_an_earlier_one_in_flight_on_the_old_shard() {
    let settings = TopicSettings {
        shards: 1,
        ..settings()
    };
    let mut relay = Relay::with("reshard", settings).await;
    send(relay.broker(), relay.topic(), keyed("first", "k", ms(0))).await;
    relay.step(1);
    relay.move_due(50).await;
    let first = relay.read_one().await;
    let topic = open(&relay, 4).await;
    assert_eq!(
        hand_over(relay.broker(), &topic).await,
        2,
        "a payload and an entry"
    );
    send(relay.broker(), &topic, keyed("second", "k", ms(0))).await;
    relay.step(1000);
    relay.set_topic(topic.clone());
    let shard = topic.shard_of_message(&keyed("second", "k", ms(0)));
    let idle = Duration::from_secs(5);
    relay
        .broker()
        .move_due(&topic, shard, 50, idle)
        .await
        .unwrap();
    assert!(relay.read_as(shard, "worker", 9).await.is_empty());
    // The handler of the first fails: it comes again before the second.
    let failed = lisa_tests::relay::settlement(&first, lisa_tests::relay::retry(ms(0)));
    let settled = relay
        .broker()
        .settle(&topic, Shard::new(0), relay.group(), &[failed])
        .await;
    assert!(matches!(settled.unwrap()[0], Settled::Retry { .. }));
    assert_eq!(hand_over(relay.broker(), &topic).await, 0);
    let mut order = Vec::new();
    for _ in 0..2 {
        relay.step(1);
        relay
            .broker()
            .move_due(&topic, shard, 50, idle)
            .await
            .unwrap();
        let reads = relay.read_as(shard, "worker", 9).await;
        assert_eq!(reads.len(), 1);
        order.push((
            reads[0].id.clone().unwrap().to_string(),
            reads[0].attempt.number,
        ));
        let settled = lisa_tests::relay::settlement(&reads[0], lisa_shared::broker::Verdict::Ack);
        relay
            .broker()
            .settle(&topic, shard, relay.group(), &[settled])
            .await
            .unwrap();
    }
    assert_eq!(order, [("first".to_owned(), 2), ("second".to_owned(), 1)]);
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
        "topic t is being resharded to 3: that must be finished first"
    );
    let topic = open(&relay, 3).await;
    hand_over(relay.broker(), &topic).await;
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
    assert_eq!(hand_over(relay.broker(), &topic).await, 0);
    let topic = relay.broker().known(topic.name()).unwrap();
    assert!(
        topic.is_resharding(),
        "its old shard still knows of one that ended"
    );
    let outcome = send(relay.broker(), &topic, message("gone", HOUR)).await;
    assert_eq!(outcome, SendOutcome::Duplicate);
    relay.step(11 * 60 * 1000);
    let cleaned = relay
        .broker()
        .clean(&topic, Shard::new(0), relay.group(), None)
        .await;
    assert_eq!(cleaned.unwrap().tombstones, 1);
    hand_over(relay.broker(), &topic).await;
    assert!(!relay.broker().known(topic.name()).unwrap().is_resharding());
}

/// What a manager removes that knows nothing of the second resharding leads to the shards of the second one.
#[tokio::test]
async fn old_shards_are_removed_while_the_topic_is_resharded_again() {
    let relay = Relay::start("reshard").await;
    let before = open(&relay, 2).await;
    hand_over(relay.broker(), &before).await;
    let first = relay.broker().known(before.name()).unwrap();
    assert!(!first.is_resharding());
    let second = open(&relay, 3).await;
    relay.broker().vacate(&first).await.unwrap();
    let topic = relay.broker().known(first.name()).unwrap();
    assert!(topic.is_resharding());
    assert_eq!(topic.first_shard(), Shard::new(1));
    send(relay.broker(), &topic, message("m", HOUR)).await;
    assert_eq!(hand_over(relay.broker(), &second).await, 0);
    let topic = relay.broker().known(first.name()).unwrap();
    assert!(!topic.is_resharding());
    assert_eq!(topic.vacating(), Some(1..3));
    // The one that knew of the first is slow, and does it again.
    relay.broker().vacate(&first).await.unwrap();
    let topic = relay.broker().known(first.name()).unwrap();
    assert_eq!(topic.vacating(), Some(1..3));
    relay.broker().vacate(&topic).await.unwrap();
    let topic = relay.broker().known(first.name()).unwrap();
    assert_eq!((topic.vacating(), topic.settings().shards), (None, 3));
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!((stats.waiting, stats.conservation_error), (1, 0));
}

#[tokio::test]
async fn two_messages_of_one_id_that_meet_on_a_shard_are_there_one_after_the_other() {
    let settings = TopicSettings {
        shards: 3,
        ..settings()
    };
    let relay = Relay::with("reshard", settings).await;
    // Keys whose shards differ among three and are one among two.
    let keys = (0..).map(|n| format!("k-{n}"));
    let route = |key: &String| route_of_key(key);
    let mut keys = keys.filter(|key| route(key) % 2 == 0);
    let first = keys.next().unwrap();
    let other = keys
        .find(|key| route(key) % 3 != route(&first) % 3)
        .unwrap();
    for key in [&first, &other] {
        send(relay.broker(), relay.topic(), keyed("twin", key, HOUR)).await;
    }
    let topic = open(&relay, 2).await;
    assert_eq!(
        hand_over(relay.broker(), &topic).await,
        1,
        "one had to stay"
    );
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!((stats.waiting, stats.conservation_error), (2, 0));
    for (key, left) in [(&first, 1), (&other, 0)] {
        let key = key.parse().unwrap();
        let cancelled = relay.broker().cancel(&topic, &id("twin"), Some(&key)).await;
        assert!(matches!(
            cancelled.unwrap(),
            CancelOutcome::Cancelled { .. }
        ));
        hand_over(relay.broker(), &topic).await;
        let stats = relay.broker().stats(&topic).await.unwrap();
        assert_eq!((stats.waiting, stats.conservation_error), (left, 0));
    }
}

#[tokio::test]
async fn the_one_that_stayed_follows_when_the_other_has_ended() {
    let settings = TopicSettings {
        shards: 3,
        ..settings()
    };
    let mut relay = Relay::with("reshard", settings).await;
    let keys: Vec<String> = (0..200).map(|n| format!("k-{n}")).collect();
    let route = |key: &&String| route_of_key(key);
    let first = keys.iter().find(|key| route(key) % 2 == 0).unwrap();
    let meets = |key: &&String| route(key) % 2 == 0 && route(key) % 3 != route(&first) % 3;
    let other = keys.iter().find(meets).unwrap();
    for key in [first, other] {
        send(relay.broker(), relay.topic(), keyed("twin", key, ms(1000))).await;
    }
    let topic = open(&relay, 2).await;
    hand_over(relay.broker(), &topic).await;
    // A batch whose answer was lost is taken in again, and the same one goes back.
    assert_eq!(hand_over(relay.broker(), &topic).await, 1);
    relay.set_topic(topic.clone());
    relay.step(1000);
    let mut delivered = 0;
    for _ in 0..2 {
        for shard in topic.shards().filter(|shard| !topic.is_leaving(*shard)) {
            relay
                .broker()
                .move_due(&topic, shard, 50, HOUR)
                .await
                .unwrap();
            for read in relay.read_as(shard, "worker", 9).await {
                let ack = lisa_tests::relay::settlement(&read, lisa_shared::broker::Verdict::Ack);
                relay
                    .broker()
                    .settle(&topic, shard, relay.group(), &[ack])
                    .await
                    .unwrap();
                delivered += 1;
            }
        }
        hand_over(relay.broker(), &topic).await;
    }
    assert_eq!(delivered, 2);
    let stats = relay.broker().stats(&topic).await.unwrap();
    assert_eq!(
        (stats.waiting, stats.leaving, stats.conservation_error),
        (0, None, 0)
    );
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
        .hand_over(&topic, Shard::new(0), &mut Departure::default())
        .await
        .unwrap();
    hand_over(relay.broker(), &topic).await;
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
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let first = number("LISA_RESHARD_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000));
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
