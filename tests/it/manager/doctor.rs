//! The doctor as a whole: beside messages of all features, on the command line, and after Redis lost its latest data.

use super::operators::lisa_manager;
use super::{Running, SOON, after, config, send};
use lisa_core::broker::{Broker, Declare, Examination, Retirement, TopicHandle, Verdict};
use lisa_core::message::{Expiry, MessageId, PreparedMessage};
use lisa_core::topic::{Group, Shard};
use lisa_tests::relay::{WORKER, message, ms, retry, settlement};
use lisa_tests::{Aof, Server, eventually};
use redis::cmd;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// The time that messages flow beside the doctor.
const FLOW: std::time::Duration = std::time::Duration::from_secs(5);

/// One client that does all that clients and operators may do, at random.
async fn play(broker: Broker, topic: Arc<TopicHandle>, stop: CancellationToken) -> u64 {
    let (mut sent, mut ids) = (0, Vec::<MessageId>::new());
    while !stop.is_cancelled() {
        for shard in topic.shards() {
            let mut batch = Vec::new();
            for _ in 0..fastrand::usize(1..20) {
                let mut message = PreparedMessage {
                    when: ms(fastrand::u64(0..80)).into(),
                    ..PreparedMessage::new("x")
                };
                let options = &mut message.options;
                if fastrand::bool() {
                    options.key = Some(format!("k{}", fastrand::u8(0..6)).parse().unwrap());
                }
                if fastrand::u8(0..4) == 0 {
                    options.merge_key = Some(format!("m{}", fastrand::u8(0..6)).parse().unwrap());
                }
                if fastrand::u8(0..4) == 0 {
                    options.expiry = Some(Expiry::After(ms(fastrand::u64(1..100))));
                }
                if fastrand::u8(0..9) == 0 && !ids.is_empty() {
                    options.replace = fastrand::choice(&ids).cloned();
                }
                options.priority = fastrand::i32(-2..2);
                ids.push(message.id.clone());
                batch.push(message);
            }
            sent += batch.len() as u64;
            broker.send(&topic, shard, &batch).await.unwrap();
        }
        let id = fastrand::choice(&ids).cloned().unwrap();
        broker.cancel(&topic, &id, None).await.unwrap();
        let id = fastrand::choice(&ids).cloned().unwrap();
        let _ = broker
            .reschedule(&topic, &id, None, ms(9).into())
            .await
            .unwrap();
        let group = fastrand::choice(topic.groups()).unwrap();
        let seen = broker.in_garbage(&topic, group, &ids).await.unwrap();
        if fastrand::bool() {
            broker.requeue(&topic, group, &seen).await.unwrap();
        } else {
            broker.purge(&topic, group, &seen).await.unwrap();
        }
        let paused = fastrand::u8(0..4) == 0;
        broker.pause_group(&topic, group, paused).await.unwrap();
        let rest = ids.len().saturating_sub(100);
        ids.drain(..rest);
    }
    sent
}

/// A consumer of one group on one shard, some of whose handlers fail or never end.
async fn consume(
    broker: Broker,
    topic: Arc<TopicHandle>,
    shard: Shard,
    group: Group,
    stop: CancellationToken,
) {
    let mut reader = broker.connection().any().reader().await.unwrap();
    while !stop.is_cancelled() {
        let read = broker.read(&mut reader, &topic, shard, &group, WORKER, 30, ms(50));
        let mut settlements = Vec::new();
        for read in read.await.unwrap() {
            let verdict = match fastrand::u8(0..12) {
                0 => continue,
                1 => retry(ms(fastrand::u64(0..60))),
                2 => Verdict::Defer { when: ms(5).into() },
                3 => Verdict::Reject {
                    error: "no".to_owned(),
                },
                _ => Verdict::Ack,
            };
            settlements.push(settlement(&read, verdict));
        }
        broker
            .settle(&topic, shard, &group, &settlements)
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_found_while_messages_of_all_features_flow() {
    let server = Server::start();
    let keys = [
        ("topics.t.groups", "a,b"),
        ("topics.t.shards", "2"),
        ("topics.t.lease", "1s"),
        ("topics.t.max_ready", "40"),
        ("topics.t.max_bytes", "10MiB"),
        ("manager.jobs.clean", "* * * * * *"),
    ];
    let running = Running::start(&config(&server, "flow", &keys)).await;
    let topic = running.topic("t").await;
    let (broker, stop) = (running.broker(), CancellationToken::new());
    let mut consumers = Vec::new();
    for shard in topic.shards() {
        for group in topic.groups() {
            let (broker, topic, stop) = (broker.clone(), topic.clone(), stop.clone());
            consumers.push(tokio::spawn(consume(
                broker,
                topic,
                shard,
                group.clone(),
                stop,
            )));
        }
    }
    let player = tokio::spawn(play(broker.clone(), topic.clone(), stop.clone()));
    let begun = Instant::now();
    let (mut rounds, mut looked_at) = (0, 0);
    // A slow machine gets more time for the same number.
    let is_enough = |rounds, looked_at| rounds > 5 && looked_at > 100;
    while begun.elapsed() < FLOW || begun.elapsed() < 10 * FLOW && !is_enough(rounds, looked_at) {
        let how = Examination {
            rest: 0,
            ..Examination::of(&topic, rounds % 2 == 1)
        };
        let checkup = broker.examine(&topic, how).await.unwrap();
        assert_eq!(checkup.findings, [], "round {rounds}: {checkup:#?}");
        assert_eq!(checkup.unclear, 0);
        looked_at += checkup.messages;
        rounds += 1;
    }
    stop.cancel();
    let sent = player.await.unwrap();
    for consumer in consumers {
        consumer.await.unwrap();
    }
    assert!(
        rounds > 5 && looked_at > 100 && sent > 100,
        "{rounds} {looked_at} {sent}"
    );
    let stats = broker.stats(&topic).await.unwrap();
    assert_eq!(stats.conservation_error, 0, "{stats:#?}");
    eprintln!(
        "{rounds} rounds over {looked_at} messages, {sent} sent: {:?}",
        stats.counters
    );
}

#[tokio::test]
async fn nothing_is_found_while_a_group_is_dropped() {
    let server = Server::start();
    let keys = [("topics.t.groups", "a,b"), ("topics.t.max_ready", "2")];
    let running = Running::start(&config(&server, "drop", &keys)).await;
    let topic = running.topic("t").await;
    let broker = running.broker();
    for n in 0..500 {
        let mut message = message(&format!("m{n}"), ms(0));
        message.options.key = Some(format!("k{}", n % 7).parse().unwrap());
        send(broker, &topic, message).await;
    }
    let (shard, group): (_, Group) = (Shard::new(0), "a".parse().unwrap());
    let how = Some(Retirement::Drop);
    broker.retire(&topic, &group, how).await.unwrap();
    eventually(SOON, async || {
        let _ = broker.remove_group(&topic, shard, &group).await;
        let topic = broker.topic(topic.name()).await.unwrap();
        let how = Examination {
            rest: 0,
            ..Examination::of(&topic, false)
        };
        let checkup = broker.examine(&topic, how).await.unwrap();
        assert_eq!(checkup.findings, []);
        match topic.groups().len() {
            1 => Ok(()),
            groups => Err(format!("{groups} groups")),
        }
    })
    .await;
}

#[tokio::test]
async fn the_command_line_finds_explains_and_repairs() {
    let server = Server::start();
    let running = Running::start(&config(&server, "cli", &[("topics.orders.shards", "1")])).await;
    let topic = running.topic("orders").await;
    for name in ["m1", "m2"] {
        let later = PreparedMessage {
            when: ms(3_600_000).into(),
            ..message(name, ms(0))
        };
        send(running.broker(), &topic, later).await;
    }
    let run = async |arguments: &[&str]| lisa_manager(&server, arguments).run(SOON).await;
    let healthy = run(&["doctor"]).await;
    assert_eq!(
        (healthy.code, healthy.stdout.as_str()),
        (Some(0), "orders: 2 messages, healthy\n"),
        "{healthy:?}"
    );
    let mut connection = server.connection().await;
    let waiting = "cli:v1:{orders:0}:waiting";
    let gone: u64 = cmd("ZREM")
        .arg(&[waiting, "m1"])
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(gone, 1);
    let found = run(&["doctor", "orders"]).await;
    assert_eq!(found.code, Some(1), "{found:?}");
    for part in [
        "m1",
        "orphan: 1: a stored message is in no sorted set or stream",
        "--repair returns it to the state whose counters come up short",
        "counters: 1",
        "orders: 2 messages, 2 faults",
    ] {
        assert!(found.stdout.contains(part), "{part}: {found:?}");
    }
    assert!(found.stderr.contains("2 faults are left"), "{found:?}");
    assert_eq!(run(&["doctor", "--repair"]).await.code, Some(2));
    assert_eq!(run(&["doctor", "--yes"]).await.code, Some(2));
    assert_eq!(run(&["doctor", "nix"]).await.code, Some(1));
    let repaired = run(&["doctor", "--repair", "--yes", "--output", "json"]).await;
    assert_eq!(repaired.code, Some(0), "{repaired:?}");
    let value: Value = serde_json::from_str(&repaired.stdout).unwrap();
    assert_eq!(value["healthy"], true);
    assert_eq!(
        value["topics"][0]["counts"],
        json!({ "orphan": { "repaired": 1 } })
    );
    assert_eq!(value["topics"][0]["findings"][0]["id"], "m1");
    let stats = running.broker().stats(&topic).await.unwrap();
    assert_eq!(stats.conservation_error, 0);
    assert_eq!(run(&["doctor"]).await.code, Some(0));
}

/// Starts a manager with a mode, lets it see Redis, damages the topic, and restarts Redis; returns the report of the
/// job.
async fn restarted(mode: &str) -> (Server, Running, Value) {
    let mut server = Server::builder().aof(Aof::Always).start();
    let keys = [
        ("topics.t.shards", "1"),
        ("manager.doctor", mode),
        // Only when the test says so.
        ("manager.jobs.doctor", "0 0 0 1 1 *"),
    ];
    let running = Running::start(&config(&server, "restart", &keys)).await;
    running.holds(1).await;
    let topic = running.topic("t").await;
    send(running.broker(), &topic, after(ms(3_600_000))).await;
    let nothing = json!({ "topics": 0, "found": 0, "repaired": 0 });
    for _ in 0..2 {
        assert_eq!(running.job("doctor").await, nothing);
    }
    let mut connection = server.connection().await;
    let gone: u64 = cmd("DEL")
        .arg("restart:v1:{t:0}:waiting")
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(gone, 1);
    assert_eq!(running.job("doctor").await, nothing);
    server.restart();
    let report = eventually(SOON, async || {
        let run = running.manager.schedule().run_now("doctor").await.unwrap();
        run.report.ok_or_else(|| run.error.unwrap_or_default())
    })
    .await;
    (server, running, report)
}

fn findings(running: &Running, code: &str) -> String {
    let text = running.runtime.metrics.encode();
    let start = format!(r#"lisa_doctor_findings{{topic="t",code="{code}"}} "#);
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or("none").to_owned()
}

#[tokio::test]
async fn after_a_restart_of_redis_what_is_wrong_is_reported() {
    let (_server, running, report) = restarted("report").await;
    assert_eq!(
        (&report["found"], &report["repaired"]),
        (&json!(2), &json!(0))
    );
    assert_eq!(
        report["reason"],
        "Redis was restarted, or another server took over"
    );
    assert_eq!(findings(&running, "orphan"), "1");
    assert_eq!(findings(&running, "ghost"), "0");
    // Once is enough.
    assert_eq!(running.job("doctor").await["topics"], 0);
    assert_eq!(findings(&running, "orphan"), "1");
}

#[tokio::test]
async fn the_findings_of_a_topic_that_is_served_no_longer_are_exported_no_longer() {
    let (server, running, _) = restarted("report").await;
    assert_eq!(findings(&running, "orphan"), "1");
    // Another version takes over the topic.
    let mut connection = server.connection().await;
    let mut layout = cmd("HSET");
    layout.arg("restart:v1:{t:0}:conf").arg("layout").arg(2);
    let _: u64 = layout.query_async(&mut connection).await.unwrap();
    let topic = running.topic("t").await;
    let declared = running
        .broker()
        .declare(topic.name(), topic.settings(), Declare::Create);
    declared.await.unwrap_err();
    running.manager.schedule().run_now("doctor").await.unwrap();
    assert_eq!(findings(&running, "orphan"), "none");
    assert_eq!(findings(&running, "ghost"), "none");
}

#[tokio::test]
async fn after_a_restart_of_redis_what_is_wrong_is_repaired_if_the_configuration_says_so() {
    let (_server, running, report) = restarted("repair").await;
    assert_eq!(
        (&report["found"], &report["repaired"]),
        (&json!(0), &json!(1))
    );
    assert_eq!(findings(&running, "orphan"), "0");
    let topic = running.topic("t").await;
    let stats = running.broker().stats(&topic).await.unwrap();
    assert_eq!(stats.conservation_error, 0);
}

#[tokio::test]
async fn a_doctor_that_is_off_does_nothing() {
    let (_server, running, report) = restarted("off").await;
    assert_eq!(report["topics"], 0);
    assert_eq!(findings(&running, "orphan"), "none");
}

#[tokio::test]
async fn settings_and_time_that_went_back_are_noticed() {
    let server = Server::start();
    let keys = [
        ("topics.t.shards", "1"),
        ("manager.jobs.doctor", "0 0 0 1 1 *"),
    ];
    let running = Running::start(&config(&server, "back", &keys)).await;
    running.holds(1).await;
    let mut connection = server.connection().await;
    let mut set = async |key: &str, field: &str, value: &str| {
        let key = format!("back:v1:{{t:0}}:{key}");
        let set = cmd("HSET").arg(&[&key, field, value]).to_owned();
        let _: u64 = set.query_async(&mut connection).await.unwrap();
    };
    set("conf", "epoch", "7").await;
    assert_eq!(running.job("doctor").await["topics"], 0);
    set("conf", "epoch", "6").await;
    let report = running.job("doctor").await;
    assert_eq!(report["reason"], "the epoch of t:0 went back from 7 to 6");
    assert_eq!(report["topics"], 1);
    assert_eq!(running.job("doctor").await["topics"], 0);
}
