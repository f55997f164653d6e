//! Pulls in development mode, from topics that do not exist yet.

use super::gateways::post;
use super::*;
use lisa_tests::{Api, Process};
use reqwest::Method;
use serde_json::json;

/// A relay in development mode, once it is ready.
async fn dev(server: &Server) -> (Process, Api) {
    let port = lisa_tests::free_port();
    let listen = format!("127.0.0.1:{port}");
    let process = Binary::Manager
        .with(["dev", "--redis-url", &server.url(), "--listen", &listen])
        .start();
    let api = Api::new(port);
    eventually(SOON, async || match api.try_get("/readyz").await {
        Some(reply) if reply.status == 200 => Ok(()),
        reply => Err(format!("{reply:?}")),
    })
    .await;
    (process, api)
}

#[tokio::test(flavor = "multi_thread")]
async fn development_mode_raises_no_alarm_for_the_group_that_it_declares_and_nobody_pulls() {
    let server = Server::start();
    let (_dev, api) = dev(&server).await;
    api.send("orders", "first", &[]).await.expect(202);
    eventually(SOON, async || {
        let found = api.get_json("/v1/attention?late=1ms&oldest=2ms").await;
        match &found["troubles"][0] {
            trouble if trouble["kind"] == "no_consumer" && found["status"] == "notice" => Ok(()),
            _ => Err(found),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_in_development_mode_creates_the_topic_that_a_later_send_uses() {
    let server = Server::start();
    let (_dev, api) = dev(&server).await;
    // A group that a new topic would not have creates nothing, and neither does a bad name.
    for (path, status, code) in [
        ("topics/new/groups/billing/pull", 404, "unknown_topic"),
        ("topics/.new/groups/default/pull", 422, "invalid"),
    ] {
        let refused = post(&api, &format!("/v1/{path}"), json!({})).await;
        assert_eq!(refused.expect(status).json()["code"], code);
    }
    let topics = api.get_json("/v1/topics").await;
    assert!(!topics.to_string().contains("new"), "{topics}");
    let other = api.clone();
    let poll = tokio::spawn(async move {
        let path = "/v1/topics/new/groups/default/pull";
        post(&other, path, json!({"wait": "30s"})).await
    });
    let created = async || {
        let topics = api.get_json("/v1/topics").await;
        let is_there = topics.to_string().contains("\"new\"");
        is_there.then_some(()).ok_or(topics)
    };
    eventually(SOON, created).await;
    api.send("new", "first", &[]).await.expect(202);
    let pulled = poll.await.unwrap().expect(200).json();
    assert_eq!(pulled["deliveries"][0]["payload"], "first", "{pulled}");
    let unknown = "/v1/topics/new/groups/billing/pull";
    let unknown = post(&api, unknown, json!({})).await.expect(404);
    assert_eq!(unknown.json()["code"], "not_found");
}

/// Waits until this many consumers print messages. Each topic has one.
async fn printers(api: &Api, expected: usize) {
    eventually(SOON, async || {
        let found = api.get_json("/v1/workers").await;
        let workers = found["workers"].as_array().expect("workers").iter();
        match workers.filter(|one| one["role"] == "consumer").count() {
            count if count == expected => Ok(()),
            _ => Err(found),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_removed_in_development_mode_is_not_printed_any_more() {
    let server = Server::start();
    let (_dev, api) = dev(&server).await;
    for topic in ["kept", "removed"] {
        api.send(topic, "first", &[]).await.expect(202);
    }
    printers(&api, 2).await;
    let removal = api.request(Method::DELETE, "/v1/topics/removed?how=force");
    assert!(removal.send().await.unwrap().status().is_success());
    printers(&api, 1).await;
    let settings = json!({});
    let created = api.call(Method::PUT, "/v1/topics/removed", &settings);
    created.await.expect(201);
    printers(&api, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_development_mode_an_action_at_the_address_of_the_dashboard_is_one_of_sqs() {
    let server = Server::start();
    let (_dev, api) = dev(&server).await;
    for (path, site, status, media_type, part) in [
        ("/", "cross-site", 200, "text/html", "<!DOCTYPE html>"),
        ("/?Actions=1", "none", 200, "text/html", "<!DOCTYPE html>"),
        (
            "/?Action=ListQueues",
            "none",
            200,
            "text/xml",
            "<ListQueuesResponse",
        ),
        (
            "/?Action=ListQueues",
            "cross-site",
            403,
            "application/problem+json",
            "cross_site",
        ),
    ] {
        let request = api.request(Method::GET, path);
        let answer = request.header("sec-fetch-site", site).send().await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.status(), status, "{path} {site}");
        let given = answer.headers()["content-type"].to_str().expect("ASCII");
        assert!(given.starts_with(media_type), "{path} {site}: {given}");
        let text = answer.text().await.expect("a text");
        assert!(text.contains(part), "{path} {site}: {text}");
    }
}
