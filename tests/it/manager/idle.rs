//! The cost of idle topics, and the looks that find a message whose wake was lost.

use super::{Running, SOON, after, config, send, wait_for};
use lisa_core::state::State;
use lisa_tests::relay::ms;
use lisa_tests::{Server, Stopwatch, eventually};
use redis::{Cmd, FromRedisValue, cmd, from_redis_value};
use std::fmt::Debug;

const TOPICS: usize = 40;

/// A manager with idle topics `t0`, `t1` and so on, whose jobs never run by themselves.
async fn running(server: &Server, namespace: &str) -> Running {
    let names: Vec<_> = (0..TOPICS).map(|n| format!("topics.t{n}.shards")).collect();
    let mut keys: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let jobs = ["reclaim", "clean", "statistics", "sweep"].map(|job| format!("manager.jobs.{job}"));
    keys.extend(jobs.iter().map(|job| (job.as_str(), "0 0 0 1 1 *")));
    keys.push(("manager.doctor", "off"));
    let running = Running::start(&config(server, namespace, &keys)).await;
    running.holds(TOPICS).await;
    running
}

impl Running {
    /// Returns how often the servers have run a command, including inside scripts.
    async fn calls(&self, command: &str) -> usize {
        let mut calls = 0;
        for server in self.broker().connection().servers() {
            let stats = server.call(cmd("INFO").arg("commandstats"), SOON).await;
            let stats: String = from_redis_value(stats.expect("INFO")).expect("text");
            let prefix = format!("cmdstat_{command}:calls=");
            let found = stats.lines().find_map(|line| line.strip_prefix(&prefix));
            let number = found.and_then(|rest| rest.split(',').next());
            calls += number.map_or(0, |number| number.parse().expect("a number"));
        }
        calls
    }

    /// Returns how many keys the servers have looked up for reads.
    async fn reads(&self) -> usize {
        let mut reads = 0;
        for server in self.broker().connection().servers() {
            let stats = server.call(cmd("INFO").arg("stats"), SOON).await;
            let stats: String = from_redis_value(stats.expect("INFO")).expect("text");
            for field in ["keyspace_hits:", "keyspace_misses:"] {
                let number = stats.lines().find_map(|line| line.strip_prefix(field));
                reads += number.map_or(0, |n| n.trim().parse::<usize>().expect("a number"));
            }
        }
        reads
    }

    /// Waits until each topic was looked at this many times more. A look reads at least three keys, in a command that may
    /// name those of all topics.
    async fn looks(&self, rounds: usize) {
        let before = self.reads().await;
        eventually(SOON, async || {
            let reads = self.reads().await - before;
            if reads >= rounds * 3 * TOPICS {
                Ok(())
            } else {
                Err(format!("{reads} reads"))
            }
        })
        .await;
    }

    pub(super) async fn on_key<T: FromRedisValue + Debug>(&self, key: &str, cmd: &mut Cmd) -> T {
        let reply = self.broker().connection().at(key).call(cmd, SOON).await;
        from_redis_value(reply.expect("a reply")).expect("a value")
    }
}

#[tokio::test]
async fn idle_topics_are_looked_at_without_scripts() {
    let server = Server::start();
    let running = running(&server, "idle").await;
    // A message that is due tomorrow leaves its topic idle.
    let tomorrow = running.topic("t0").await;
    send(running.broker(), &tomorrow, after(ms(86_000_000))).await;
    running.looks(1).await;
    let before = running.calls("evalsha").await;
    running.looks(3).await;
    // Only heartbeats: one script call for each look would be 120.
    let scripts = running.calls("evalsha").await - before;
    assert!(scripts < TOPICS, "{scripts} script calls");
}

#[tokio::test]
async fn a_message_whose_wake_was_lost_is_found_by_the_next_look() {
    let server = Server::start();
    let running = running(&server, "lost").await;
    running.looks(1).await;
    let mut late = Vec::new();
    for name in ["t1", "t2"] {
        let topic = running.topic(name).await;
        // The message after this one is not announced, as if its wake had been lost.
        let key = format!("lost:v1:{{{name}:0}}:stats");
        let _: usize = running
            .on_key(&key, cmd("HSET").arg(&key).arg("alarm").arg(1))
            .await;
        let sent = Stopwatch::start();
        send(running.broker(), &topic, after(ms(100))).await;
        wait_for(running.broker(), &topic, State::Ready, 1, SOON).await;
        sent.assert_within(ms(2600), ms(2000));
        late.push(sent.elapsed());
    }
    println!("found after {late:?}");
}

#[tokio::test]
async fn a_damaged_topic_does_not_disturb_the_looks_at_others() {
    let server = Server::start();
    let running = running(&server, "broken").await;
    for name in ["t0", "t1"] {
        let key = format!("broken:v1:{{{name}:0}}:waiting");
        let _: String = running.on_key(&key, cmd("SET").arg(&key).arg("x")).await;
    }
    // The `conf` of another is gone: it is declared again by its mover.
    let gone = "broken:v1:{t2:0}:conf";
    let _: usize = running.on_key(gone, cmd("DEL").arg(gone)).await;
    eventually(SOON, async || {
        let back: usize = running.on_key(gone, cmd("EXISTS").arg(gone)).await;
        if back == 1 { Ok(()) } else { Err("gone") }
    })
    .await;
    let before = running.calls("evalsha").await;
    running.looks(3).await;
    // Heartbeats, and the retries of the damaged topics.
    let scripts = running.calls("evalsha").await - before;
    assert!(scripts < 2 * TOPICS, "{scripts} script calls");
    let topic = running.topic("t3").await;
    let key = "broken:v1:{t3:0}:stats";
    let _: usize = running
        .on_key(key, cmd("HSET").arg(key).arg("alarm").arg(1))
        .await;
    send(running.broker(), &topic, after(ms(100))).await;
    wait_for(running.broker(), &topic, State::Ready, 1, SOON).await;
}

#[tokio::test]
async fn jobs_pass_over_topics_without_messages_until_they_change() {
    let server = Server::start();
    let running = running(&server, "passed").await;
    // The first call of each mover changes its topic.
    running.looks(2).await;
    running.job("statistics").await;
    let before = running.calls("evalsha").await;
    for job in ["statistics", "sweep", "clean", "statistics"] {
        running.job(job).await;
    }
    let scripts = running.calls("evalsha").await - before;
    assert!(scripts < TOPICS, "{scripts} script calls");
    let topic = running.topic("t5").await;
    assert_eq!(running.job("statistics").await["conservation_error"], 0);
    // A damaged counter of an empty topic changes its mark, so the topic is counted again.
    let key = "passed:v1:{t5:0}:stats";
    let _: i64 = running
        .on_key(key, cmd("HINCRBY").arg(key).arg("accepted").arg(1))
        .await;
    assert_eq!(running.job("statistics").await["conservation_error"], 1);
    let _: i64 = running
        .on_key(key, cmd("HINCRBY").arg(key).arg("accepted").arg(-1))
        .await;
    assert_eq!(running.job("statistics").await["conservation_error"], 0);
    // A sweep finds a message whose wake was lost, and a group that is gone.
    let _: usize = running
        .on_key(key, cmd("HSET").arg(key).arg("alarm").arg(1))
        .await;
    let gone = "passed:v1:{t6:0}:ready:default";
    let group = running.topic("t6").await.groups()[0].clone();
    let gone = gone.replace("default", group.as_str());
    let _: usize = running.on_key(&gone, cmd("DEL").arg(&gone)).await;
    send(running.broker(), &topic, after(ms(0))).await;
    running.job("sweep").await;
    wait_for(running.broker(), &topic, State::Ready, 1, SOON).await;
    let back: usize = running.on_key(&gone, cmd("EXISTS").arg(&gone)).await;
    assert_eq!(back, 1);
}

#[tokio::test]
async fn a_pause_of_an_idle_topic_is_noticed_within_four_runs_of_statistics() {
    let server = Server::start();
    let running = running(&server, "noticed").await;
    let topic = running.topic("t7").await;
    running.job("statistics").await;
    // A count of a topic is what calls HLEN.
    let counts_of_four_runs = async || {
        let before = running.calls("hlen").await;
        for _ in 0..4 {
            running.job("statistics").await;
        }
        running.calls("hlen").await - before
    };
    assert_eq!(counts_of_four_runs().await, 0, "nothing has changed");
    assert!(running.broker().pause(&topic, true).await.expect("paused"));
    assert!(counts_of_four_runs().await > 0);
}
