//! A topic of many shards: what is spread evenly, and what stays together.

use super::deployment::{GROUP, TOPIC};
use super::journal::send_all;
use super::workers::Workers;
use super::{Deployment, SOON};
use lisa_consumer::{Delivery, Outcome};
use lisa_core::retry::RetryPolicy;
use lisa_producer::{CancelOutcome, MessageRef, NewMessage, Producer, SendError, SendOutcome};
use lisa_tests::relay::ms;
use lisa_tests::{Binary, Snapshot, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

const SHARDS: usize = 16;
const MESSAGES: usize = 20_000;

/// The members of each shard's `waiting`.
async fn waiting(here: &Deployment) -> Vec<BTreeSet<String>> {
    let snapshot: Snapshot = here.snapshot().await;
    let of_shard = |shard| {
        let members = snapshot.zset(&format!("v1:{{{TOPIC}:{shard}}}:waiting"));
        let ids = members.keys().map(ToString::to_string);
        // An arrival number of 12 digits may stand before the id.
        let ids = ids.map(|member| match member.strip_prefix('~') {
            Some(rest) => rest[12..].to_owned(),
            None => member,
        });
        ids.collect()
    };
    (0..SHARDS).map(of_shard).collect()
}

/// Asserts that each shard's share is within this many hundredths of the mean.
fn assert_even(sizes: &[usize], hundredths: usize) {
    let mean = MESSAGES / SHARDS;
    println!("{sizes:?}, mean {mean}");
    assert_eq!(sizes.iter().sum::<usize>(), MESSAGES);
    for size in sizes {
        assert!(size.abs_diff(mean) * 100 <= mean * hundredths, "{sizes:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_thousand_messages_are_spread_over_sixteen_shards_within_a_tenth_of_the_mean() {
    let here = Deployment::start(&format!("shards = {SHARDS}")).await;
    let _manager = here.manager().await;
    let broker = here.broker().await;
    let producer = Producer::new(broker.clone());
    let messages = (0..MESSAGES).map(|n| {
        let message = NewMessage::new(n.to_string()).id(format!("order-{n}"));
        message.delay(ms(3_600_000))
    });
    send_all(&producer, TOPIC, messages.collect()).await;
    let sizes: Vec<usize> = waiting(&here).await.iter().map(BTreeSet::len).collect();
    assert_even(&sizes, 10);
    here.conserved().await;

    // The ids that Lisa makes are random: a larger deviation happens once in a million runs.
    let topic = broker.topic(&TOPIC.parse().unwrap()).await.unwrap();
    let mut sizes = [0; SHARDS];
    for _ in 0..MESSAGES {
        let message = NewMessage::new("x");
        let shard = topic.shard_of(message.message_id());
        sizes[usize::from(shard.get())] += 1;
    }
    assert_even(&sizes, 15);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_stay_whole_and_are_found_by_the_id_alone() {
    const KEYS: usize = 200;
    const EACH: usize = 5;
    let here = Deployment::start(&format!("shards = {SHARDS}")).await;
    let _manager = here.manager().await;
    let producer = Producer::new(here.broker().await);
    let hour = ms(3_600_000);
    let mut ids: BTreeMap<String, String> = BTreeMap::new();
    let mut messages = Vec::new();
    for _ in 0..EACH {
        for key in 0..KEYS {
            let message = NewMessage::new("x").key(format!("k{key}")).delay(hour);
            ids.insert(message.message_id().to_string(), format!("k{key}"));
            messages.push(message);
        }
    }
    send_all(&producer, TOPIC, messages).await;

    let shards = waiting(&here).await;
    let mut places: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for (shard, members) in shards.iter().enumerate() {
        for id in members {
            places.entry(&ids[id]).or_default().insert(shard);
        }
    }
    assert_eq!(places.len(), KEYS);
    for (key, shards) in &places {
        assert_eq!(shards.len(), 1, "{key} is on {shards:?}");
    }
    let used: BTreeSet<usize> = places.values().flatten().copied().collect();
    assert_eq!(used.len(), SHARDS, "the keys are not spread: {used:?}");

    // No request names the key.
    for id in ids.keys().take(KEYS) {
        let cancelled = producer.cancel(TOPIC, id.as_str()).await.unwrap();
        assert!(
            matches!(cancelled, CancelOutcome::Cancelled { .. }),
            "{id}: {cancelled:?}"
        );
    }
    // A caller-chosen id does not depend on the key: it is found with the key, and also without.
    for key in 0..20 {
        let message = NewMessage::new("x").key(format!("k{key}")).delay(hour);
        let message = message.id(format!("own-{key}"));
        producer.send_message(TOPIC, message).await.unwrap();
        let mut wanted = MessageRef::new(format!("own-{key}"));
        if key % 2 == 0 {
            wanted = wanted.key(format!("k{key}"));
        }
        let cancelled = producer.cancel(TOPIC, wanted).await.unwrap();
        assert!(
            matches!(cancelled, CancelOutcome::Cancelled { .. }),
            "own-{key}: {cancelled:?}"
        );
    }
    let stats = here.stats().await;
    assert_eq!(Deployment::counter(&stats, "cancelled"), KEYS as i64 + 20);
    here.conserved().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_merged_stays_one_message_on_any_number_of_shards() {
    const KEYS: usize = 100;
    const EACH: usize = 10;
    let here = Deployment::start(&format!("shards = {SHARDS}\nmerge = \"first\"")).await;
    let _manager = here.manager().await;
    let producer = Producer::new(here.broker().await);
    let message = |key: usize| NewMessage::new(key.to_string()).merge_key(format!("cart-{key}"));
    let round = (0..EACH).flat_map(|_| (0..KEYS).map(message));
    let round = round.map(|message| message.delay(ms(3_600_000)));
    let receipts = producer.send_batch(TOPIC, round.collect()).await.unwrap();
    let mut merged = 0;
    for (place, receipt) in receipts.iter().enumerate() {
        let receipt = receipt.as_ref().unwrap();
        let first = receipts[place % KEYS].as_ref().unwrap();
        assert_eq!(receipt.id, first.id, "{place}");
        merged += usize::from(receipt.outcome == SendOutcome::Merged);
    }
    assert_eq!(merged, KEYS * (EACH - 1));
    let stored: usize = waiting(&here).await.iter().map(BTreeSet::len).sum();
    assert_eq!(stored, KEYS);

    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = seen.clone();
    let work = move |delivery: Delivery| {
        let payload = String::from_utf8(delivery.payload.to_vec()).unwrap();
        noted.lock().unwrap().push(payload);
        std::future::ready(Outcome::Ack)
    };
    let workers = Workers::start(&here, GROUP, (2, 16), work).await;
    for receipt in receipts.iter().take(KEYS) {
        let id = receipt.as_ref().unwrap().id.clone();
        producer.deliver_now(TOPIC, id.as_str()).await.unwrap();
    }
    let stats = here.drained().await;
    workers.stop().await;
    let mut seen: Vec<usize> = seen
        .lock()
        .unwrap()
        .iter()
        .map(|n| n.parse().unwrap())
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, Vec::from_iter(0..KEYS), "each once");
    assert_eq!(Deployment::counter(&stats, "merged"), merged as i64);
    here.conserved().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_is_shared_out_among_the_shards() {
    const LIMIT: usize = 64;
    let settings = format!("shards = {SHARDS}\nmax_messages = {LIMIT}\nmax_ready = {LIMIT}");
    let here = Deployment::start(&settings).await;
    let _manager = here.manager().await;
    let producer = Producer::new(here.broker().await);
    let messages = (0..20 * LIMIT).map(|n| NewMessage::new(n.to_string()).delay(ms(3_600_000)));
    let receipts = producer
        .send_batch(TOPIC, messages.collect())
        .await
        .unwrap();
    let full = receipts.iter().filter(|receipt| match receipt {
        Ok(_) => false,
        Err(SendError::Full) => true,
        Err(other) => panic!("{other}"),
    });
    assert_eq!(full.count(), 19 * LIMIT);
    for members in waiting(&here).await {
        assert_eq!(members.len(), LIMIT / SHARDS);
    }
    here.conserved().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_window_of_a_group_is_shared_out_among_the_shards() {
    const LIMIT: usize = 32;
    let settings = format!("shards = {SHARDS}\nmax_ready = {LIMIT}");
    let here = Deployment::start(&settings).await;
    let _manager = here.manager().await;
    let producer = Producer::new(here.broker().await);
    let messages = (0..20 * LIMIT).map(|n| NewMessage::new(n.to_string()));
    send_all(&producer, TOPIC, messages.collect()).await;
    // No consumer reads: each shard's stream fills its share, and no more.
    let ready = LIMIT as u64;
    here.settled(&[("waiting", 0), ("ready", ready), ("backlog", 19 * ready)])
        .await;
    let snapshot = here.snapshot().await;
    for shard in 0..SHARDS {
        let stream = snapshot.stream(&format!("v1:{{{TOPIC}:{shard}}}:ready:{GROUP}"));
        assert_eq!(stream.entries.len(), LIMIT / SHARDS, "shard {shard}");
    }
    let handled = Arc::new(Mutex::new(0));
    let count = handled.clone();
    let work = move |_: Delivery| {
        *count.lock().unwrap() += 1;
        std::future::ready(Outcome::Ack)
    };
    let workers = Workers::start(&here, GROUP, (2, 16), work).await;
    eventually(SOON, async || match *handled.lock().unwrap() {
        count if count == 20 * LIMIT => Ok(()),
        count => Err(format!("{count} handled")),
    })
    .await;
    here.drained().await;
    workers.stop().await;
    here.conserved().await;
}

#[tokio::test]
async fn one_id_under_two_keys_is_two_messages_which_a_manager_shows_by_their_keys() {
    let here = Deployment::start(&format!("shards = {SHARDS}")).await;
    let manager = here.manager().await;
    let producer = Producer::new(here.broker().await);
    let path = format!("/v1/topics/{TOPIC}/messages/note");
    let keys = [("k1", 3), ("k2", 5)];
    for (key, attempts) in keys {
        let message = NewMessage::new(key)
            .id("note")
            .key(key)
            .delay(ms(3_600_000));
        let policy = RetryPolicy::Fixed {
            delay: ms(7_000),
            jitter: 0.0,
        };
        let message = message.max_attempts(attempts).retry(policy);
        producer.send_message(TOPIC, message).await.unwrap();
    }
    let get = async |key: &str| {
        let request = manager.api.request(Method::GET, &path);
        let reply = request.header("Lisa-Key", key).send().await.unwrap();
        (
            reply.status().as_u16(),
            reply.json::<Value>().await.unwrap(),
        )
    };
    for (key, attempts) in keys {
        let verb = ["messages", "show", TOPIC, "note", "--key", key];
        let (code, by_verb) = here.json(Binary::Manager, &verb).await;
        assert_eq!(code, 0, "{by_verb}");
        let (status, by_http) = get(key).await;
        assert_eq!((status, &by_verb), (200, &by_http));
        assert_eq!(
            (&by_http["payload"], &by_http["max_attempts"]),
            (&json!(key), &json!(attempts)),
            "{by_http}"
        );
        assert_eq!(by_http["retry"]["delay"], "7s", "{by_http}");
        let told = here.verb(Binary::Manager, &verb).await;
        assert!(told.stdout.contains("\"delay\":\"7s\""), "{told:?}");
    }
    for (key, status, code) in [("k9", 404, "not_found"), ("", 422, "invalid")] {
        let (told, problem) = get(key).await;
        assert_eq!(
            (told, &problem["code"]),
            (status, &json!(code)),
            "{problem}"
        );
    }
    here.conserved().await;
}

#[tokio::test]
async fn a_message_is_replaced_on_whichever_shard_it_is() {
    const EACH: usize = 40;
    let here = Deployment::start(&format!("shards = {SHARDS}")).await;
    let _manager = here.manager().await;
    let producer = Producer::new(here.broker().await);
    let hour = ms(3_600_000);
    for number in 0..EACH {
        // Ids made by Lisa, two in turn; a caller-chosen id; and a key.
        let first = NewMessage::new("first").delay(hour);
        let (first, second) = (first.message_id().to_string(), first);
        producer.send_message(TOPIC, second).await.unwrap();
        let second = NewMessage::new("second").delay(hour).replace(&first);
        let third = NewMessage::new("third")
            .delay(hour)
            .replace(second.message_id());
        let (own, keyed) = (format!("own-{number}"), format!("keyed-{number}"));
        let key = format!("k{number}");
        let messages = [
            second,
            third,
            NewMessage::new("old").delay(hour).id(&own),
            NewMessage::new("new").delay(hour).replace(&own),
            NewMessage::new("old").delay(hour).id(&keyed).key(&key),
            NewMessage::new("new").delay(hour).replace(&keyed).key(&key),
        ];
        for message in messages {
            let receipt = producer.send_message(TOPIC, message).await.unwrap();
            assert_eq!(receipt.outcome, SendOutcome::Waiting, "{receipt:?}");
        }
    }
    let stats = here.stats().await;
    assert_eq!(stats["stored"], 3 * EACH, "{stats:#}");
    let cancelled = Deployment::counter(&stats, "cancelled");
    assert_eq!(cancelled, 4 * EACH as i64, "{stats:#}");
    here.conserved().await;
}
