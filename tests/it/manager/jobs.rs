//! The periodic jobs.

use super::{Duration, Running, SOON, config, read, reject, send, wait_for};
use lisa_core::message::PreparedMessage;
use lisa_core::state::State;
use lisa_tests::relay::WORKER;
use lisa_tests::{Server, eventually};
use redis::cmd;
use serde_json::json;

#[tokio::test]
async fn a_delivery_past_its_lease_comes_again_and_then_goes_to_garbage() {
    let server = Server::start();
    let keys = [
        ("topics.t.lease", "1s"),
        ("topics.t.max_attempts", "2"),
        ("topics.t.retry.base", "50ms"),
    ];
    let config = config(&server, "reclaim", &keys);
    let running = Running::start(&config).await;
    let topic = running.topic("t").await;
    send(running.broker(), &topic, PreparedMessage::new("x")).await;
    for attempt in 1..=2 {
        let read = read(running.broker(), &topic, 1).await;
        assert_eq!(read[0].attempt.number, attempt);
        // Started, by a handler that dies.
        let entry = read[0].attempt.entry;
        let shard = topic.shards().next().unwrap();
        let held = running
            .broker()
            .renew(&topic, shard, &topic.groups()[0], WORKER, &[entry])
            .await;
        assert_eq!(held.unwrap(), [entry]);
    }
    wait_for(running.broker(), &topic, State::Garbage, 1, SOON).await;
    let text = running.runtime.metrics.encode();
    for to in ["retry", "garbage"] {
        let line = format!(r#"lisa_reclaimed_total{{topic="t",group="default",to="{to}"}} 1"#);
        assert!(text.contains(&line), "{line}\n{text}");
    }
    let report = running.job("statistics").await;
    assert_eq!(report, json!({ "topics": 1, "conservation_error": 0 }));
    let text = running.runtime.metrics.encode();
    assert!(
        text.contains(r#"lisa_topic_messages{topic="t",group="default",state="garbage"} 1"#),
        "{text}"
    );
}

/// Without an end, a run would not come to the other groups: what was looked at first is idle for a lease again before the last.
#[tokio::test]
async fn a_run_of_reclaim_ends_however_many_deliveries_a_client_holds_and_the_next_one_continues() {
    const IDLE: &str = "60000";
    let server = Server::start();
    let keys = [
        ("topics.t.lease", "1s"),
        // Only when the test says so.
        ("manager.jobs.reclaim", "0 0 0 1 1 *"),
    ];
    let config = config(&server, "held", &keys);
    let running = Running::start(&config).await;
    running.holds(1).await;
    let (broker, topic) = (running.broker(), running.topic("t").await);
    let (shard, group) = (topic.shards().next().unwrap(), &topic.groups()[0]);
    for _ in 0..1250 {
        send(broker, &topic, PreparedMessage::new("x")).await;
    }
    let reads = read(broker, &topic, 1250).await;
    let entries: Vec<_> = reads.iter().map(|read| read.attempt.entry).collect();
    for some in entries.chunks(50) {
        let hour = Duration::from_hours(1);
        let leased = broker.lease(&topic, shard, group, WORKER, some, hour);
        assert_eq!(leased.await.unwrap().held, some);
    }
    let stream = format!("held:v1:{{t:0}}:ready:{group}");
    let mut connection = server.connection().await;
    let mut age = cmd("XCLAIM");
    age.arg(&[&stream, group.as_str(), WORKER, "0"]);
    for entry in &entries {
        age.arg(entry.to_string());
    }
    age.arg(&["IDLE", IDLE, "JUSTID"]);
    let mut idle = cmd("XPENDING");
    idle.arg(&[&stream, group.as_str(), "IDLE", IDLE, "-", "+", "2000"]);
    // A run looks at 1,000 of them, and the next one begins behind these.
    for looked_at in [&entries[..1000], &entries[1000..]] {
        let () = age.query_async(&mut connection).await.unwrap();
        running.job("reclaim").await;
        let left: Vec<(String, String, u64, u64)> =
            idle.query_async(&mut connection).await.unwrap();
        let left: Vec<_> = left.into_iter().map(|(entry, ..)| entry).collect();
        let expected = entries.iter().filter(|entry| !looked_at.contains(entry));
        let expected: Vec<_> = expected.map(ToString::to_string).collect();
        assert_eq!(left, expected);
    }
}

#[tokio::test]
async fn clean_recovers_what_nobody_holds_and_purges_old_garbage() {
    let server = Server::start();
    let keys = [("topics.t.garbage.max_age", "1s")];
    let config = config(&server, "clean", &keys);
    let running = Running::start(&config).await;
    let topic = running.topic("t").await;
    running.holds(1).await;
    let id = send(running.broker(), &topic, PreparedMessage::new("x")).await;
    read(running.broker(), &topic, 1).await;
    let group = &topic.groups()[0];
    let stream = format!("clean:v1:{{t:0}}:ready:{group}");
    let mut connection = server.connection().await;
    let held: u64 = cmd("XGROUP")
        .arg(&["DELCONSUMER", &stream, group.as_str(), WORKER])
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(held, 1);
    assert_eq!(running.job("clean").await["shards"], 1);
    let again = read(running.broker(), &topic, 1).await;
    assert_eq!(again[0].id.as_ref(), Some(&id));
    reject(running.broker(), &topic, &again[0]).await;
    wait_for(running.broker(), &topic, State::Garbage, 1, SOON).await;
    eventually(SOON, async || {
        match running.job("clean").await["purged"].as_u64() {
            Some(1) => Ok(()),
            purged => Err(format!("{purged:?}")),
        }
    })
    .await;
    let stats = running.broker().stats(&topic).await.unwrap();
    assert_eq!((stats.groups[0].garbage, stats.conservation_error), (0, 0));
}

#[tokio::test]
async fn one_run_of_clean_drops_all_tombstones_whose_window_is_over_however_many() {
    let server = Server::start();
    let keys = [
        ("topics.t.dedup_window", "1s"),
        ("topics.t.shards", "2"),
        ("topics.other.dedup_window", "1h"),
    ];
    let config = config(&server, "forget", &keys);
    let running = Running::start(&config).await;
    running.holds(3).await;
    let mut connection = server.connection().await;
    let now = running.broker().now().get() * 4;
    for (shard, ends) in [("t:0", 20_500), ("t:1", 500), ("other:0", 500)] {
        let mut add = cmd("ZADD");
        add.arg(format!("forget:v1:{{{shard}}}:tomb"));
        // A minute ago, but for one.
        for n in 0..ends {
            add.arg(now - 240_000 + n % 4).arg(format!("m{n}"));
        }
        add.arg(now + 240_000).arg("late");
        let _: u64 = add.query_async(&mut connection).await.unwrap();
    }
    running.job("statistics").await;
    let tombstones = |topic, count| format!(r#"lisa_topic_tombstones{{topic="{topic}"}} {count}"#);
    let text = running.runtime.metrics.encode();
    assert!(text.contains(&tombstones("t", 21_002)), "{text}");
    assert_eq!(running.job("clean").await["tombstones"], 21_000);
    let topic = running.topic("t").await;
    assert_eq!(running.broker().stats(&topic).await.unwrap().tombstones, 2);
    running.job("statistics").await;
    let text = running.runtime.metrics.encode();
    assert!(text.contains(&tombstones("t", 2)), "{text}");
    assert!(text.contains(&tombstones("other", 501)), "{text}");
}
