//! All messages of an ordering key cancelled and postponed at once, in every state.

use super::deployment::TOPIC;
use super::{Deployment, SOON};
use lisa_producer::Producer;
use lisa_tests::{Api, Binary, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// A subscription whose command hangs where the payload says so, and rejects all other messages.
const GRIM: &str = r#"concurrency = 8
            sink = { type = "command", command = ["/bin/sh", "-c", "p=$(cat); case $p in hang) exec sleep 60;; *) exit 65;; esac"] }"#;

/// More than two pages.
const COUNT: usize = 450;
const OTHERS: usize = 30;

async fn of_key(api: &Api, method: Method, key: Option<&str>, body: &Value) -> (u16, Value) {
    let path = format!("/v1/topics/{TOPIC}/messages");
    let mut request = api.request(method, &path).json(body);
    if let Some(key) = key {
        request = request.header("Lisa-Key", key);
    }
    let reply = request.send().await.unwrap();
    (reply.status().as_u16(), reply.json().await.unwrap())
}

#[tokio::test]
async fn all_messages_of_a_key_are_put_off_and_cancelled_but_those_that_have_begun() {
    let here = Deployment::start("key_index = true\nshards = 4\nmax_attempts = 1").await;
    let manager = here.combined().await;
    let consumer = here.consumer(GRIM).await;
    let api = &manager.api;
    let key = ("Lisa-Key", "order 7");
    api.send(TOPIC, "no", &[key, ("Lisa-Id", "in_garbage")])
        .await
        .expect(202);
    here.settled(&[("garbage", 1)]).await;
    api.send(TOPIC, "hang", &[key, ("Lisa-Id", "running")])
        .await
        .expect(202);
    here.settled(&[("in_flight", 1)]).await;
    let message = |key: &str, n: usize| {
        let mut message = json!({ "payload": n, "delay": "1h", "key": key });
        if n.is_multiple_of(2) {
            message["id"] = format!("{}-{n}", key.replace(' ', "_")).into();
        }
        message
    };
    let mut all: Vec<Value> = (0..COUNT).map(|n| message("order 7", n)).collect();
    // Keys that begin like it.
    all.extend((0..OTHERS).map(|n| message("order 70", n)));
    all.extend((0..OTHERS).map(|n| message("order", n)));
    api.batch(TOPIC, &all).await;

    let put_off = of_key(
        api,
        Method::PATCH,
        Some("order 7"),
        &json!({ "delay": "2h" }),
    )
    .await;
    let expected = json!({ "topic": TOPIC, "key": "order 7", "rescheduled": COUNT, "in_flight": 1, "garbage": 1 });
    assert_eq!(put_off, (200, expected));
    let one = api
        .get_json(&format!("/v1/topics/{TOPIC}/messages/order_7-8"))
        .await;
    let due: jiff::Timestamp = one["due_at"].as_str().unwrap().parse().unwrap();
    let in_minutes = (due - jiff::Timestamp::now()).get_seconds().unsigned_abs() / 60;
    assert!((118..=120).contains(&in_minutes), "{one}");

    // The list of both operators' interfaces, page by page: each message once, with its place.
    let (mut states, mut next) = (BTreeMap::<String, usize>::new(), Some(String::new()));
    while let Some(cursor) = next {
        let mut path = format!("/v1/topics/{TOPIC}/messages?key=order%207&limit=200");
        if !cursor.is_empty() {
            path = format!("{path}&cursor={cursor}");
        }
        let page = api.get_json(&path).await;
        for message in page["messages"].as_array().unwrap() {
            *states
                .entry(message["state"].as_str().unwrap().to_owned())
                .or_default() += 1;
        }
        next = page["next"].as_str().map(str::to_owned);
    }
    let expected = [("garbage", 1), ("in_flight", 1), ("waiting", COUNT)];
    assert_eq!(
        states,
        expected
            .map(|(state, count)| (state.to_owned(), count))
            .into()
    );
    let list = [
        "messages", "list", TOPIC, "--key", "order 70", "--limit", "7",
    ];
    let (code, page) = here.json(Binary::Manager, &list).await;
    assert_eq!((code, page["messages"].as_array().unwrap().len()), (0, 7));
    let table = here
        .verb(
            Binary::Manager,
            &[&list[..], &["--cursor", page["next"].as_str().unwrap()]].concat(),
        )
        .await;
    assert!(table.stdout.contains("more: --cursor"), "{table:?}");

    let (code, cancelled) = here
        .json(Binary::Producer, &["cancel", TOPIC, "--key", "order 7"])
        .await;
    let expected = json!({ "topic": TOPIC, "key": "order 7", "cancelled": COUNT, "in_flight": 1, "garbage": 1 });
    assert_eq!((code, cancelled), (1, expected));
    let again = of_key(api, Method::DELETE, Some("order 7"), &Value::Null).await;
    assert_eq!((again.0, &again.1["cancelled"]), (200, &json!(0)));
    here.settled(&[("waiting", 2 * OTHERS as u64)]).await;

    let producer = Producer::new(here.broker().await);
    let done = producer.cancel_key(TOPIC, "order").await.unwrap();
    assert_eq!(
        (done.changed, done.in_flight, done.garbage),
        (OTHERS as u64, 0, 0)
    );
    let later = Duration::from_secs(3600);
    let done = producer
        .reschedule_key(TOPIC, "order 70", later)
        .await
        .unwrap();
    assert_eq!(done.changed, OTHERS as u64);
    let (code, _) = here
        .json(
            Binary::Producer,
            &["deliver-now", TOPIC, "--key", "order 70"],
        )
        .await;
    assert_eq!(code, 0);
    here.settled(&[("waiting", 0), ("garbage", 1 + OTHERS as u64)])
        .await;

    // The index keeps no ended message.
    drop(consumer);
    here.verb(
        Binary::Manager,
        &["garbage", "purge", TOPIC, "--all", "--yes"],
    )
    .await;
    let left = here.snapshot().await;
    let indexed: usize = (0..4)
        .map(|shard| left.zset(&format!("v1:{{{TOPIC}:{shard}}}:bykey")).len())
        .sum();
    assert_eq!(indexed, 1, "{left}");
    here.conserved().await;
}

#[tokio::test]
async fn a_key_must_be_named_and_the_topic_must_have_an_index() {
    let here = Deployment::start("").await;
    let manager = here.combined().await;
    let api = &manager.api;
    api.send(TOPIC, "x", &[("Lisa-Key", "k"), ("Lisa-Delay", "1h")])
        .await
        .expect(202);
    for (key, says) in [
        (Some("k"), "topic orders has no key_index"),
        (None, "set the ordering key"),
        (Some(""), "1 to 256 bytes"),
    ] {
        let (status, refused) = of_key(api, Method::DELETE, key, &Value::Null).await;
        assert_eq!(status, 422, "{refused}");
        assert!(refused.to_string().contains(says), "{refused}");
    }
    let (_, refused) = of_key(api, Method::PATCH, Some("k"), &json!({})).await;
    assert!(
        refused.to_string().contains("set delay or deliver_at"),
        "{refused}"
    );
    let listed = api
        .get(&format!("/v1/topics/{TOPIC}/messages?key=k"))
        .await
        .expect(422);
    assert!(listed.body.contains("has no key_index"), "{listed:?}");
    let both = api
        .get(&format!("/v1/topics/{TOPIC}/messages?key=k&state=waiting"))
        .await;
    assert!(
        both.expect(422)
            .body
            .contains("cannot be combined with state or group")
    );
    let listed = here
        .verb(Binary::Manager, &["messages", "list", TOPIC, "--key", "k"])
        .await;
    assert_eq!(listed.code, Some(1), "{listed:?}");
    let no_key = here.verb(Binary::Producer, &["cancel", TOPIC]).await;
    assert_eq!(no_key.code, Some(2), "{no_key:?}");
    let refused = here
        .verb(Binary::Producer, &["cancel", TOPIC, "--key", "k"])
        .await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("has no key_index"), "{refused:?}");
    eventually(SOON, async || {
        let stats = here.stats().await;
        (stats["waiting"] == 1).then_some(()).ok_or(stats)
    })
    .await;
}
