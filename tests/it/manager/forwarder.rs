//! Garbage that the manager forwards to another topic.

use lisa_core::broker::{TopicHandle, Verdict};
use lisa_core::message::{Headers, MessageId, PreparedMessage};
use lisa_core::state::State;
use lisa_tests::relay::{self, ms};
use lisa_tests::{Server, eventually};
use serde_json::{Value, json};
use std::sync::Arc;

use super::served::Served;
use super::{SOON, read, send};

async fn start(server: &Server, keys: &[(&str, &str)]) -> Served {
    let forwards = ("topics.orders.garbage.topic", "dead");
    let keys = [&[forwards, ("topics.orders.shards", "1")], keys].concat();
    Served::start(server, "forwarder", &keys).await
}

async fn topic(manager: &Served, name: &str) -> Arc<TopicHandle> {
    manager.broker.topic(&name.parse().unwrap()).await.unwrap()
}

/// Sends messages that are rejected with an error.
async fn reject(manager: &Served, messages: Vec<PreparedMessage>) {
    let topic = manager.topic().await;
    let count = messages.len();
    for message in messages {
        send(&manager.broker, &topic, message).await;
    }
    let reads = read(&manager.broker, &topic, count).await;
    let error = "no order: ü".to_owned();
    let settlements = reads.iter();
    let settlements = settlements.map(|read| {
        relay::settlement(
            read,
            Verdict::Reject {
                error: error.clone(),
            },
        )
    });
    let settlements: Vec<_> = settlements.collect();
    let (shard, group) = (topic.first_shard(), &topic.groups()[0]);
    let settled = manager.broker.settle(&topic, shard, group, &settlements);
    settled.await.unwrap();
}

/// Waits until a group of a topic has as many messages in a state.
async fn count(manager: &Served, topic: &str, state: State, expected: u64) {
    let topic = self::topic(manager, topic).await;
    eventually(SOON, async || {
        let stats = manager.broker.stats(&topic).await.unwrap();
        let group = &stats.groups[0];
        let found = match state {
            State::Garbage => group.garbage,
            _ => group.ready,
        };
        if found == expected {
            Ok(())
        } else {
            Err(format!("{found} of {expected}: {stats:?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn garbage_becomes_messages_of_the_topic_that_gets_it() {
    let server = Server::start();
    let manager = start(&server, &[("topics.dead.shards", "3")]).await;
    let mut headers = Headers::default();
    headers.insert("color", "red").unwrap();
    let mut first = relay::message("order-7", ms(0));
    first.record.headers = headers;
    first.options.key = Some("customer-1".parse().unwrap());
    reject(&manager, vec![first, relay::message("order-8", ms(0))]).await;
    count(&manager, "orders", State::Garbage, 0).await;
    count(&manager, "dead", State::Ready, 2).await;
    let page = manager
        .api
        .get_json("/v1/topics/dead/messages?state=ready")
        .await;
    let messages = page["messages"].as_array().unwrap();
    let keyed = messages
        .iter()
        .find(|message| message["key"] == "customer-1");
    let id = keyed.expect("the one with a key")["id"].as_str().unwrap();
    assert!(id.parse::<MessageId>().unwrap().is_derived(), "{id}");
    let path = format!("/v1/topics/dead/messages/{id}");
    let message = manager.api.get_json(&path).await;
    let headers = &message["headers"];
    for (name, value) in [
        ("color", "red"),
        ("lisa-garbage-topic", "orders"),
        ("lisa-garbage-group", "default"),
        ("lisa-garbage-id", "order-7"),
        ("lisa-garbage-reason", "rejected"),
        ("lisa-garbage-attempts", "1"),
        ("lisa-garbage-error", "no order: ?"),
        ("lisa-garbage-hops", "1"),
        ("lisa-origin", "orders/order-7"),
    ] {
        assert_eq!(headers[name], value, "{name} of {message:#}");
    }
    for name in ["orders", "dead"] {
        let stats = manager
            .broker
            .stats(&*topic(&manager, name).await)
            .await
            .unwrap();
        assert_eq!(stats.conservation_error, 0);
    }
    manager.end().await;
}

#[tokio::test]
async fn what_the_topic_cannot_take_stays_in_garbage() {
    let server = Server::start();
    let keys = [
        ("topics.dead.max_messages", "2"),
        ("topics.dead.max_payload", "100"),
    ];
    let manager = start(&server, &keys).await;
    let mut large = relay::message("large", ms(0));
    large.record.payload = vec![b'x'; 101].into();
    let small = (0..4).map(|n| relay::message(&format!("m{n}"), ms(0)));
    reject(&manager, [large].into_iter().chain(small).collect()).await;
    count(&manager, "dead", State::Ready, 2).await;
    count(&manager, "orders", State::Garbage, 3).await;
    // Room lets the others follow, but for the one that is too large.
    let dead = topic(&manager, "dead").await;
    for read in read(&manager.broker, &dead, 2).await {
        let ack = relay::settlement(&read, Verdict::Ack);
        let (shard, group) = (dead.first_shard(), &dead.groups()[0]);
        manager
            .broker
            .settle(&dead, shard, group, &[ack])
            .await
            .unwrap();
    }
    count(&manager, "orders", State::Garbage, 1).await;
    count(&manager, "dead", State::Ready, 2).await;
    manager.end().await;
}

#[tokio::test]
async fn garbage_waits_for_a_topic_that_does_not_exist_and_comes_again_as_another_message() {
    let server = Server::start();
    let manager = start(&server, &[]).await;
    reject(&manager, vec![relay::message("m", ms(0))]).await;
    count(&manager, "orders", State::Garbage, 1).await;
    let created = manager
        .api
        .call(reqwest::Method::PUT, "/v1/topics/dead", &json!({}))
        .await;
    assert!(created.status < 300, "{}", created.json());
    count(&manager, "dead", State::Ready, 1).await;
    let first: Value = manager
        .api
        .get_json("/v1/topics/dead/messages?state=ready")
        .await;
    // The same id may be used again after the message ended in garbage.
    reject(&manager, vec![relay::message("other", ms(0))]).await;
    count(&manager, "dead", State::Ready, 2).await;
    let both: Value = manager
        .api
        .get_json("/v1/topics/dead/messages?state=ready")
        .await;
    assert_ne!(first["messages"][0]["id"], both["messages"][1]["id"]);
    manager.end().await;
}
