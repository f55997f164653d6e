//! The quotas of what a team may store: topics, messages, bytes and schedules.

use super::*;
use futures_util::future::join_all;

/// The token of a team, whose text is its name.
const TEAM: &str = "team";

/// A manager with an administrator and a team of this quota.
async fn with_quota(server: &Server, namespace: &str, quota: Value) -> (Served, Api) {
    let mut team = quota;
    team["topics"] = json!(["shop-*", "mail"]);
    let all = tokens(&[
        (ADMIN, &["tokens", "read", "operate", "send"], Value::Null),
        (TEAM, &["read", "operate", "send"], team),
    ]);
    let mut served = served_with(server, namespace, &all).await;
    served.api = served.api.token(ADMIN);
    let team = served.api.clone().token(TEAM);
    (served, team)
}

async fn topic(api: &Api, method: Method, name: &str, settings: Value) -> Reply {
    api.call(method, &format!("/v1/topics/{name}"), &settings)
        .await
}

async fn put_topic(api: &Api, name: &str, settings: Value) -> Reply {
    topic(api, Method::PUT, name, settings).await
}

/// Returns the limit of messages that a topic got.
async fn limit(api: &Api, name: &str, settings: Value, expected: u16) -> u64 {
    let put = put_topic(api, name, settings).await.expect(expected);
    put.json()["settings"]["max_messages"].as_u64().unwrap()
}

/// Returns the reason why a topic is refused, which names no topic of others.
async fn refused(api: &Api, name: &str, settings: Value) -> String {
    let problem = put_topic(api, name, settings).await.expect(409).json();
    assert_eq!(problem["code"], "quota", "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    detail.replace(&format!("topic {name}: "), "")
}

async fn remove_topic(api: &Api, name: &str) {
    let path = format!("/v1/topics/{name}?how=force");
    api.call(Method::DELETE, &path, &Value::Null)
        .await
        .expect(202);
    eventually(SOON, async || {
        match api.get(&format!("/v1/topics/{name}")).await {
            reply if reply.status == 404 => Ok(()),
            reply => Err(format!("{reply:?}")),
        }
    })
    .await;
    // The list is what counts.
    eventually(SOON, async || {
        let list = api.get_json("/v1/topics").await.to_string();
        match list.contains(&format!("\"{name}\"")) {
            false => Ok(()),
            true => Err(list),
        }
    })
    .await;
}

#[tokio::test]
async fn a_team_creates_changes_and_removes_topics_within_its_quota() {
    let server = Server::start();
    let quota = json!({ "max_topics": 4, "max_messages": 100, "max_bytes": "1MiB" });
    let (served, team) = with_quota(&server, "quota", quota).await;
    // The file has shop-a without a limit, which counts as a quarter: 25 messages.
    assert_eq!(limit(&team, "shop-b", json!({}), 201).await, 25);
    let shown = team.get_json("/v1/topics/shop-b").await;
    assert_eq!(shown["settings"]["max_bytes"], 1 << 18);
    // A repeated request changes nothing.
    assert_eq!(limit(&team, "shop-b", json!({}), 200).await, 25);
    assert_eq!(
        team.get_json("/v1/topics/shop-b").await["epoch"],
        shown["epoch"]
    );
    let over = refused(&team, "mail", json!({ "max_messages": 51 })).await;
    let why = "the token's quota max_messages is 100, of which its other topics (2) have 50: this one may have 50, not 51; nothing was \
               changed";
    assert_eq!(over, why);
    let many = refused(
        &team,
        "mail",
        json!({ "max_messages": 1, "max_bytes": "2MiB" }),
    )
    .await;
    assert!(many.contains("max_bytes is 1MiB"), "{many}");
    assert!(many.contains("may have 512KiB, not 2MiB"), "{many}");
    assert_eq!(
        limit(&team, "mail", json!({ "max_messages": 50 }), 201).await,
        50
    );
    let full = json!({ "max_messages": 1 });
    assert!(
        refused(&team, "shop-c", full.clone())
            .await
            .contains("max_messages")
    );
    // Shards round up: 8 of them hold 16 messages, not 9.
    let shards = json!({ "max_messages": 9, "shards": 8 });
    assert_eq!(
        limit(&team, "mail", json!({ "max_messages": 35 }), 200).await,
        35
    );
    let over = refused(&team, "shop-c", shards.clone()).await;
    assert!(over.contains("may have 15, not 16"), "{over}");
    assert_eq!(
        limit(&team, "mail", json!({ "max_messages": 34 }), 200).await,
        34
    );
    assert_eq!(limit(&team, "shop-c", shards, 201).await, 9);
    // All four topics are there.
    let over = refused(&team, "shop-d", json!({ "max_messages": 1 })).await;
    let why =
        "the token's quota max_topics is 4, and it reaches 4 topics already; nothing was changed";
    assert_eq!(over, why);
    // What does not grow is accepted, and a limit that is taken back becomes an equal part again.
    assert_eq!(
        limit(&team, "shop-b", json!({ "lease": "5s" }), 200).await,
        25
    );
    assert_eq!(
        limit(&team, "shop-b", json!({ "max_messages": 20 }), 200).await,
        20
    );
    let back = json!({ "max_messages": null });
    assert_eq!(limit(&team, "shop-b", back, 200).await, 25);
    assert!(
        refused(&team, "shop-b", json!({ "max_messages": 26 }))
            .await
            .contains("may have 25")
    );
    remove_topic(&team, "shop-c").await;
    assert_eq!(
        limit(&team, "shop-c", json!({ "max_messages": 16 }), 201).await,
        16
    );
    // A send beyond the share is refused.
    for _ in 0..16 {
        team.send("shop-c", "x", &[("Lisa-Delay", "1h")])
            .await
            .expect(202);
    }
    let beyond = team.send("shop-c", "x", &[]).await.expect(429);
    assert_eq!(beyond.json()["code"], "full");
    // Another token has no quota.
    assert_eq!(
        limit(&served.api, "shop-d", json!({ "max_messages": 1000 }), 201).await,
        1000
    );
    let over = refused(&team, "shop-b", json!({ "max_messages": 26 })).await;
    assert!(
        over.contains("(4) have 1075: this one may have 0"),
        "{over}"
    );
    served.end().await;
}

#[tokio::test]
async fn of_two_topics_at_the_same_time_only_one_is_created_and_conditions_hold() {
    let server = Server::start();
    let quota = json!({ "max_topics": 2, "max_messages": 100 });
    let (served, team) = with_quota(&server, "two", quota).await;
    for _ in 0..5 {
        let calls = ["shop-b", "mail"].map(|name| put_topic(&team, name, json!({})));
        let mut statuses = join_all(calls).await;
        statuses.sort_by_key(|reply| reply.status);
        assert_eq!(statuses[0].status, 201, "{statuses:?}");
        assert_eq!(statuses[1].status, 409, "{statuses:?}");
        let created = statuses[0].json();
        remove_topic(&team, created["topic"].as_str().unwrap()).await;
    }
    let created = put_topic(&team, "mail", json!({})).await.expect(201);
    let tag = created.header("ETag").to_owned();
    let conditional = async |(header, value): (&str, &str), settings: Value| {
        let request = team.request(Method::PUT, "/v1/topics/mail");
        reply(request.header(header, value).json(&settings))
            .await
            .status
    };
    let other = json!({ "max_messages": 7 });
    assert_eq!(
        conditional(("If-Match", "\"77\""), other.clone()).await,
        412
    );
    assert_eq!(
        conditional(("If-None-Match", "*"), other.clone()).await,
        412
    );
    // The settings are in force already.
    assert_eq!(conditional(("If-None-Match", "*"), json!({})).await, 200);
    assert_eq!(conditional(("If-Match", "\"77\""), json!({})).await, 200);
    assert_eq!(conditional(("If-Match", &tag), other).await, 200);
    served.end().await;
}

#[tokio::test]
async fn each_group_on_each_shard_counts_against_max_streams() {
    let server = Server::start();
    let (served, team) = with_quota(&server, "streams", json!({ "max_streams": 9 })).await;
    // The topic of the file has one.
    let settings = |groups: &[&str]| json!({ "shards": 2, "groups": groups });
    let put = async |name: &str, groups: &[&str]| put_topic(&team, name, settings(groups)).await;
    put("shop-b", &["a", "b", "c"]).await.expect(201);
    let over = refused(&team, "shop-b", settings(&["d", "e"])).await;
    let why = "the token's quota max_streams is 9, of which its other topics (1) have 1: this one may have 8, not 10; nothing was changed";
    assert_eq!(over, why);
    put("shop-b", &["a", "d"]).await.expect(200);
    let over = refused(&team, "mail", json!({})).await;
    assert!(over.contains("may have 0, not 1"), "{over}");
    let used = team.get_json("/v1/token").await;
    assert_eq!(used["used"]["streams"], 9);
    // A change that adds none is accepted.
    put("shop-b", &["a"]).await.expect(200);
    served.end().await;
}

/// Otherwise, a team could fill a topic, lower its limit, and fill the next one.
#[tokio::test]
async fn a_topic_whose_limit_was_lowered_counts_what_it_holds() {
    let server = Server::start();
    let quota = json!({ "max_topics": 3, "max_messages": 30, "max_bytes": "30KiB" });
    let (served, team) = with_quota(&server, "lowered", quota).await;
    let of = |messages: u64, bytes: u64| json!({ "max_messages": messages, "max_bytes": bytes });
    assert_eq!(limit(&team, "shop-b", of(20, 20_000), 201).await, 20);
    for number in 0..20 {
        let id = format!("m{number}");
        let headers = [("Lisa-Delay", "1h"), ("Lisa-Id", &*id)];
        team.send("shop-b", "x".repeat(500), &headers)
            .await
            .expect(202);
    }
    assert_eq!(limit(&team, "shop-b", of(1, 1), 200).await, 1);
    // The file's topic has a third.
    let over = refused(&team, "mail", of(1, 1)).await;
    assert!(
        over.contains("max_messages is 30, of which its other topics (2) have 30, as 1 of them still holds more than its limit:"),
        "{over}"
    );
    for number in 0..20 {
        let path = format!("/v1/topics/shop-b/messages/m{number}");
        team.call(Method::DELETE, &path, &Value::Null)
            .await
            .expect(200);
    }
    // Tombstones count as bytes: 20 × 128.
    let over = refused(&team, "mail", of(19, 18_000)).await;
    assert!(
        over.contains("max_bytes is 30KiB") && over.contains("have 12800B"),
        "{over}"
    );
    assert_eq!(limit(&team, "mail", of(19, 17_000), 201).await, 19);
    served.end().await;
}

#[tokio::test]
async fn the_quota_of_a_stored_token_is_shown_and_needs_topics() {
    let server = Server::start();
    let served = served(&server).await;
    for (body, field) in [
        (
            json!({ "scopes": ["operate"], "max_topics": 1 }),
            "max_topics",
        ),
        (
            json!({ "scopes": ["operate"], "topics": ["a"], "max_messages": 1 }),
            "max_messages",
        ),
        (
            json!({ "scopes": ["operate"], "topics": ["a"], "max_topics": 10_001 }),
            "max_topics",
        ),
        (
            json!({ "scopes": ["operate"], "max_schedules": 1 }),
            "max_schedules",
        ),
        (
            json!({ "scopes": ["operate"], "topics": ["a"], "max_schedules": 100_001 }),
            "max_schedules",
        ),
    ] {
        let problem = put(&served.api, "bad", body).await.expect(422).json();
        assert_eq!(problem["errors"][0]["field"], field, "{problem}");
    }
    let quota = json!({
        "scopes": ["operate", "read"], "topics": ["shop-*"], "max_topics": 3, "max_messages": 10, "max_bytes": "1GiB",
    });
    let secret = create(&served.api, TEAM, quota).await;
    let list = served.api.get_json("/v1/tokens?prefix=team").await;
    let token = &list["tokens"][0];
    assert_eq!(token["max_topics"], 3);
    assert_eq!(token["max_messages"], 10);
    assert_eq!(token["max_bytes"], 1 << 30);
    assert_eq!(token["max_schedules"], 1000);
    status(&served.api, &secret, (Method::GET, "/v1/topics"), 200).await;
    let team = served.api.clone().token(&secret);
    assert_eq!(limit(&team, "shop-b", json!({}), 201).await, 3);
    let over = refused(&team, "shop-c", json!({ "max_messages": 5 })).await;
    assert!(
        over.contains("have 6: this one may have 4, not 5"),
        "{over}"
    );
    served.end().await;
}

async fn put_schedule(api: &Api, name: &str, topic: &str) -> Reply {
    let schedule = json!({ "topic": topic, "cron": "0 0 0 1 1 *" });
    api.call(Method::PUT, &format!("/v1/schedules/{name}"), &schedule)
        .await
}

#[tokio::test]
async fn a_team_creates_schedules_within_its_quota() {
    let server = Server::start();
    let (served, team) = with_quota(&server, "schedules", json!({ "max_schedules": 2 })).await;
    // Of other names, or by another token, any number.
    for (name, topic) in [("bank-a", "bank"), ("shop", "shop-a"), ("shop-a", "shop-a")] {
        put_schedule(&served.api, name, topic).await.expect(201);
    }
    put_schedule(&team, "shop-b", "shop-a").await.expect(201);
    let over = put_schedule(&team, "mail", "shop-a").await.expect(409);
    let over = over.json();
    assert_eq!(over["code"], "quota", "{over}");
    let why = "the token's quota max_schedules is 2, and 2 schedules with its names are stored already; nothing was changed";
    assert_eq!(over["detail"], why);
    // A change, and a repeated request, are no new schedule.
    put_schedule(&team, "shop-b", "shop-a").await.expect(200);
    let path = "/v1/schedules/shop-a";
    let change = json!({ "topic": "shop-a", "cron": "0 0 0 2 1 *" });
    team.call(Method::PUT, path, &change).await.expect(200);
    team.call(Method::DELETE, path, &Value::Null)
        .await
        .expect(204);
    // Of many at the same time, one is created.
    let calls = (0..8).map(|n| {
        let team = team.clone();
        async move {
            let name = format!("shop-x{n}");
            put_schedule(&team, &name, "shop-a").await.status
        }
    });
    let mut statuses = join_all(calls).await;
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409, 409, 409, 409, 409, 409, 409]);
    served.end().await;
}
