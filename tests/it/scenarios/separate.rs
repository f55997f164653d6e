//! The plain case: three processes, ten thousand messages.

use super::deployment::{GROUP, STDOUT, TOPIC};
use super::{Deployment, Line, Role, by_id, lines};
use lisa_tests::snapshot::Content;
use lisa_tests::{Api, SOON, Stopwatch, Topology};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;

/// The longest delay of a message, ms.
const LONGEST: u64 = 5_000;
/// The limit on the 99th percentile of lateness: nothing may wait for a safety net. The benchmark measures lateness.
pub(super) const P99: Duration = Duration::from_secs(2);

/// Sends `count` messages of random delays in several batches; returns their due times by id, ms.
pub(super) async fn send_many(api: &Api, count: usize) -> HashMap<String, i64> {
    let mut due = HashMap::with_capacity(count);
    let numbers: Vec<usize> = (0..count).collect();
    for part in numbers.chunks(count.div_ceil(10)) {
        let message = |number: &usize| {
            let delay = fastrand::u64(0..=LONGEST);
            json!({ "payload": { "number": number }, "delay": format!("{delay}ms") })
        };
        let messages: Vec<Value> = part.iter().map(message).collect();
        for result in api.batch(TOPIC, &messages).await {
            let text = |name: &str| result[name].as_str().unwrap_or_else(|| panic!("{result}"));
            assert!(["waiting", "ready"].contains(&text("outcome")), "{result}");
            let known = due.insert(text("id").to_owned(), super::millis(text("due_at")));
            assert_eq!(known, None, "{result}");
        }
    }
    assert_eq!(due.len(), count);
    due
}

/// Sends messages and sees each come out once, none early, and no more than a hundredth later than `bound`, scaled by the
/// speed of the machine.
pub(super) async fn relay(producer: &Api, consumer: &mut Role, count: usize, bound: Duration) {
    let watch = Stopwatch::start();
    let send = send_many(producer, count);
    let receive = lines(consumer, count, SOON);
    let (due, lines) = tokio::join!(send, receive);
    let times = by_id(&lines);
    assert_eq!(times.len(), count, "each exactly once");
    let mut numbers: Vec<&str> = lines.iter().map(|line| line.payload.as_str()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count, "each payload once");
    for line in &lines {
        assert!(due.contains_key(&line.id), "not sent: {line:?}");
        assert_eq!(line.attempt, 1, "{line:?}");
    }
    let mut late: Vec<&Line> = lines.iter().collect();
    late.sort_unstable_by_key(|line| line.lateness_ms);
    let at = |share: f64| late[((count - 1) as f64 * share) as usize].lateness_ms;
    let (p50, p99, max) = (at(0.5), at(0.99), at(1.0));
    println!("{count} messages: lateness p50 {p50} ms, p99 {p99} ms, max {max} ms");
    let told = |line: &&Line| format!("due {}, late {} ms", line.due_at, line.lateness_ms);
    let latest: Vec<String> = late[count - count / 50..].iter().map(told).collect();
    let limit = watch.limit(Duration::ZERO, bound);
    assert!(
        p99 <= limit.as_millis() as i64,
        "p99 is {p99} ms, above {limit:?}; the latest: {latest:#?}"
    );
}

#[tokio::test]
async fn ten_thousand_messages_pass_three_processes_each_once_and_none_early() {
    let here = Deployment::start("").await;
    let mut manager = here.manager().await;
    let mut producer = here.producer().await;
    let mut consumer = here.consumer(STDOUT).await;

    // TLS costs a debug build a lot, and replicas and six nodes share the machine with the roles.
    let bound = match Topology::of_tests() {
        Topology::Single | Topology::Socket | Topology::Users => P99,
        _ => 4 * P99,
    };
    relay(&producer.api, &mut consumer, 10_000, bound).await;

    let stats = here.drained().await;
    for (name, count) in [("accepted", 10_000), ("moved", 10_000), ("acked", 10_000)] {
        assert_eq!(
            Deployment::counter(&stats, name),
            count,
            "{name} in {stats:#}"
        );
    }
    let over_http = manager.api.get_json("/v1/stats").await;
    assert_eq!(over_http["topics"][0], stats);

    let left = here.snapshot().await;
    let ready = format!("v1:{{{TOPIC}:0}}:ready:{GROUP}");
    let expected = [
        format!("v1:{{{TOPIC}:0}}:conf"),
        ready.clone(),
        format!("v1:{{{TOPIC}:0}}:stats"),
        "v1:{registry}:managers".to_owned(),
        "v1:{registry}:snapshot".to_owned(),
        "v1:{registry}:topics".to_owned(),
        "v1:{registry}:workers".to_owned(),
    ];
    let is_history = |key: &&str| {
        ["series", "series15", "observed", "failures"]
            .iter()
            .any(|what| key.ends_with(what))
    };
    let keys = left.iter().map(|(key, _)| key);
    let keys: Vec<&str> = keys.filter(|key| !is_history(key)).collect();
    assert_eq!(keys, expected, "{left}");
    let stream = left.stream(&ready);
    assert!(stream.entries.is_empty(), "{left}");
    assert!(stream.groups[GROUP.as_bytes()].pending.is_empty(), "{left}");
    assert!(matches!(left.get(&expected[2]), Some(Content::Hash(_))));

    for role in [&mut consumer, &mut producer, &mut manager] {
        role.stop().await;
    }
    assert_eq!(consumer.process.lines(), Vec::<String>::new());
    here.conserved().await;
}
