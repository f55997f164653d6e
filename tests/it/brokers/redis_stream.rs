//! The `redis-stream` sink.

use super::{Scene, all_received, ids};
use crate::scenarios::Deployment;
use lisa_tests::{Aof, Server};
use redis::cmd;
use std::collections::HashMap;

type Entries = Vec<(String, HashMap<String, String>)>;

fn sink(server: &Server, keys: &str) -> String {
    format!(
        r#"{{ type = "redis-stream", url = "{}"{keys} }}"#,
        server.url()
    )
}

async fn entries(server: &Server, stream: &str) -> Entries {
    let mut connection = server.connection().await;
    let range = cmd("XRANGE")
        .arg(stream)
        .arg("-")
        .arg("+")
        .query_async(&mut connection)
        .await;
    range.expect("a stream")
}

#[tokio::test]
async fn an_entry_carries_the_payload_headers_and_metadata() {
    let server = Server::start();
    let scene = Scene::start(&sink(&server, r#", stream = "out:{topic}:{header:to}""#)).await;
    let options = [("Lisa-Id", "order-7"), ("Lisa-Header-To", "emea")];
    let sent = scene
        .relay
        .api
        .send(crate::scenarios::deployment::TOPIC, "seven", &options);
    sent.await.expect(202);
    scene.no_attempt_lost(1).await;
    let entries = entries(&server, "out:orders:emea").await;
    let fields = &entries[0].1;
    for (name, value) in [
        ("id", "order-7"),
        ("topic", "orders"),
        ("group", "billing"),
        ("attempt", "1"),
        ("payload", "seven"),
        ("header:to", "emea"),
    ] {
        assert_eq!(
            fields.get(name).map(String::as_str),
            Some(value),
            "{name} of {fields:?}"
        );
    }
    assert!(fields["due_at"].ends_with('Z'), "{fields:?}");
}

#[tokio::test]
async fn a_redis_killed_in_the_middle_gets_every_message_and_costs_no_attempt() {
    let mut server = Server::builder().aof(Aof::Always).start();
    let scene = Scene::start(&sink(&server, r#", timeout = "1s""#)).await;
    scene.send(ids(1000)).await;
    scene.acked(100).await;
    server.kill9();
    // All that was sent before can be appended by now.
    scene.send(ids(2000).skip(1000)).await;
    scene.unavailable("").await;
    server.restart();
    scene.no_attempt_lost(2000).await;
    let received: Vec<String> = entries(&server, "due:orders")
        .await
        .into_iter()
        .map(|(_, fields)| fields["id"].clone())
        .collect();
    all_received(ids(2000), &received);
}

#[tokio::test]
async fn a_full_or_read_only_redis_is_unavailable_and_a_wrong_type_is_not() {
    let server = Server::start();
    let mut connection = server.connection().await;
    let set = async |name: &str, value: &str| {
        let mut connection = server.connection().await;
        let done = cmd("CONFIG")
            .arg("SET")
            .arg(name)
            .arg(value)
            .query_async::<()>(&mut connection)
            .await;
        done.expect("a setting");
    };
    set("maxmemory", "1").await;
    let scene = Scene::with("max_attempts = 3", &sink(&server, "")).await;
    scene.send(ids(50)).await;
    scene.unavailable("OOM").await;
    set("maxmemory", "0").await;
    scene.no_attempt_lost(50).await;
    let mut text = cmd("SET");
    text.arg("due:orders").arg("in place of the stream");
    text.query_async::<()>(&mut connection).await.expect("set");
    scene.send(["wrong".to_owned()]).await;
    let stats = scene
        .here
        .settled(&[("garbage", 1), ("in_flight", 0), ("retry", 0)])
        .await;
    assert_eq!(Deployment::counter(&stats, "retried"), 2, "{stats:#}");
    scene.here.conserved().await;
}

#[tokio::test]
async fn a_stream_that_the_login_may_not_write_costs_attempts_and_others_go_on() {
    let server = Server::start();
    let mut connection = server.connection().await;
    let user = "ACL SETUSER sink on >secret +@all ~due:allowed";
    let mut words = user.split(' ');
    let mut set = cmd(words.next().expect("a command"));
    set.arg(words.collect::<Vec<_>>());
    set.query_async::<()>(&mut connection)
        .await
        .expect("a user");
    let url = server.url().replacen("://", "://sink:secret@", 1);
    let sink =
        format!(r#"{{ type = "redis-stream", url = "{url}", stream = "due:{{header:to}}" }}"#);
    let scene = Scene::with("max_attempts = 3", &sink).await;
    let send = async |id: &str, to: &str| {
        let options = [("Lisa-Id", id), ("Lisa-Header-To", to)];
        let topic = crate::scenarios::deployment::TOPIC;
        scene.relay.api.send(topic, id, &options).await.expect(202);
    };
    send("refused", "refused").await;
    send("allowed", "allowed").await;
    scene.acked(1).await;
    let stats = scene
        .here
        .settled(&[("garbage", 1), ("in_flight", 0), ("retry", 0)])
        .await;
    assert_eq!(Deployment::counter(&stats, "retried"), 2, "{stats:#}");
    assert_eq!(entries(&server, "due:allowed").await.len(), 1);
    scene.here.conserved().await;
}
