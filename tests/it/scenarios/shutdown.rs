//! Consumers that are asked to stop, and handlers that do not end.

use super::deployment::{STDOUT, TOPIC};
use super::{Deployment, SOON, by_id, lines};
use lisa_tests::{Binary, Stopwatch, eventually};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const RUNNING: usize = 50;
const GRACE: Duration = Duration::from_secs(9);

/// A subscription that runs `sleep` for as long as each payload says.
const SLEEPER: &str = r#"concurrency = 50
            sink = { type = "command", command = ["/bin/sh", "-c", "read time; exec sleep $time"] }"#;

async fn send(api: &lisa_tests::Api, payloads: &[&str]) -> HashMap<String, String> {
    let message = |payload: &&str| json!({ "payload_text": format!("{payload}\n") });
    let messages: Vec<Value> = payloads.iter().map(message).collect();
    let sent = api.batch(TOPIC, &messages).await;
    let ids = sent
        .iter()
        .map(|result| result["id"].as_str().unwrap_or_default().to_owned());
    ids.zip(payloads.iter().map(|payload| (*payload).to_owned()))
        .collect()
}

#[tokio::test]
async fn a_consumer_told_to_stop_finishes_what_ends_in_time_and_hands_back_the_rest_uncharged() {
    let here = Deployment::start("")
        .await
        .with("[shutdown]\ngrace = \"9s\"");
    let relay = here.combined().await;
    let mut leaving = here.consumer(SLEEPER).await;
    // Half of them end within the grace, and not before all have begun; half do not.
    let half = RUNNING / 2;
    let (short, long) = (length(6), length(60));
    let both = [vec![short.as_str(); half], vec![long.as_str(); half]].concat();
    let sent = send(&relay.api, &both).await;
    // Those that were read and not begun would be handed back.
    running(&short, half).await;
    running(&long, half).await;
    // More than it can run: they wait on the stream.
    send(&relay.api, &vec!["60"; 70]).await;
    here.settled(&[("ready", 70)]).await;

    leaving.process.sigterm();
    let watch = Stopwatch::start();
    let mut staying = here.consumer(STDOUT).await;
    // The 70 do not wait for the end of the grace.
    let mut seen = lines(&mut staying, 70, SOON).await;
    watch.assert_within(Duration::ZERO, GRACE / 2);
    let status = leaving.process.wait_exit(SOON).await;
    let (took, left) = (watch.elapsed(), Instant::now());
    assert_eq!(status.code(), Some(0), "{}", leaving.process.stderr());
    watch.assert_took(took, GRACE, Duration::from_secs(1));

    seen.extend(lines(&mut staying, half, SOON).await);
    let handed_over = left.elapsed();
    println!("exit after {took:?}, all handed back {handed_over:?} later");
    watch.assert_took(handed_over, Duration::ZERO, Duration::from_secs(1));
    assert_eq!(by_id(&seen).len(), 70 + half, "each once");
    for line in &seen {
        assert_eq!(line.attempt, 1, "charged: {line:?}");
        if let Some(payload) = sent.get(&line.id) {
            assert_eq!(*payload, long, "it had time to end: {line:?}");
        }
    }
    let stats = here.drained().await;
    assert_eq!(Deployment::counter(&stats, "acked"), 120, "{stats:#}");
    for nothing in ["retried", "reclaimed", "exhausted", "rejected"] {
        assert_eq!(
            Deployment::counter(&stats, nothing),
            0,
            "{nothing} in {stats:#}"
        );
    }
    staying.stop().await;
    assert_eq!(staying.process.lines(), Vec::<String>::new());
    here.conserved().await;
}

#[tokio::test]
async fn a_hung_handler_ends_at_its_timeout_and_is_tried_again() {
    let settings = r#"handler_timeout = "1s"
            max_attempts = 2
            retry = { base = "100ms", factor = 1.0, jitter = 0.0 }"#;
    let here = Deployment::start(settings).await;
    let relay = here.combined().await;
    let _consumer = here.consumer(SLEEPER).await;
    let length = length(60);
    let begun = Instant::now();
    send(&relay.api, &[&length]).await;
    running(&length, 1).await;
    here.settled(&[("garbage", 1), ("in_flight", 0), ("retry", 0)])
        .await;
    let took = begun.elapsed();
    assert!(
        took >= Duration::from_millis(2100),
        "two attempts in {took:?}"
    );
    let list = ["garbage", "list", TOPIC];
    let (_, page) = here.json(Binary::Manager, &list).await;
    let message = &page["messages"][0];
    assert_eq!(message["reason"], "exhausted", "{page}");
    assert_eq!(message["attempt"], 2, "{page}");
    assert_eq!(message["error"], "timed out after 1s", "{page}");
    running(&length, 0).await;
    here.conserved().await;
}

/// Returns a sleep time of just over this many seconds, unique to the caller, so that its processes can be identified.
fn length(seconds: u32) -> String {
    format!("{seconds}.0{}", fastrand::u32(1_000_000..))
}

/// Waits until this many processes sleep for this length.
async fn running(length: &str, wanted: usize) {
    eventually(SOON, async || match sleeping(length) {
        found if found == wanted => Ok(()),
        found => Err(format!("{found} run instead of {wanted}")),
    })
    .await;
}

/// Returns the number of processes on this machine that sleep for this length.
fn sleeping(length: &str) -> usize {
    let processes = std::fs::read_dir("/proc").expect("a machine with /proc");
    let wanted = format!("sleep\0{length}\0");
    let is_it = |entry: std::io::Result<std::fs::DirEntry>| {
        let line = entry.map(|entry| std::fs::read(entry.path().join("cmdline")));
        matches!(line, Ok(Ok(line)) if line == wanted.as_bytes())
    };
    processes.map(is_it).filter(|found| *found).count()
}

#[tokio::test]
async fn a_hangup_without_a_change_changes_nothing_in_any_role() {
    let here = Deployment::start("").await;
    let mut roles = [
        here.producer().await,
        here.manager().await,
        here.consumer(STDOUT).await,
    ];
    for role in &mut roles {
        role.process.sighup();
        eventually(SOON, async || {
            let log = role.process.stderr();
            match log.contains("configuration reloaded: nothing has changed") {
                true => Ok(()),
                false => Err(log),
            }
        })
        .await;
    }
    let [producer, _, consumer] = &mut roles;
    producer.api.send(TOPIC, "x", &[]).await.expect(202);
    lines(consumer, 1, SOON).await;
    for role in &mut roles {
        role.stop().await;
    }
    here.conserved().await;
}
