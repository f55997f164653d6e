//! The ordering keys of pulled messages.

use super::gateways::{Site, post, pull_one};
use super::*;
use lisa_tests::Api;
use reqwest::Method;
use serde_json::{Value, json};

/// Pulls the payload of one message with its headers, acknowledges it, and returns its ordering key.
async fn raw_key(api: &Api, topic: &str) -> Option<String> {
    let path = format!("/v1/topics/{topic}/groups/default/pull");
    let pull = api.request(Method::POST, &path);
    let pull = pull.header("Accept", "application/octet-stream");
    let raw = pull.body(r#"{"wait": "10s"}"#).send().await.unwrap();
    assert_eq!(raw.status(), 200);
    let text = |name: &str| {
        let value = raw.headers().get(name)?;
        Some(String::from_utf8(value.as_bytes().to_vec()).unwrap())
    };
    let (key, token) = (text("lisa-key"), text("lisa-token").unwrap());
    let ack = format!("/v1/deliveries/{token}/ack");
    post(api, &ack, json!({})).await.expect(200);
    key
}

async fn ack(api: &Api, delivery: &Value) {
    let token = delivery["token"].as_str().unwrap();
    let ack = format!("/v1/deliveries/{token}/ack");
    post(api, &ack, json!({})).await.expect(200);
}

/// A gateway does not know that a message with a key has made the topic general.
#[tokio::test(flavor = "multi_thread")]
async fn a_pull_returns_the_ordering_key_even_if_the_topic_was_plain_before() {
    let site = Site::start("[topics.t]\n[topics.raw]", "").await;
    let api = site.api(0);
    for topic in ["t", "raw"] {
        site.send(topic, &[], "plain").await;
    }
    let plain = pull_one(api, "t", "60s").await;
    assert_eq!(plain.get("key"), None, "{plain}");
    assert_eq!(raw_key(api, "raw").await, None);
    // Still in flight, it is beside a message with a key.
    let long = "k".repeat(256);
    for key in ["straße 7", &long] {
        site.send("t", &[("Lisa-Key", key)], "keyed").await;
        let keyed = pull_one(api, "t", "60s").await;
        assert_eq!(keyed["key"], key, "{keyed}");
        ack(site.api(1), &keyed).await;
        site.send("raw", &[("Lisa-Key", key)], "keyed").await;
        assert_eq!(raw_key(api, "raw").await.as_deref(), Some(key));
    }
    site.send("t", &[("Lisa-Merge-Key", "m")], "no key").await;
    let other = pull_one(api, "t", "60s").await;
    assert_eq!(other.get("key"), None, "{other}");
    for delivery in [plain, other] {
        ack(api, &delivery).await;
    }
    for topic in ["t", "raw"] {
        site.assert_drained(topic).await;
    }
}

/// The keys are in the order of the messages, also if some of these are not delivered.
#[tokio::test(flavor = "multi_thread")]
async fn each_message_of_a_pull_has_its_own_key() {
    let site = Site::start("[topics.t]", "").await;
    for n in 0..30 {
        let key = format!("k{n}");
        let headers = [("Lisa-Id", &*format!("m{n}")), ("Lisa-Key", &*key)];
        let headers = &headers[..if n % 3 == 0 { 1 } else { 2 }];
        site.send("t", headers, "x").await;
    }
    // A message without a record is lost, and not delivered.
    let lost: u64 = site.redis(&["HDEL", "lisa:v1:{t:0}:payload", "m4"]).await;
    assert_eq!(lost, 1);
    let mut seen = std::collections::BTreeSet::new();
    let body = json!({"max": 100, "wait": "10s"});
    while seen.len() < 29 {
        let path = "/v1/topics/t/groups/default/pull";
        let pulled = post(site.api(0), path, body.clone()).await.expect(200);
        for delivery in pulled.json()["deliveries"].as_array().unwrap() {
            let id = delivery["id"].as_str().unwrap();
            let n: u32 = id[1..].parse().unwrap();
            let key = (!n.is_multiple_of(3)).then(|| json!(format!("k{n}")));
            assert_eq!(delivery.get("key"), key.as_ref(), "{delivery}");
            ack(site.api(1), delivery).await;
            seen.insert(n);
        }
    }
    assert!(!seen.contains(&4));
}

/// A pull with `max_per_key` takes messages of a key in order, and settling them lets the key go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_pull_takes_as_many_messages_of_a_key_as_it_says() {
    let site = Site::start("[topics.t]", "").await;
    for n in 0..5 {
        let id = format!("m{n}");
        site.send("t", &[("Lisa-Id", &id), ("Lisa-Key", "k")], "x")
            .await;
    }
    let path = "/v1/topics/t/groups/default/pull";
    let (mut seen, mut sizes) = (Vec::new(), Vec::new());
    while seen.len() < 5 {
        let body = json!({"max": 10, "max_per_key": 3, "wait": "10s"});
        let pulled = post(site.api(0), path, body).await.expect(200).json();
        let deliveries = pulled["deliveries"].as_array().unwrap();
        sizes.push(deliveries.len());
        let ids = deliveries.iter().map(|delivery| delivery["id"].as_str());
        seen.extend(ids.map(|id| id.unwrap().to_owned()));
        for delivery in deliveries {
            ack(site.api(1), delivery).await;
        }
    }
    assert_eq!(seen, ["m0", "m1", "m2", "m3", "m4"]);
    assert!(sizes.iter().all(|size| *size <= 3), "{sizes:?}");
    let none = json!({"max": 10, "max_per_key": 0});
    let error = post(site.api(0), path, none).await.expect(422).json();
    assert_eq!(error["errors"][0]["field"], "max_per_key", "{error}");
    site.assert_drained("t").await;
}

/// A worker with one handler for each key gets no more keys, however many messages it takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_pull_takes_messages_of_as_many_keys_as_it_says() {
    let site = Site::start("[topics.t]", "").await;
    let keys = ["a", "b", "", "a", "b", "a"];
    for (n, key) in keys.iter().enumerate() {
        let id = format!("{key}{n}");
        let headers = [("Lisa-Id", &*id), ("Lisa-Key", *key)];
        let headers = &headers[..if key.is_empty() { 1 } else { 2 }];
        site.send("t", headers, "x").await;
    }
    // The pulls must find all that is ready.
    eventually(SOON, async || match site.stats("t").await {
        stats if stats["groups"][0]["ready"] == 3 && stats["groups"][0]["parked"] == 3 => Ok(()),
        stats => Err(stats.to_string()),
    })
    .await;
    let path = "/v1/topics/t/groups/default";
    let body = json!({"max": 200, "max_per_key": 10, "max_keys": 1});
    let first = post(site.api(0), &format!("{path}/pull"), body).await;
    let first = first.expect(200).json();
    assert_eq!(ids(&first), ["a0", "a3", "a5"]);
    // Without a key, a message counts as one.
    let acks = first["deliveries"].as_array().unwrap().iter();
    let acks: Vec<_> = acks
        .map(|one| json!({"token": one["token"], "ack": true}))
        .collect();
    let settle_and_pull = format!("{path}/settle-and-pull?max=10&max_per_key=10&max_keys=2");
    let rest = post(site.api(1), &settle_and_pull, json!(acks)).await;
    let rest = rest.expect(200).json();
    assert_eq!(ids(&rest), ["b1", "2", "b4"]);
    for delivery in rest["deliveries"].as_array().unwrap() {
        ack(site.api(0), delivery).await;
    }
    let none = json!({"max": 10, "max_keys": 0});
    let error = post(site.api(0), &format!("{path}/pull"), none)
        .await
        .expect(422)
        .json();
    assert_eq!(error["errors"][0]["field"], "max_keys", "{error}");
    site.assert_drained("t").await;
}

fn ids(pulled: &Value) -> Vec<&str> {
    let deliveries = pulled["deliveries"].as_array().unwrap().iter();
    deliveries
        .map(|delivery| delivery["id"].as_str().unwrap())
        .collect()
}
