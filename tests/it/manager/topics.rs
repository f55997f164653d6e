//! Topics that operators create and change over HTTP and on the command line.

use super::SOON;
use super::operators::lisa_manager;
use super::served::Served;
use futures_util::future::join_all;
use lisa_core::broker::{Broker, Declare};
use lisa_core::topic::{Shard, Topic, TopicSettings};
use lisa_tests::http::Reply;
use lisa_tests::relay::{connection, message, ms};
use lisa_tests::{Server, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A manager whose configuration declares `orders`, and sets defaults.
async fn served(server: &Server) -> Served {
    let keys = [
        ("topics.orders.groups", "billing"),
        ("topic_defaults.lease", "1m"),
        ("topic_defaults.retry.base", "3s"),
    ];
    Served::with(server, "cli", &keys, true).await
}

async fn put(served: &Served, topic: &str, condition: (&str, &str), settings: Value) -> Reply {
    let path = format!("/v1/topics/{topic}");
    let request = served.api.request(Method::PUT, &path).json(&settings);
    let request = match condition {
        ("", _) => request,
        (name, value) => request.header(name, value),
    };
    lisa_tests::http::reply(request).await
}

const ALWAYS: (&str, &str) = ("", "");
const NEW: (&str, &str) = ("If-None-Match", "*");

#[tokio::test]
async fn a_topic_is_created_with_the_defaults_of_the_configuration_and_delivers() {
    let server = Server::start();
    let served = served(&server).await;
    let settings = json!({ "groups": ["shop"], "retry": { "factor": 3.0 }, "ttl": null });
    let created = put(&served, "new", NEW, settings.clone()).await.expect(201);
    assert_eq!(created.header("etag"), "\"1\"");
    let topic = created.json();
    assert_eq!(
        (&topic["epoch"], &topic["groups"]),
        (&json!(1), &json!(["shop"]))
    );
    let there = &topic["settings"];
    assert_eq!(
        (&there["lease"], &there["max_attempts"]),
        (&json!("1m"), &json!(16))
    );
    assert_eq!(
        (&there["retry"]["base"], &there["retry"]["factor"]),
        (&json!("3s"), &json!(3.0))
    );
    // A repeat of the same request, as after a lost answer.
    assert_eq!(
        put(&served, "new", NEW, settings).await.expect(200).json()["epoch"],
        1
    );

    served.api.send("new", "one", &[]).await.expect(202);
    eventually(SOON, async || {
        let topic = served.api.get_json("/v1/topics/new").await;
        match topic["stats"]["groups"][0]["ready"] == 1 {
            true => Ok(()),
            false => Err(format!("{topic:#}")),
        }
    })
    .await;
    served.end().await;
}

#[tokio::test]
async fn settings_change_only_if_they_are_those_that_were_read() {
    let server = Server::start();
    let served = served(&server).await;
    put(&served, "new", ALWAYS, json!({ "ttl": "1h" }))
        .await
        .expect(201);
    let read = served.api.get("/v1/topics/new").await.expect(200);
    let tag = read.header("etag").to_owned();
    let changed = put(
        &served,
        "new",
        ("If-Match", &tag),
        json!({ "max_attempts": 3 }),
    )
    .await;
    let topic = changed.expect(200).json();
    assert_eq!(
        (&topic["epoch"], &topic["settings"]["ttl"]),
        (&json!(2), &Value::Null)
    );
    let refused = put(
        &served,
        "new",
        ("If-Match", &tag),
        json!({ "max_attempts": 4 }),
    )
    .await;
    assert_eq!(refused.expect(412).json()["code"], "precondition_failed");
    let refused = put(&served, "new", NEW, json!({})).await.expect(412).json();
    assert_eq!(
        refused["detail"],
        "topic new exists with other settings: max_attempts is 3, not 16"
    );
    let refused = put(&served, "other", ("If-Match", "\"1\""), json!({})).await;
    assert_eq!(
        refused.expect(412).json()["detail"],
        "topic other does not exist"
    );
    let list = served.api.get_json("/v1/topics").await;
    assert_eq!(list["topics"].as_array().unwrap().len(), 2, "{list:#}");
    let named = async |prefix: &str| -> Vec<String> {
        let path = format!("/v1/topics?prefix={prefix}");
        let list = served.api.get_json(&path).await;
        let list = list["topics"].as_array().unwrap().iter();
        list.map(|topic| topic["topic"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(named("ne").await, ["new"]);
    assert_eq!(named("new").await, ["new"]);
    assert_eq!(named("ew").await, [""; 0]);
    let wrong = served.api.get("/v1/topics?prefix=a%20b").await.expect(422);
    assert_eq!(wrong.json()["errors"][0]["field"], "prefix");

    let audit = served.api.get_json("/v1/audit").await;
    let entries = audit["entries"].as_array().unwrap().iter();
    let done = entries.filter(|entry| entry["topic"] == "new" && entry["outcome"] == "done");
    let done: Vec<_> = done
        .map(|entry| (&entry["action"], &entry["details"]))
        .collect();
    let created = "lease=1m, retry={\"base\":\"3s\",\"factor\":2.0,\"jitter\":0.2,\"kind\":\"exponential\",\"max\":\"10m\"}, ttl=1h";
    let changed = "max_attempts=3, ttl=null";
    assert_eq!(
        done,
        [
            (&json!("change_topic"), &json!(changed)),
            (&json!("create_topic"), &json!(created)),
        ]
    );
    served.end().await;
}

#[tokio::test]
async fn a_wrong_request_says_what_is_wrong_and_changes_nothing() {
    let server = Server::start();
    let served = served(&server).await;
    put(&served, "new", ALWAYS, json!({})).await.expect(201);
    for (topic, condition, settings, status, text) in [
        (
            "orders",
            ALWAYS,
            json!({}),
            409,
            "the managers' configuration declares topic orders",
        ),
        (
            "new",
            ALWAYS,
            json!({ "leese": "1s" }),
            422,
            "leese: unknown field, did you mean lease?",
        ),
        (
            "new",
            ALWAYS,
            json!({ "lease": "1ms" }),
            422,
            "lease: must be",
        ),
        (
            "new",
            ALWAYS,
            json!({ "retry": { "factor": 0 } }),
            422,
            "retry.factor: must be",
        ),
        ("new", ALWAYS, json!({ "burst": 7 }), 422, "burst:"),
        (
            "new",
            ALWAYS,
            json!({ "shards": 4 }),
            422,
            "shards: the topic has 1",
        ),
        (
            "large",
            ALWAYS,
            json!({ "shards": 1024, "groups": ["a", "b", "c", "d", "e"] }),
            422,
            "shards: shards × groups is 5120, must be at most 4096",
        ),
        (
            "new",
            ("If-Match", "1"),
            json!({}),
            422,
            "If-Match: expected an ETag",
        ),
        (
            "new",
            ("If-Match", "\"+1\""),
            json!({}),
            422,
            "If-Match: expected an ETag",
        ),
        (
            "new",
            ("If-None-Match", "\"1\""),
            json!({}),
            422,
            "If-None-Match: expected *",
        ),
        ("a b", ALWAYS, json!({}), 422, "topic:"),
    ] {
        let refused = put(&served, topic, condition, settings.clone())
            .await
            .expect(status);
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.starts_with(text), "{settings}: {detail}");
    }
    let topic = served.api.get_json("/v1/topics/new").await;
    assert_eq!(topic["epoch"], 1);
    served.end().await;
}

#[tokio::test]
async fn the_command_line_creates_topics_and_changes_single_settings() {
    let server = Server::start();
    let served = served(&server).await;
    for url in [None, Some(&*served.url)] {
        let topic = if url.is_some() { "remote" } else { "local" };
        let run = async |arguments: &[&str]| {
            let mut all = arguments.to_vec();
            all.extend(url.iter().flat_map(|url| ["--url", url]));
            let launch = lisa_manager(&server, &all);
            let launch = match url {
                Some(_) => launch,
                None => launch.config("topics.orders.groups = [\"billing\"]\n"),
            };
            launch.run(SOON).await
        };
        let settings = ["groups=billing,audit", "max_attempts=3", "retry.base=2s"];
        let create = [&["topics", "create", topic], &settings[..]].concat();
        for what in ["created", "already exists with these settings"] {
            let done = run(&create).await;
            assert_eq!(done.stdout, format!("{topic} {what}\n"), "{done:?}");
        }
        let change = [
            "topics",
            "change",
            topic,
            "ttl=1h",
            "retry.kind=list",
            "retry.delays=1s,5s",
        ];
        let done = run(&change).await;
        assert_eq!(done.stdout, format!("{topic} changed\n"), "{done:?}");
        let done = run(&change).await;
        assert_eq!(
            done.stdout,
            format!("{topic} already has these settings\n"),
            "{done:?}"
        );
        assert_eq!(
            run(&["topics", "change", topic, "ttl="]).await.code,
            Some(0)
        );

        let there = served.api.get_json(&format!("/v1/topics/{topic}")).await;
        let there = &there["settings"];
        assert_eq!(there["groups"], json!(["billing", "audit"]));
        assert_eq!(
            (&there["max_attempts"], &there["ttl"]),
            (&json!(3), &Value::Null)
        );
        assert_eq!(
            (&there["retry"]["kind"], &there["retry"]["delays"]),
            (&json!("list"), &json!(["1s", "5s"]))
        );

        let one = ["topics", "change", topic, "groups=billing"];
        let done = run(&one).await;
        assert_eq!(done.stdout, format!("{topic} changed\n"), "{done:?}");
        let stays = format!(
            "group audit stays, and still gets messages: remove it with `lisa-manager groups drain {topic} audit`"
        );
        assert!(done.stderr.contains(&stays), "{done:?}");
        let again = ["topics", "change", topic, "groups=billing,audit"];
        let done = run(&again).await;
        assert!(!done.stderr.contains("stays"), "{done:?}");

        for (arguments, code, text) in [
            (
                &["topics", "create", topic][..],
                1,
                "exists with other settings: groups is [\"billing\",\"audit\"], not [\"default\"]; max_attempts is 3, not 16; \
                 retry.base is unset, not ",
            ),
            (
                &["topics", "change", "none", "ttl=1h"],
                1,
                "topic none is not registered",
            ),
            (
                &["topics", "change", "orders", "ttl=1h"],
                1,
                "the managers' configuration declares topic orders",
            ),
            (
                &["topics", "change", topic, "tll=1h"],
                2,
                "did you mean ttl?",
            ),
            (
                &["topics", "change", topic, "ttl"],
                2,
                "expected a key and its value",
            ),
        ] {
            let failed = run(arguments).await;
            assert_eq!(failed.code, Some(code), "{failed:?}");
            assert!(failed.stderr.contains(text), "{failed:?}");
        }
    }
    let alone = ["topics", "create", "alone"];
    let refused = lisa_manager(&server, &alone).run(SOON).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("pass --url, or --config"),
        "{refused:?}"
    );
    served.end().await;
}

#[tokio::test]
async fn a_topic_is_removed_on_purpose_only_and_can_be_created_again() {
    let server = Server::start();
    let served = served(&server).await;
    let (api, settings) = (&served.api, json!({ "shards": 2 }));
    put(&served, "new", NEW, settings).await.expect(201);
    let later = [("lisa-delay", "1h")];
    api.send("new", "x", &later).await.expect(202);
    let remove = async |path: &str| {
        let path = format!("/v1/topics/{path}");
        lisa_tests::http::reply(api.request(Method::DELETE, &path)).await
    };
    for (path, status, code, text) in [
        (
            "new",
            409,
            "not_empty",
            "topic new has 1 message: how=drain",
        ),
        ("new?how=now", 422, "invalid", "must be one of drain force"),
        (
            "orders?how=force",
            409,
            "declared_in_file",
            "edit topics.orders",
        ),
        ("none", 404, "unknown_topic", "is not registered"),
    ] {
        let refused = remove(path).await.expect(status).json();
        assert_eq!(refused["code"], code, "{path}");
        let detail = refused["detail"].to_string();
        assert!(detail.contains(text), "{path}: {detail}");
    }
    let kept = ["topics", "remove", "new", "--url", &*served.url];
    let kept = lisa_manager(&server, &kept).run(SOON).await;
    assert_eq!(kept.code, Some(1), "{kept:?}");
    let advice = "--drain delivers what is stored first, and --force removes it";
    assert!(kept.stderr.contains(advice), "{kept:?}");
    let remove_at = async |how: &str, tag: &str| {
        let path = format!("/v1/topics/new?how={how}");
        let request = api.request(Method::DELETE, &path).header("If-Match", tag);
        lisa_tests::http::reply(request).await
    };
    for (tag, status, text) in [
        ("1", 422, "expected an ETag"),
        (
            "\"7\"",
            412,
            "topic new already exists or has changed: it is at epoch 1",
        ),
    ] {
        let refused = remove_at("drain", tag).await.expect(status).json();
        assert!(refused["detail"].to_string().contains(text), "{refused}");
    }
    let kept = api.get_json("/v1/topics/new").await;
    assert_eq!(kept["removal"], Value::Null);
    let expected = json!({ "topic": "new", "removal": "drain", "stored": 1 });
    // The second one repeats the first one, which changed the epoch.
    for _ in 0..2 {
        let draining = remove_at("drain", "\"1\"").await.expect(202).json();
        assert_eq!(draining, expected);
    }
    assert_eq!(remove("new").await.expect(202).json(), expected);
    let drain = ["topics", "remove", "new", "--drain", "--url", &*served.url];
    let drain = lisa_manager(&server, &drain).run(SOON).await;
    let remark = "no consumer reads new/default: start one to drain the topic";
    assert!(drain.stderr.contains(remark), "{drain:?}");
    remove_at("force", "\"1\"").await.expect(412);
    let listed = api.get_json("/v1/topics").await;
    let mut listed = listed["topics"].as_array().unwrap().iter();
    assert!(listed.any(|topic| topic["removal"] == "drain"));
    let refused = api.send("new", "x", &[]).await.expect(404).json();
    assert_eq!(
        refused["detail"],
        "topic new is being removed: it accepts no new messages"
    );
    let changed = put(&served, "new", ALWAYS, json!({ "ttl": "1h" })).await;
    assert_eq!(changed.expect(404).json()["code"], "unknown_topic");

    remove("new?how=force").await.expect(202);
    eventually(SOON, async || {
        let there = api.get("/v1/topics/new").await;
        (there.status == 404).then_some(()).ok_or(there.status)
    })
    .await;
    let audit = api.get_json("/v1/audit").await;
    assert_eq!(audit["entries"][0]["details"], "force, 1 message");
    put(&served, "new", NEW, json!({})).await.expect(201);
    api.send("new", "x", &[]).await.expect(202);
    served.end().await;
}

/// Otherwise, the manager would not know the topic before its next heartbeat, up to 1.2 s later.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_message_of_a_topic_that_another_process_declares_is_moved_soon() {
    let server = Server::start();
    let served = Served::start(&server, "soon", &[]).await;
    let namespace = served.broker.namespace().clone();
    let broker = Broker::new(connection(&server).await, namespace, SOON, None);
    let settings = TopicSettings::default();
    let mut took = Vec::new();
    for number in 0..9 {
        let name: Topic = format!("t{number}").parse().unwrap();
        let topic = broker.declare(&name, &settings, Declare::Create);
        let topic = topic.await.unwrap();
        let sent = Instant::now();
        let send = [message("first", ms(1))];
        broker.send(&topic, Shard::new(0), &send).await.unwrap();
        eventually(SOON, async || {
            let stats = broker.stats(&topic).await.unwrap();
            match stats.groups[0].ready {
                1 => Ok(()),
                _ => Err(stats.waiting),
            }
        })
        .await;
        took.push(sent.elapsed());
    }
    took.sort();
    // Half a heartbeat.
    assert!(took[4] < Duration::from_millis(600), "{took:?}");
    served.end().await;
}

/// A process learns of the changes of others up to a heartbeat later.
#[tokio::test]
async fn a_topic_is_shown_as_it_is_at_once_after_a_change_by_another_process() {
    let server = Server::start();
    let served = served(&server).await;
    let name: Topic = "t".parse().unwrap();
    let mut settings = TopicSettings::default();
    for attempts in 1..=20 {
        settings.max_attempts = attempts;
        let declared = served.broker.declare(&name, &settings, Declare::Update);
        let declared = declared.await.unwrap();
        let shown = served.api.get_json("/v1/topics/t").await;
        assert_eq!(shown["epoch"], declared.epoch());
        assert_eq!(shown["settings"]["max_attempts"], attempts);
    }
    served.end().await;
}

#[tokio::test]
async fn concurrent_changes_of_different_fields_are_all_in_force() {
    let server = Server::start();
    let served = served(&server).await;
    let file = format!(
        "auth.tokens = [{{ name = \"ops\", sha256 = \"{}\", scopes = [\"read\"] }}]",
        "0".repeat(64)
    );
    let run = async |arguments: &[&str]| {
        let done = lisa_manager(&server, arguments).config(&file).run(SOON);
        let done = done.await;
        assert_eq!(done.code, Some(0), "{done:?}");
        done.stdout
    };
    let cron = "cron=0 0 9 1 * *";
    let creations = [
        &["topics", "create", "t"][..],
        &["schedules", "create", "s", "topic=t", cron],
        &["tokens", "put", "shop", "scopes=send", "topics=t-*"],
    ];
    for create in creations {
        run(create).await;
    }
    let of_topic = ["max_attempts=3", "lease=7s", "ttl=1h", "max_messages=9"];
    let of_schedule = ["time_zone=Europe/Paris", "payload=x", "key=k", "ttl=1h"];
    let of_token = [
        "topics=u-*",
        "sends_per_second=5",
        "max_topics=7",
        "expires=2100-01-01T00:00:00.000Z",
    ];
    let of_all = [
        ("topics", "change", "t", of_topic),
        ("schedules", "change", "s", of_schedule),
        ("tokens", "put", "shop", of_token),
    ];
    for (noun, verb, name, fields) in of_all {
        let changes = fields.map(async |field| run(&[noun, verb, name, field]).await);
        join_all(changes).await;
        let shown = run(&["--output", "json", noun, "show", name]).await;
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let tables = ["settings", "definition"].map(|table| shown.get(table));
        let table = tables.into_iter().flatten().next().unwrap_or(&shown);
        for field in fields {
            let (key, value) = field.split_once('=').unwrap();
            let found = match &table[key] {
                Value::Array(list) => &list[0],
                value => value,
            };
            let found = found.as_str().map_or_else(|| found.to_string(), Into::into);
            assert_eq!(found, value, "{key} of {noun}");
        }
    }
    served.end().await;
}
