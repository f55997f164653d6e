//! Processes killed without a warning.

use super::deployment::{GROUP, STDOUT, TOPIC};
use super::{Deployment, SOON, by_id, lines};
use lisa_tests::{Answer, Stopwatch, Webhook, eventually};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::Duration;

const HELD: usize = 100;
const OTHERS: usize = 200;
/// The topic's lease, plus the manager's own lease and its round each second.
const LEASE: Duration = Duration::from_secs(2);
const ON_TOP: Duration = Duration::from_secs(2);

#[tokio::test]
async fn what_a_killed_consumer_held_comes_again_although_a_manager_died_with_it() {
    let here = Deployment::start("lease = \"2s\"").await;
    let mut doomed_manager = here.manager().await;
    let _manager = here.manager().await;
    let producer = here.producer().await;
    let hook = Webhook::start(std::iter::repeat_n(Answer::hang(), HELD)).await;
    let sink = format!(
        "concurrency = {HELD}\nsink = {{ type = \"http\", url = \"{}\", allow_private = true }}",
        hook.url()
    );
    let mut doomed = here.consumer(&sink).await;

    let now: Vec<Value> = (0..HELD).map(|n| json!({ "payload": n })).collect();
    producer.api.batch(TOPIC, &now).await;
    eventually(SOON, async || match hook.count() {
        HELD => Ok(()),
        other => Err(format!("{other} requests")),
    })
    .await;
    let mut consumer = here.consumer(STDOUT).await;
    let later = |n| json!({ "payload": n, "delay": format!("{}ms", fastrand::u64(0..3000)) });
    let later: Vec<Value> = (0..OTHERS).map(later).collect();
    producer.api.batch(TOPIC, &later).await;

    doomed.process.kill9();
    doomed_manager.process.kill9();
    let killed = Stopwatch::start();
    let counters = format!("lisa:v1:{{{TOPIC}:0}}:stats");
    eventually(SOON, async || {
        let mut ask = redis::cmd("HGET");
        ask.arg(&counters).arg(format!("reclaimed:{GROUP}"));
        let reclaimed: redis::RedisResult<Option<usize>> =
            ask.query_async(&mut here.connection(&counters).await).await;
        match reclaimed {
            Ok(Some(HELD)) => Ok(()),
            other => Err(format!("reclaimed: {other:?}")),
        }
    })
    .await;
    let took = killed.elapsed();
    println!("reclaimed {took:?} after the kill");
    killed.assert_took(took, LEASE, ON_TOP);

    let lines = lines(&mut consumer, HELD + OTHERS, SOON).await;
    assert_eq!(by_id(&lines).len(), HELD + OTHERS, "each once");
    let requests = hook.requests();
    let held: HashSet<&str> = requests.iter().map(|r| r.header("webhook-id")).collect();
    assert_eq!(held.len(), HELD);
    for line in &lines {
        assert_eq!(line.attempt, 1, "the crash charged nothing: {line:?}");
    }
    let stats = here.drained().await;
    assert_eq!(Deployment::count(&stats, "garbage"), 0, "{stats:#}");
    assert_eq!(Deployment::counter(&stats, "acked"), (HELD + OTHERS) as i64);
    consumer.stop().await;
    assert_eq!(consumer.process.lines(), Vec::<String>::new(), "none twice");
    here.conserved().await;
}
