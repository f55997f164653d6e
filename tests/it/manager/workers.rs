//! The list of running processes: managers with their shards, consumers with their deliveries.

use std::sync::Arc;

use lisa_consumer::{Consumer, handler_fn};
use lisa_core::broker::{Broker, ShardsReport, SubscriptionReport, WorkerReport};
use lisa_core::message::PreparedMessage;
use lisa_core::topic::Shard;
use lisa_tests::sqs::hex;
use lisa_tests::{Server, eventually};
use redis::cmd;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, oneshot};

use super::operators::lisa_manager;
use super::served::Served;
use super::{SOON, config, send};

#[tokio::test]
async fn processes_are_listed_with_what_they_do_until_they_end() {
    let server = Server::start();
    let keys = [
        ("topics.orders.groups", "billing,search"),
        ("topics.orders.shards", "2"),
    ];
    let served = Served::start(&server, "workers", &keys).await;
    let (api, broker) = (&served.api, served.broker.clone());
    let workers = async || match api.try_get("/v1/workers").await {
        Some(reply) if reply.status == 200 => reply.json(),
        other => json!({ "error": format!("{other:?}") }),
    };
    let eventually_shows = async |what: &str, check: &dyn Fn(&Value) -> bool| {
        eventually(SOON, async || match workers().await {
            answer if check(&answer) => Ok(answer),
            answer => Err(format!("{what}: {answer:#}")),
        })
        .await
    };

    let shown = eventually_shows("a manager with its shards", &|answer| {
        answer["workers"][0]["shards"] == json!([{ "topic": "orders", "shards": [0, 1] }])
    })
    .await;
    let manager = &shown["workers"][0];
    assert_eq!(manager["role"], "manager");
    assert_eq!(manager["name"], shown["manager"]);
    assert_eq!(manager["pid"], std::process::id());
    assert_eq!(manager["version"], env!("CARGO_PKG_VERSION"));
    let groups: Vec<_> = shown["groups"].as_array().unwrap().iter().collect();
    assert_eq!(groups.len(), 2);
    assert!(groups.iter().all(|group| group["consumers"] == json!([])));

    let (stop, stopped) = oneshot::channel::<()>();
    let (consumer, release) = blocked_consumer(&broker);
    let name = consumer.name().to_owned();
    let consumer = tokio::spawn(
        consumer
            .run()
            .with_graceful_shutdown(async move {
                let _ = stopped.await;
            })
            .into_future(),
    );
    let orders = served.topic().await;
    send(&broker, &orders, PreparedMessage::new("\"x\"")).await;
    let shown = eventually_shows("a consumer with a delivery", &|answer| {
        answer["groups"][0]["consumers"][0]["in_flight"] == 1
    })
    .await;
    let reader = &shown["groups"][0]["consumers"][0];
    assert_eq!(
        (&reader["name"], &reader["concurrency"]),
        (&json!(name), &json!(7))
    );
    assert_eq!(shown["groups"][1]["consumers"], json!([]));
    let list = lisa_manager(&server, &["workers"]).env("LISA_NAMESPACE", "workers");
    let table = list.run(SOON).await.stdout;
    let row = table.lines().find(|line| line.contains(&name));
    let row: Vec<&str> = row.expect("a row").split_whitespace().collect();
    assert_eq!(row[3..6], [&*name, "1", "7"], "{table}");
    assert!(table.contains("none"), "{table}");
    let printed = async |output: &str| {
        let list = lisa_manager(&server, &["workers", "--output", output]);
        let list = list.env("LISA_NAMESPACE", "workers");
        list.run(SOON).await.stdout
    };
    let csv = printed("csv").await;
    assert!(csv.contains("\nconsumer,orders,search,,"), "{csv}");
    let lines = printed("ndjson").await;
    let rows = lines.lines().map(serde_json::from_str::<Value>);
    let unread = rows
        .map(Result::unwrap)
        .find(|row| row["group"] == "search");
    assert_eq!(unread.expect("a row")["name"], "", "{lines}");

    release.notify_one();
    stop.send(()).unwrap();
    consumer.await.unwrap().unwrap();
    eventually_shows("no consumer", &|answer| {
        answer["workers"].as_array().map(Vec::len) == Some(1)
    })
    .await;
    served.end().await;
    assert_eq!(broker.workers().await.unwrap(), []);
}

fn blocked_consumer(broker: &Broker) -> (Consumer, Arc<Notify>) {
    let release = Arc::new(Notify::new());
    let gate = release.clone();
    let handler = handler_fn(move |_: String, _| {
        let gate = gate.clone();
        async move { gate.notified().await }
    });
    let consumer = Consumer::builder(broker.clone())
        .group("billing")
        .concurrency(7)
        .topic("orders", handler)
        .build();
    (consumer.unwrap(), release)
}

#[tokio::test]
async fn the_report_of_a_process_that_is_gone_is_not_shown_and_then_removed() {
    let server = Server::start();
    let config = config(&server, "gone", &[("topics.orders.shards", "1")]);
    let running = super::Running::start(&config).await;
    running.holds(1).await;
    let key = "gone:v1:{registry}:workers";
    let now = running.broker().now().get();
    let report = r#"{"role":"consumer","version":"9","host":"h","pid":1,"started":5,"new":true}"#;
    let at = |age: u64| format!("{} {report}", now - age);
    let mut connection = server.connection().await;
    let fields = [
        ("fresh", at(0)),
        ("silent", at(40_000)),
        ("gone", at(100_000)),
        ("odd", "x".into()),
    ];
    for (name, text) in fields {
        let set = cmd("HSET").arg(key).arg(name).arg(text).to_owned();
        let _: u64 = set.query_async(&mut connection).await.unwrap();
    }
    let shown: Vec<_> = running.broker().workers().await.unwrap();
    let role = |role: &str| {
        shown
            .iter()
            .filter(|worker| worker.report.role == role)
            .count()
    };
    assert_eq!(role("consumer"), 1, "{shown:?}");
    assert_eq!(running.job("clean").await["workers"], 2);
    let left: Vec<String> = cmd("HKEYS")
        .arg(key)
        .query_async(&mut connection)
        .await
        .unwrap();
    let mut left: Vec<_> = left
        .iter()
        .filter(|name| ["fresh", "silent", "gone", "odd"].contains(&name.as_str()))
        .collect();
    left.sort();
    assert_eq!(left, ["fresh", "silent"]);
}

#[tokio::test]
async fn a_limited_token_sees_the_processes_of_its_topics_and_nothing_of_others() {
    let server = Server::start();
    let token = |name: &str, topics: Value| {
        let hash = hex(&Sha256::digest(name));
        let mut token = json!({ "name": name, "sha256": hash, "scopes": ["read"] });
        if topics.is_array() {
            token["topics"] = topics;
        }
        token
    };
    let tokens = json!([token("all", Value::Null), token("shop", json!(["shop-*"]))]).to_string();
    let keys = [
        ("topics.shop-a.shards", "1"),
        ("topics.bank.shards", "2"),
        ("auth.tokens", &*tokens),
    ];
    let served = Served::start(&server, "reached", &keys).await;
    let subscription = |topic: &str, puller: &str| SubscriptionReport {
        topic: topic.parse().unwrap(),
        group: "default".parse().unwrap(),
        concurrency: None,
        busy: 1,
        pullers: vec![puller.to_owned()],
    };
    let (shop, bank) = (
        subscription("shop-a", "puller-1"),
        subscription("bank", "puller-of-bank"),
    );
    for (name, role, subscriptions) in [
        ("both", "gateway", vec![shop, bank.clone()]),
        ("only-bank", "consumer", vec![bank]),
        ("idle-of-bank", "consumer", Vec::new()),
    ] {
        let report = WorkerReport {
            role: role.to_owned(),
            subscriptions,
            ..WorkerReport::default()
        };
        served.broker.report_worker(name, report).await.unwrap();
    }
    let shards = ["shop-a", "bank"].map(|topic| ShardsReport {
        topic: topic.parse().unwrap(),
        shards: vec![Shard::new(0)],
    });
    let report = WorkerReport {
        role: "manager".to_owned(),
        shards: shards.to_vec(),
        ..WorkerReport::default()
    };
    served.broker.report_worker("other", report).await.unwrap();
    let seen = async |token: &str| {
        let api = served.api.clone().token(token);
        let seen = api.get_json("/v1/workers").await;
        let names = seen["workers"].as_array().unwrap().iter();
        let names = names.map(|worker| worker["name"].as_str().unwrap().to_owned());
        (names.collect::<Vec<_>>(), seen)
    };
    let (names, all) = seen("all").await;
    for name in ["both", "only-bank", "idle-of-bank", "other"] {
        assert!(names.iter().any(|it| it == name), "{all}");
    }
    let (names, mut own) = seen("shop").await;
    assert!(!own.to_string().contains("bank"), "{own}");
    for name in ["both", "other"] {
        assert!(names.iter().any(|it| it == name), "{own}");
    }
    let group = own["groups"].as_array_mut().unwrap().pop().unwrap();
    assert_eq!(group["topic"], "shop-a", "{own}");
    assert_eq!(group["consumers"][0]["pullers"], json!(["puller-1"]));
    assert_eq!(own["managers"], all["managers"]);
    let held = eventually(SOON, async || {
        match seen("all").await.1["shards_held"].as_u64() {
            Some(3) => Ok(seen("shop").await.1["shards_held"].clone()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(held, 1);
    served.end().await;
}
