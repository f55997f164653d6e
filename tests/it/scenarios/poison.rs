//! One message that kills every process which handles it, among a thousand that do no harm.

use super::deployment::TOPIC;
use super::{Deployment, SOON};
use lisa_tests::Binary;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::{Duration, Instant};

const GOOD: usize = 999;
const MAX_ATTEMPTS: usize = 3;
/// A message is charged for no crash until it is under suspicion.
const BEFORE: usize = 2;
/// The number in flight when the process dies; all are then under suspicion, including the one that killed it.
const CONCURRENCY: usize = 100;

#[tokio::test]
async fn one_poisonous_message_among_a_thousand_goes_to_garbage_and_no_other_one_does() {
    let topic = format!(
        "lease = \"1s\"\nmax_attempts = {MAX_ATTEMPTS}\nretry = {{ kind = \"fixed\", delay = \"10ms\", jitter = 0.0 }}"
    );
    let here = Deployment::start(&topic).await;
    let relay = here.combined().await;
    let dir = tempfile::tempdir().unwrap();
    let handled = dir.path().join("handled");
    // The handler is a shell, so that its parent is the consumer.
    let script = format!(
        "if [ $LISA_ID = poison ]; then kill -9 $PPID; exec sleep 60; fi; echo $LISA_ID >> {}",
        handled.display()
    );
    let sink = format!(
        "concurrency = {CONCURRENCY}\nsink = {{ type = \"command\", command = [\"/bin/sh\", \"-c\", {script:?}] }}"
    );
    let good: Vec<Value> = (0..GOOD)
        .map(|n| json!({ "id": format!("good-{n}"), "payload": n }))
        .collect();
    // Not the first, so that it has company; and not behind them all, so that there is more to come.
    relay.api.batch(TOPIC, &good[..GOOD / 10]).await;
    let poison = json!({ "id": "poison", "payload": "" });
    relay.api.batch(TOPIC, &[poison]).await;
    relay.api.batch(TOPIC, &good[GOOD / 10..500]).await;
    relay.api.batch(TOPIC, &good[500..]).await;

    let started = Instant::now();
    let mut consumer = here.launch(Binary::Consumer, &["run"], &sink);
    let mut deaths = 0;
    let stats = loop {
        assert!(
            started.elapsed() < SOON,
            "{deaths} deaths, {:#}",
            here.stats().await
        );
        let stats = here.stats().await;
        let count = |state| Deployment::count(&stats, state);
        let on_the_way = ["waiting", "ready", "in_flight", "retry"].map(count);
        if on_the_way == [0; 4] {
            break stats;
        }
        if consumer.process.has_exited() {
            deaths += 1;
            assert!(deaths <= BEFORE + MAX_ATTEMPTS, "{stats:#}");
            consumer = here.launch(Binary::Consumer, &["run"], &sink);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    println!("{deaths} deaths in {:?}", started.elapsed());
    assert_eq!(Deployment::count(&stats, "garbage"), 1, "{stats:#}");
    assert_eq!(Deployment::counter(&stats, "acked"), GOOD as i64);
    let (code, garbage) = here
        .json(Binary::Manager, &["garbage", "list", TOPIC])
        .await;
    assert_eq!(code, 0, "{garbage:#}");
    assert!(garbage.to_string().contains("\"poison\""), "{garbage:#}");
    let lines = std::fs::read_to_string(&handled).expect("a list of what was handled");
    let ids: HashSet<&str> = lines.lines().collect();
    let expected: Vec<String> = (0..GOOD).map(|n| format!("good-{n}")).collect();
    assert_eq!(ids, expected.iter().map(String::as_str).collect());
    tokio::time::timeout(SOON, consumer.stop())
        .await
        .expect("an end");
    here.conserved().await;
}
