//! The effect of one damaged topic on the others: none.

use super::{Running, SOON, after, config, read, send, wait_for};
use lisa_core::broker::{Broker, Declare};
use lisa_core::message::PreparedMessage;
use lisa_core::state::State;
use lisa_core::topic::{Topic, TopicSettings};
use lisa_tests::relay::{self, ms};
use lisa_tests::{Api, Binary, Server, eventually, free_port};
use redis::cmd;
use serde_json::Value;

/// Runs a command on Redis.
async fn command(server: &Server, words: &[&str]) {
    let mut command = cmd(words[0]);
    command.arg(&words[1..]);
    let done = command.query_async(&mut server.connection().await).await;
    let _: redis::Value = done.unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

#[tokio::test]
async fn a_topic_whose_settings_cannot_be_read_is_skipped_and_the_others_are_served() {
    let server = Server::start();
    let config = config(&server, "unread", &[]);
    let by_hand = Broker::new(
        relay::connection(&server).await,
        config.namespace.clone(),
        SOON,
        None,
    );
    let settings = TopicSettings::default();
    let mut topics = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let name: Topic = name.parse().unwrap();
        let declared = by_hand.declare(&name, &settings, Declare::Create);
        topics.push(declared.await.unwrap());
    }
    command(&server, &["HSET", "unread:v1:{a:0}:conf", "settings", "{"]).await;
    command(&server, &["DEL", "unread:v1:{b:0}:conf"]).await;
    command(&server, &["SET", "unread:v1:{b:0}:conf", "x"]).await;
    command(
        &server,
        &["HSET", "unread:v1:{registry}:topics", "No Name", "?"],
    )
    .await;

    let running = Running::start(&config).await;
    running.holds(2).await;
    let held = running.manager.assignments().now();
    let held: Vec<&str> = held
        .topics
        .iter()
        .map(|topic| topic.name().as_str())
        .collect();
    assert_eq!(held, ["c", "d"]);
    let all = by_hand.refresh().await.unwrap();
    assert_eq!(all.len(), 4, "what is known is served as it was");
    send(&by_hand, &topics[3], after(ms(50))).await;
    wait_for(&by_hand, &topics[3], State::Ready, 1, SOON).await;

    // Repaired, it is served again.
    let settings = serde_json::to_string(topics[0].settings()).unwrap();
    let conf = "unread:v1:{a:0}:conf";
    command(
        &server,
        &["HSET", conf, "settings", &settings, "epoch", "2"],
    )
    .await;
    command(
        &server,
        &["HINCRBY", "unread:v1:{registry}:topics", ":version", "1"],
    )
    .await;
    running.holds(3).await;
}

#[tokio::test]
async fn a_damaged_topic_fails_the_jobs_by_name_and_the_others_are_served() {
    let server = Server::start();
    let keys = [
        ("topics.a.lease", "1s"),
        ("topics.b.lease", "1s"),
        // Only when the test says so.
        ("manager.jobs.reclaim", "0 0 0 1 1 *"),
    ];
    let config = config(&server, "damaged", &keys);
    let running = Running::start(&config).await;
    running.holds(2).await;
    let topic = running.topic("b").await;
    send(running.broker(), &topic, PreparedMessage::new("x")).await;
    read(running.broker(), &topic, 1).await;
    for key in ["ready:default", "stats"] {
        let key = format!("damaged:v1:{{a:0}}:{key}");
        command(&server, &["DEL", &key]).await;
        command(&server, &["SET", &key, "x"]).await;
    }
    // Its lease ends meanwhile.
    eventually(SOON, async || {
        let reclaim = running.manager.schedule().run_now("reclaim").await.unwrap();
        assert!(!reclaim.ok, "{reclaim:?}");
        let error = reclaim.error.unwrap();
        assert!(error.starts_with("topic a: "), "{error}");
        let stats = running.broker().stats(&topic).await.unwrap();
        match stats.counters.get("reclaimed") {
            Some(1) => Ok(()),
            other => Err(format!("{other:?}: {stats:?}")),
        }
    })
    .await;
    for job in ["clean", "statistics", "sweep"] {
        let run = running.manager.schedule().run_now(job).await.unwrap();
        let error = run.error.unwrap_or_default();
        assert!(error.starts_with("topic a: "), "{job}: {error}");
    }
    let text = running.runtime.metrics.encode();
    assert!(
        text.contains(r#"lisa_topic_messages{topic="b",group="default",state="ready"}"#),
        "{text}"
    );
}

#[tokio::test]
async fn the_counts_of_a_damaged_topic_are_missing_by_name_and_the_others_are_there() {
    let server = Server::start();
    let config = config(&server, "lisa", &[]);
    let broker = Broker::new(
        relay::connection(&server).await,
        config.namespace.clone(),
        SOON,
        None,
    );
    for name in ["a", "b", "c"] {
        let name: Topic = name.parse().unwrap();
        let settings = TopicSettings::default();
        let declared = broker.declare(&name, &settings, Declare::Create);
        declared.await.unwrap();
    }
    let stats = async |output: &str| {
        let url = server.url();
        let words = ["stats", "--redis-url", &url, "--output", output];
        Binary::Manager.with(words).run(SOON).await
    };
    let listed = async || -> Value {
        let said = stats("json").await.stdout;
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    };
    let whole = stats("json").await;
    assert_eq!(whole.code, Some(0), "{whole:?}");
    assert_eq!(listed().await.get("damaged"), None);

    command(&server, &["SET", "lisa:v1:{b:0}:waiting", "x"]).await;
    command(&server, &["HSET", "lisa:v1:{c:0}:conf", "settings", "{"]).await;
    let listed = listed().await;
    assert_eq!(listed["topics"].as_array().unwrap().len(), 1, "{listed:#}");
    assert_eq!(listed["topics"][0]["topic"], "a");
    let damaged = |n: usize| {
        let text = |name: &str| listed["damaged"][n][name].as_str().unwrap().to_owned();
        (text("topic"), text("error"))
    };
    assert!(
        damaged(0).0 == "b" && damaged(0).1.contains("WRONGTYPE"),
        "{listed:#}"
    );
    assert!(
        damaged(1).0 == "c" && damaged(1).1.contains("invalid settings"),
        "{listed:#}"
    );
    for output in ["json", "table"] {
        let ended = stats(output).await;
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stdout.contains('a'), "{ended:?}");
        for line in ["topic b: ", "topic c: "] {
            assert!(ended.stderr.contains(line), "{ended:?}");
        }
    }

    let port = free_port();
    let listen = format!("[manager]\nlisten = \"127.0.0.1:{port}\"\n");
    let run = Binary::Manager.with(["run", "--redis-url", &server.url()]);
    let manager = run.config(&listen).start();
    let api = Api::new(port);
    let answer = eventually(SOON, async || match api.try_get("/v1/stats").await {
        Some(reply) if reply.status == 200 => Ok(reply.json()),
        other => Err(format!("{other:?}")),
    });
    let answer = answer.await;
    assert_eq!(answer["topics"][0]["topic"], "a", "{answer:#}");
    assert_eq!(answer["damaged"], listed["damaged"]);
    drop(manager);
}

#[tokio::test]
async fn the_workers_of_a_damaged_topic_are_missing_by_name_and_the_others_are_there() {
    let server = Server::start();
    let config = config(&server, "lisa", &[]);
    let connection = relay::connection(&server).await;
    let broker = Broker::new(connection, config.namespace.clone(), SOON, None);
    for name in ["a", "b", "c"] {
        let settings = TopicSettings::default();
        let name: Topic = name.parse().unwrap();
        let declared = broker.declare(&name, &settings, Declare::Create);
        declared.await.unwrap();
    }
    let ready = "lisa:v1:{b:0}:ready:default";
    command(&server, &["DEL", ready]).await;
    command(&server, &["SET", ready, "x"]).await;
    command(&server, &["HSET", "lisa:v1:{c:0}:conf", "settings", "{"]).await;
    let url = server.url();
    let workers = async |output: &str| {
        let words = ["workers", "--redis-url", &url, "--output", output];
        Binary::Manager.with(words).run(SOON).await
    };
    for output in ["json", "table"] {
        let ended = workers(output).await;
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stdout.contains('a'), "{ended:?}");
        assert!(ended.stderr.contains("topic c: "), "{ended:?}");
    }
    let listed: Value = serde_json::from_str(&workers("json").await.stdout).unwrap();
    let check = |answer: &Value| {
        // The stream of b is not read for this.
        let groups = answer["groups"].as_array().unwrap();
        let topics: Vec<_> = groups.iter().map(|group| &group["topic"]).collect();
        assert_eq!(topics, ["a", "b"], "{answer:#}");
        assert_eq!(answer["damaged"][0]["topic"], "c", "{answer:#}");
    };
    check(&listed);

    let port = free_port();
    let listen = format!("[manager]\nlisten = \"127.0.0.1:{port}\"\n");
    let run = Binary::Manager.with(["run", "--redis-url", &server.url()]);
    let manager = run.config(&listen).start();
    let api = Api::new(port);
    let answer = eventually(SOON, async || match api.try_get("/v1/workers").await {
        Some(reply) if reply.status == 200 => Ok(reply.json()),
        other => Err(format!("{other:?}")),
    });
    check(&answer.await);
    drop(manager);
}
