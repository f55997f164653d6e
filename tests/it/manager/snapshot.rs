//! The snapshot of all topics, which the job `statistics` writes.

use super::{Running, SOON, after, config, send};
use lisa_core::broker::Snapshot;
use lisa_tests::Server;
use lisa_tests::relay::ms;
use redis::{FromRedisValue, cmd, from_redis_value};

const TOPICS: usize = 5;

/// A manager with topics `t0`, `t1` and so on, whose jobs never run by themselves.
async fn running(server: &Server, namespace: &str) -> Running {
    let names: Vec<_> = (0..TOPICS).map(|n| format!("topics.t{n}.shards")).collect();
    let mut keys: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let jobs = ["reclaim", "clean", "statistics", "sweep"].map(|job| format!("manager.jobs.{job}"));
    keys.extend(jobs.iter().map(|job| (job.as_str(), "0 0 0 1 1 *")));
    keys.push(("manager.doctor", "off"));
    keys.push(("topics.t1.max_messages", "7"));
    let running = Running::start(&config(server, namespace, &keys)).await;
    running.holds(TOPICS).await;
    running
}

impl Running {
    async fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = cmd(words[0]);
        command.arg(&words[1..]);
        let server = self.broker().connection().at(words[1]);
        let reply = server.call(&command, SOON).await.expect("a reply");
        from_redis_value(reply).expect("a value")
    }

    async fn snapshot(&self) -> Snapshot {
        self.broker().snapshot().await.expect("a snapshot")
    }
}

#[tokio::test]
async fn the_snapshot_has_the_counts_of_all_topics() {
    let server = Server::start();
    let running = running(&server, "snapshot").await;
    assert_eq!(running.snapshot().await.topics, []);
    let topic = running.topic("t1").await;
    for _ in 0..3 {
        send(running.broker(), &topic, after(ms(86_000_000))).await;
    }
    running.job("statistics").await;
    let snapshot = running.snapshot().await;
    assert_eq!(snapshot.topics.len(), TOPICS);
    for counted in snapshot.topics {
        let topic = running.topic(counted.topic.as_str()).await;
        let counts = counted.counts.expect("counts");
        let waiting = if counted.topic.as_str() == "t1" { 3 } else { 0 };
        assert_eq!(counts.stats.waiting, waiting);
        assert_eq!(counts.max_messages, topic.settings().max_messages);
        let now = running.broker().stats(&topic).await.expect("counted");
        assert_eq!(counts.stats, now);
        assert_eq!(counted.manager, running.manager.assignments().name());
    }
}

#[tokio::test]
async fn only_what_changed_is_written_again() {
    let server = Server::start();
    let running = running(&server, "unchanged").await;
    let topic = running.topic("t1").await;
    send(running.broker(), &topic, after(ms(86_000_000))).await;
    running.job("statistics").await;
    let key = "unchanged:v1:{registry}:snapshot";
    let value = async |topic: &str| {
        running
            .command::<Option<String>>(&["HGET", key, topic])
            .await
    };
    let before = (value("t0").await, value("t1").await);
    let first = running.snapshot().await;
    running.job("statistics").await;
    // The topic with a message was counted again. Its value is the same.
    assert_eq!((value("t0").await, value("t1").await), before);
    let second = running.snapshot().await;
    let times = first.topics.iter().zip(&second.topics);
    assert!(
        times
            .clone()
            .all(|(first, second)| first.as_of <= second.as_of)
    );
    send(running.broker(), &topic, after(ms(86_000_000))).await;
    running.job("statistics").await;
    assert_eq!(value("t0").await, before.0);
    assert_ne!(value("t1").await, before.1);
}

#[tokio::test]
async fn a_lost_snapshot_is_written_again_within_twelve_runs_and_a_removed_topic_leaves_it() {
    let server = Server::start();
    let running = running(&server, "lost").await;
    running.job("statistics").await;
    let key = "lost:v1:{registry}:snapshot";
    let _: u64 = running.command(&["DEL", key]).await;
    let _: u64 = running
        .command(&["HSET", key, "removed", "1 [\"gone\",\"x\"]"])
        .await;
    for _ in 0..12 {
        running.job("statistics").await;
    }
    let topics = running.snapshot().await.topics;
    let names: Vec<_> = topics.iter().map(|topic| topic.topic.as_str()).collect();
    assert_eq!(names, ["t0", "t1", "t2", "t3", "t4"]);
}

#[tokio::test]
async fn a_damaged_topic_is_named_in_the_snapshot_and_hides_no_other() {
    let server = Server::start();
    let running = running(&server, "torn").await;
    let key = "torn:v1:{t2:0}:waiting";
    let _: String = running.command(&["SET", key, "x"]).await;
    let run = running.manager.schedule().run_now("statistics").await;
    assert!(!run.expect("a job").ok);
    let topics = running.snapshot().await.topics;
    assert_eq!(topics.len(), TOPICS);
    for counted in topics {
        let is_damaged = counted.topic.as_str() == "t2";
        assert_eq!(counted.counts.is_err(), is_damaged, "{counted:?}");
    }
}

#[tokio::test]
async fn the_messages_that_become_due_soon_are_exported() {
    let server = Server::start();
    let running = running(&server, "due").await;
    let topic = running.topic("t0").await;
    for seconds in [30, 30 * 60, 2 * 3600, 48 * 3600] {
        send(running.broker(), &topic, after(ms(seconds * 1000))).await;
    }
    running.job("statistics").await;
    let text = running.runtime.metrics.encode();
    for line in [
        r#"lisa_topic_due{topic="t0",within="1m"} 1"#,
        r#"lisa_topic_due{topic="t0",within="1h"} 2"#,
        r#"lisa_topic_due{topic="t0",within="24h"} 3"#,
        r#"lisa_topic_due{topic="t1",within="24h"} 0"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}
