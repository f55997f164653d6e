//! Targets that fail, are overloaded, unavailable or gone: reading slows down or stops, and no message is lost.

use super::deployment::{GROUP, TOPIC};
use super::{Deployment, Role, SOON};
use lisa_tests::{Answer, Binary, FaultProxy, Mode, Stopwatch, Webhook, eventually};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const RETRY: &str = r#"retry = { base = "100ms", factor = 2.0, max = "1s", jitter = 0.0 }"#;

/// A relay with a consumer of this concurrency that posts to this port.
async fn relay(port: &str, concurrency: usize, keys: &str) -> (Deployment, Role, Role) {
    let here = Deployment::start(RETRY).await;
    let sink = format!(
        "concurrency = {concurrency}\n\
         sink = {{ type = \"http\", url = \"{port}\", allow_private = true{keys} }}"
    );
    let (relay, consumer) = (here.combined().await, here.consumer(&sink).await);
    (here, relay, consumer)
}

pub(crate) async fn send(relay: &Role, count: usize) {
    let messages: Vec<Value> = (0..count)
        .map(|n| json!({"payload": n.to_string()}))
        .collect();
    for batch in messages.chunks(500) {
        relay.api.batch(TOPIC, batch).await;
    }
}

/// Returns a gauge of the consumer's sink.
pub(crate) async fn gauge(consumer: &Role, name: &str) -> Option<i64> {
    let metrics = consumer.api.get("/metrics").await.body;
    let line = metrics.lines().find(|line| line.starts_with(name))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

/// Waits until a gauge of the consumer's sink has a value.
#[track_caller]
pub(crate) fn shows(consumer: &Role, name: &str, wanted: i64) -> impl Future<Output = ()> {
    eventually(SOON, async move || match gauge(consumer, name).await {
        Some(value) if value == wanted => Ok(()),
        other => Err(format!("{name} {other:?}\n{}", consumer.process.stderr())),
    })
}

pub(crate) async fn nothing_lost(here: &Deployment, sent: i64) -> Value {
    let stats = here.drained().await;
    assert_eq!(Deployment::counter(&stats, "acked"), sent, "{stats:#}");
    assert_eq!(Deployment::count(&stats, "garbage"), 0, "{stats:#}");
    here.conserved().await;
    stats
}

#[tokio::test]
async fn a_failing_webhook_gets_few_requests_until_it_works_again() {
    let works = Arc::new(AtomicBool::new(false));
    let seen = works.clone();
    let hook = Webhook::answering(move |_| match seen.load(Ordering::Relaxed) {
        true => Answer::status(200),
        false => Answer::status(503).body("out of order"),
    })
    .await;
    let (here, relay, consumer) = relay(&hook.url(), 100, "").await;
    send(&relay, 2000).await;
    shows(&consumer, "lisa_sink_open", 1).await;
    let opened = hook.count();
    eventually(SOON, async || match hook.count() {
        count if count < opened + 3 => Err(format!("{count} requests")),
        _ => Ok(()),
    })
    .await;
    assert_eq!(
        gauge(&consumer, "lisa_sink_up").await,
        Some(1),
        "it answers"
    );
    let ready = consumer.api.get("/readyz").await;
    assert_eq!(ready.status, 200, "{}", ready.body);
    assert!(ready.body.contains("target failing"), "{}", ready.body);
    assert!(hook.count() <= 200, "{} requests", hook.count());
    works.store(true, Ordering::Relaxed);
    nothing_lost(&here, 2000).await;
    shows(&consumer, "lisa_sink_open", 0).await;
    let ready = consumer.api.get("/readyz").await;
    assert!(!ready.body.contains("target"), "{}", ready.body);
}

#[tokio::test]
async fn a_webhook_that_takes_fifty_at_a_time_gets_about_fifty() {
    const CAPACITY: usize = 50;
    const DELAY: Duration = Duration::from_millis(100);
    let (refused, running) = (Arc::new(AtomicUsize::new(0)), Mutex::new(VecDeque::new()));
    let refusals = refused.clone();
    let hook = Webhook::answering(move |_| {
        let (mut running, now) = (running.lock().unwrap(), Instant::now());
        while running.front().is_some_and(|end| *end <= now) {
            running.pop_front();
        }
        if running.len() >= CAPACITY {
            refusals.fetch_add(1, Ordering::Relaxed);
            return Answer::status(429);
        }
        running.push_back(now + DELAY);
        Answer::status(200).after(DELAY)
    })
    .await;
    let (here, relay, consumer) = relay(&hook.url(), 500, "").await;
    send(&relay, 4000).await;
    // The first refusals show the capacity.
    eventually(SOON, async || match hook.count() {
        count if count < 1000 => Err(format!("{count} requests")),
        _ => Ok(()),
    })
    .await;
    let watch = Stopwatch::start();
    let (first, first_refused) = (hook.count(), refused.load(Ordering::Relaxed));
    nothing_lost(&here, 4000).await;
    let (later, later_refused) = (
        hook.count() - first,
        refused.load(Ordering::Relaxed) - first_refused,
    );
    // If the machine was held up, the requests of that time arrived at once. Without a limit, nine of ten are refused.
    let part = if watch.held_up() < DELAY / 2 { 10 } else { 4 };
    assert!(
        later_refused * part <= later,
        "{later_refused} of {later} refused, the machine was held up for {:?}",
        watch.held_up()
    );
    // No upper bound: the limit includes requests on their way to the target and back, which it does not count.
    let limit = gauge(&consumer, "lisa_sink_limit").await;
    println!("{later_refused} of {later} refused, limit {limit:?}");
    assert!(limit.is_some_and(|limit| limit >= 35), "{limit:?}");
}

#[tokio::test]
async fn a_webhook_that_is_unavailable_costs_no_attempt_if_the_sink_says_so() {
    let hook = Webhook::start([]).await;
    let port = hook
        .url()
        .rsplit_once(':')
        .and_then(|(_, rest)| rest.split('/').next()?.parse().ok());
    let proxy = FaultProxy::start(port.expect("a port")).await;
    proxy.set(Mode::Refuse).await;
    let url = format!("http://127.0.0.1:{}/hook", proxy.port());
    let (here, relay, consumer) = relay(&url, 100, ", away = \"defer\"").await;
    send(&relay, 500).await;
    shows(&consumer, "lisa_sink_up", 0).await;
    let ready = consumer.api.get("/readyz").await;
    assert_eq!(ready.status, 200, "{}", ready.body);
    assert!(ready.body.contains("target unavailable"), "{}", ready.body);
    proxy.set(Mode::Pass).await;
    let stats = nothing_lost(&here, 500).await;
    assert_eq!(Deployment::counter(&stats, "retried"), 0, "{stats:#}");
    shows(&consumer, "lisa_sink_up", 1).await;
    assert!(
        hook.requests()
            .iter()
            .all(|request| request.header("lisa-attempt") == "1")
    );
}

#[tokio::test]
async fn a_webhook_that_is_unavailable_for_longer_than_max_away_costs_attempts() {
    let url = format!("http://127.0.0.1:{}/hook", lisa_tests::free_port());
    let keys = ", away = \"defer\", max_away = \"1s\"";
    let (here, relay, _consumer) = relay(&url, 100, keys).await;
    let last = [("Lisa-Max-Attempts", "1")];
    relay.api.send(TOPIC, "7", &last).await.expect(202);
    let settled = [("garbage", 1), ("in_flight", 0), ("retry", 0)];
    let stats = here.settled(&settled).await;
    assert!(Deployment::counter(&stats, "deferred") >= 1, "{stats:#}");
    here.conserved().await;
}

#[tokio::test]
async fn a_webhook_that_is_gone_pauses_the_group_with_one_alert() {
    let is_back = Arc::new(AtomicBool::new(false));
    let back = is_back.clone();
    let hook = Webhook::answering(move |_| match back.load(Ordering::Relaxed) {
        true => Answer::status(200),
        false => Answer::status(410).body("moved out"),
    })
    .await;
    let (here, relay, consumer) = relay(&hook.url(), 100, "").await;
    send(&relay, 20).await;
    eventually(SOON, async || match here.stats().await.to_string() {
        stats if stats.contains("\"paused\":true") => Ok(()),
        stats => Err(stats),
    })
    .await;
    shows(&consumer, "lisa_sink_up", 0).await;
    eventually(SOON, async || {
        let (_, audit) = here.json(Binary::Manager, &["audit"]).await;
        let pauses = audit["entries"].as_array().filter(|all| all.len() == 1);
        let pause = pauses.map(|all| &all[0]).ok_or_else(|| audit.to_string())?;
        let words = ["via", "action", "topic", "group", "outcome"].map(|word| &pause[word]);
        let reason = pause["details"].as_str().unwrap_or_default();
        match words == ["handler", "pause", TOPIC, GROUP, "done"]
            && reason.contains("410 Gone: moved out")
        {
            true => Ok(()),
            false => Err(audit.to_string()),
        }
    })
    .await;
    is_back.store(true, Ordering::Relaxed);
    let resume = ["resume", TOPIC, "--group", GROUP];
    let (code, resumed) = here.json(Binary::Manager, &resume).await;
    assert_eq!(code, 0, "{resumed}");
    let stats = nothing_lost(&here, 20).await;
    assert_eq!(Deployment::counter(&stats, "retried"), 0, "{stats:#}");
    shows(&consumer, "lisa_sink_up", 1).await;
    let log = consumer.process.stderr();
    assert_eq!(
        log.matches("group paused by its handler").count(),
        1,
        "{log}"
    );
    assert!(log.contains("410 Gone: moved out"), "{log}");
}

#[tokio::test]
async fn messages_that_expire_in_an_outage_do_not_delay_those_after_it() {
    let works = Arc::new(AtomicBool::new(false));
    let seen = works.clone();
    let hook = Webhook::answering(move |_| match seen.load(Ordering::Relaxed) {
        true => Answer::status(200),
        false => Answer::status(503),
    })
    .await;
    let (here, relay, consumer) = relay(&hook.url(), 100, "").await;
    // These fail until the sink opens, however slow the machine is.
    send(&relay, 20).await;
    shows(&consumer, "lisa_sink_open", 1).await;
    let messages: Vec<Value> = (0..500)
        .map(|_| json!({"payload": "x", "ttl": "2s"}))
        .collect();
    relay.api.batch(TOPIC, &messages).await;
    // A probe that expired: so have most of the others.
    eventually(SOON, async || {
        let stats = here.stats().await;
        match Deployment::counter(&stats, "lapsed") {
            0 => Err(format!("{stats:#}")),
            _ => Ok(()),
        }
    })
    .await;
    works.store(true, Ordering::Relaxed);
    relay.api.send(TOPIC, "last", &[]).await.expect(202);
    // With a pause of a second or more for each, this would take minutes.
    let settled = [("ready", 0), ("in_flight", 0), ("retry", 0)];
    let stats = here.settled(&settled).await;
    let count = |name| Deployment::counter(&stats, name);
    // A few may not have expired yet.
    assert_eq!(count("acked") + count("lapsed"), 521, "{stats:#}");
    here.conserved().await;
}
