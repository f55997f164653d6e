//! The limits of a topic on stored messages and rate, and the pause.

use super::deployment::{GROUP, STDOUT, TOPIC};
use super::{Deployment, Role, SOON, by_id, lines};
use lisa_tests::{Api, Binary, Site, Stopwatch, Topology, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sends `count` messages that are due in `delay`.
async fn send(api: &Api, count: usize, delay: &str) {
    let message = |number| json!({ "payload": number, "delay": delay });
    let messages: Vec<Value> = (0..count).map(message).collect();
    for result in api.batch(TOPIC, &messages).await {
        assert_eq!(result["outcome"], "waiting", "{result}");
    }
}

async fn post(api: &Api, path: &str) {
    let path = format!("/v1/topics/{TOPIC}/{path}");
    api.call(Method::POST, &path, &Value::Null)
        .await
        .expect(200);
}

fn key(what: &str) -> String {
    format!("lisa:v1:{{{TOPIC}:0}}:{what}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_than_max_ready_are_on_the_stream_at_any_moment() {
    const COUNT: usize = 1_000;
    const MAX_READY: u64 = 7;
    let here = Deployment::start(&format!("max_ready = {MAX_READY}")).await;
    let relay = here.combined().await;
    let (_second, mut consumer) = tokio::join!(here.manager(), here.consumer(STDOUT));
    let over = Arc::new(AtomicBool::new(false));
    let until = over.clone();
    let mut connection = here.connection(&key("ready")).await;
    let watch = tokio::spawn(async move {
        let (mut looks, mut most) = (0, 0);
        while !until.load(Ordering::Relaxed) {
            let mut ask = redis::cmd("XLEN");
            let length = ask.arg(key(&format!("ready:{GROUP}")));
            let length: u64 = length.query_async(&mut connection).await.unwrap();
            (looks, most) = (looks + 1, most.max(length));
        }
        (looks, most)
    });
    send(&relay.api, COUNT, "300ms").await;
    let came = lines(&mut consumer, COUNT, SOON).await;
    assert_eq!(by_id(&came).len(), COUNT);
    here.drained().await;
    over.store(true, Ordering::Relaxed);
    let (looks, most) = watch.await.unwrap();
    println!("{looks} looks, {most} at most");
    assert!(looks > COUNT, "{looks}");
    assert_eq!(most, MAX_READY);
    here.conserved().await;
}

/// Returns the stored data of messages.
async fn stored(here: &Deployment) -> BTreeMap<String, String> {
    let snapshot = here.snapshot().await;
    let keys = ["payload", "waiting", "meta", "merge", "left", "tomb"];
    let content = |what: &str| {
        let key = format!("v1:{{{TOPIC}:0}}:{what}");
        let content = format!("{:?}", snapshot.get(&key));
        (what.to_owned(), content)
    };
    keys.into_iter().map(content).collect()
}

/// Checks that a send is refused as the topic is full, with any options, and leaves nothing.
async fn is_full(here: &Deployment, api: &Api, payload: &str) {
    let before = stored(here).await;
    let plain = [("Lisa-Id", "refused")];
    let demanding = [
        ("Lisa-Id", "refused"),
        ("Lisa-Delay", "1h"),
        ("Lisa-Key", "k"),
        ("Lisa-Merge-Key", "m"),
        ("Lisa-Priority", "7"),
        ("Lisa-Ttl", "1h"),
    ];
    for options in [&plain[..], &demanding] {
        let reply = api.send(TOPIC, payload, options).await.expect(429);
        let problem = reply.json();
        assert_eq!(problem["code"], "full", "{problem}");
        assert_eq!(problem["id"], "refused", "{problem}");
        assert_eq!(reply.header("retry-after"), "1", "{reply:?}");
    }
    let verb = ["send", TOPIC, payload, "--id", "refused"];
    let told = here.verb(Binary::Producer, &verb).await;
    assert_eq!(told.code, Some(1), "{told:?}");
    assert!(
        told.stderr.contains("full") || told.stderr.contains("max_"),
        "{told:?}"
    );
    assert_eq!(before, stored(here).await, "it is half stored");
}

#[tokio::test]
async fn more_than_max_messages_are_refused_until_there_is_room() {
    let here = Deployment::start("max_messages = 10").await;
    let Role {
        process: _relay,
        api,
    } = here.combined().await;
    for number in 0..10 {
        let id = format!("m{number}");
        let options = [("Lisa-Id", id.as_str()), ("Lisa-Delay", "1h")];
        api.send(TOPIC, "x", &options).await.expect(202);
    }
    is_full(&here, &api, "x").await;
    assert_eq!(Deployment::counter(&here.stats().await, "accepted"), 10);
    assert_eq!(here.stats().await["stored"], 10);
    // A repeat is a duplicate, and no message more.
    let again = [("Lisa-Id", "m0"), ("Lisa-Delay", "1h")];
    let again = api.send(TOPIC, "x", &again).await.expect(202).json();
    assert_eq!(again["outcome"], "duplicate", "{again}");

    for id in ["m0", "m1", "m2"] {
        let path = format!("/v1/topics/{TOPIC}/messages/{id}");
        api.call(Method::DELETE, &path, &Value::Null)
            .await
            .expect(200);
    }
    let batch: Vec<Value> = (0..5)
        .map(|number| json!({ "payload": number, "delay": "1h" }))
        .collect();
    let results = api.batch(TOPIC, &batch).await;
    for (number, result) in results.iter().enumerate() {
        if number < 3 {
            assert_eq!(result["outcome"], "waiting", "line {number}: {result}");
        } else {
            assert_eq!(result["error"]["code"], "full", "line {number}: {result}");
        }
    }
    is_full(&here, &api, "x").await;

    // Handled messages make room as well.
    let mut consumer = here.consumer(STDOUT).await;
    for id in ["m3", "m4"] {
        post(&api, &format!("messages/{id}/deliver-now")).await;
    }
    lines(&mut consumer, 2, SOON).await;
    here.settled(&[("waiting", 8), ("ready", 0), ("in_flight", 0)])
        .await;
    send(&api, 2, "1h").await;
    is_full(&here, &api, "x").await;
    here.conserved().await;
}

#[tokio::test]
async fn more_than_max_bytes_are_refused_until_there_is_room() {
    const MAX_BYTES: u64 = 2_048;
    let here = Deployment::start(&format!("max_bytes = \"{MAX_BYTES}B\"")).await;
    let Role {
        process: _relay,
        api,
    } = here.combined().await;
    let bytes = async || here.stats().await["bytes"].as_u64().unwrap_or(0);
    let large = "x".repeat(500);
    for number in 0..4 {
        let id = format!("m{number}");
        let options = [("Lisa-Id", id.as_str()), ("Lisa-Delay", "1h")];
        api.send(TOPIC, large.clone(), &options).await.expect(202);
    }
    let held = bytes().await;
    assert!((2_000..=MAX_BYTES).contains(&held), "{held}");
    is_full(&here, &api, &large).await;
    // There is room for a small one, and then not even for a small one.
    let small = "x".repeat((MAX_BYTES - held) as usize / 2);
    api.send(
        TOPIC,
        small.clone(),
        &[("Lisa-Id", "small"), ("Lisa-Delay", "1h")],
    )
    .await
    .expect(202);
    assert!(bytes().await <= MAX_BYTES);
    is_full(&here, &api, &small).await;

    let mut consumer = here.consumer(STDOUT).await;
    post(&api, "messages/m0/deliver-now").await;
    lines(&mut consumer, 1, SOON).await;
    here.settled(&[("waiting", 4), ("ready", 0), ("in_flight", 0)])
        .await;
    // The tombstone of m0 takes some of its room.
    is_full(&here, &api, &large).await;
    api.send(TOPIC, "x".repeat(300), &[("Lisa-Id", "m4")])
        .await
        .expect(202);
    lines(&mut consumer, 1, SOON).await;
    for id in ["m1", "m2", "m3", "small"] {
        post(&api, &format!("messages/{id}/deliver-now")).await;
    }
    lines(&mut consumer, 4, SOON).await;
    here.drained().await;
    assert_eq!(bytes().await, 0, "all that was counted is gone");
    here.conserved().await;
}

#[tokio::test]
async fn three_managers_keep_one_rate_together() {
    const RATE: usize = 100;
    const BURST: usize = 5;
    /// The time for which the rate is watched, in ms.
    const SPAN: u64 = 3_000;
    let here = Deployment::start(&format!("rate = \"{RATE}/s\"\nburst = {BURST}")).await;
    let relay = here.combined().await;
    let _others = tokio::join!(here.manager(), here.manager());
    post(&relay.api, "pause").await;
    send(&relay.api, 4 * RATE, "0s").await;
    let mut connection = here.connection(&key("ready")).await;
    let (seconds, micros): (u64, u64) = redis::cmd("TIME")
        .query_async(&mut connection)
        .await
        .unwrap();
    let begun = seconds * 1_000 + micros / 1_000;
    let watch = Stopwatch::start();
    post(&relay.api, "resume").await;
    // No consumer runs, so each entry stays; its id begins with the time at which it was written.
    let mut range = redis::cmd("XRANGE");
    range.arg(key(&format!("ready:{GROUP}"))).arg("-").arg("+");
    let times = eventually(SOON, async || {
        let entries: Vec<(String, Vec<String>)> = range.query_async(&mut connection).await.unwrap();
        let time = |(id, _): &(String, _)| -> u64 {
            let (ms, _) = id.split_once('-').unwrap_or_default();
            ms.parse().unwrap_or_default()
        };
        let times: Vec<u64> = entries.iter().map(time).collect();
        match times.len() {
            count if count == 4 * RATE => Ok(times),
            count => Err(format!("{count} of {}", 4 * RATE)),
        }
    })
    .await;
    // The rate bounds how many are ready at any moment, counted from the resume. A machine that is held up writes an
    // entry later, never sooner.
    for (index, time) in times.iter().enumerate() {
        let may = BURST + (RATE * time.saturating_sub(begun) as usize).div_ceil(1_000);
        assert!(index < may + 2, "{} within {} ms", index + 1, time - begun);
    }
    let within = times.iter().filter(|time| **time < times[0] + SPAN).count();
    let (wanted, slowness) = (RATE * SPAN as usize / 1_000, watch.slowness());
    println!("{within} in {SPAN} ms, {slowness:.1} times slower than meant");
    assert!(
        within as f64 * slowness >= wanted as f64 * 0.9,
        "{within} in {SPAN} ms"
    );
    here.conserved().await;
}

/// Ends and starts every process, Redis too.
async fn restart(here: &mut Deployment, roles: Vec<Role>) -> (Role, Role) {
    for mut role in roles {
        role.stop().await;
    }
    here.server().restart();
    (here.combined().await, here.consumer(STDOUT).await)
}

#[tokio::test]
async fn a_paused_topic_stays_paused_when_everything_is_restarted() {
    if Site::lacks(Topology::is_one_server, "restarts the only server") {
        return;
    }
    let mut here = Deployment::durable("").await;
    let (relay, consumer) = (here.combined().await, here.consumer(STDOUT).await);
    post(&relay.api, "pause").await;
    assert_eq!(here.stats().await["paused"], true);
    send(&relay.api, 10, "0s").await;
    let (relay, mut consumer) = restart(&mut here, vec![relay, consumer]).await;
    // Overdue for long enough that the movers have looked.
    let stats = eventually(SOON, async || {
        let stats = here.stats().await;
        match stats["overdue_ms"].as_u64() {
            Some(1_000..) => Ok(stats),
            _ => Err(format!("{stats:#}")),
        }
    })
    .await;
    assert_eq!(stats["paused"], true, "{stats:#}");
    assert_eq!(Deployment::count(&stats, "waiting"), 10, "{stats:#}");
    assert_eq!(consumer.process.lines(), Vec::<String>::new());

    post(&relay.api, "resume").await;
    lines(&mut consumer, 10, SOON).await;
    let (relay, mut consumer) = restart(&mut here, vec![relay, consumer]).await;
    assert_eq!(here.stats().await["paused"], false, "a resume stays, too");
    send(&relay.api, 1, "100ms").await;
    lines(&mut consumer, 1, SOON).await;
    here.drained().await;
    here.conserved().await;
}

#[tokio::test]
async fn a_paused_group_stays_paused_when_everything_is_restarted_and_the_others_go_on() {
    if Site::lacks(Topology::is_one_server, "restarts the only server") {
        return;
    }
    let mut here = Deployment::durable("")
        .await
        .groups(&[GROUP, "audit"])
        .reader("audit");
    let (relay, consumer) = (here.combined().await, here.consumer(STDOUT).await);
    let pause = async |here: &Deployment, paused| {
        let broker = here.broker().await;
        let topic = broker.topic(&TOPIC.parse().unwrap()).await.unwrap();
        let group = "audit".parse().unwrap();
        assert!(broker.pause_group(&topic, &group, paused).await.unwrap());
    };
    let group = |stats: &Value, name: &str| -> Value {
        let groups = stats["groups"].as_array().cloned().unwrap_or_default();
        let found = groups.into_iter().find(|group| group["group"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {stats:#}"))
    };
    pause(&here, true).await;
    let (relay, mut consumer) = restart(&mut here, vec![relay, consumer]).await;
    let options = [("Lisa-Id", "m")];
    relay.api.send(TOPIC, "x", &options).await.expect(202);
    here.settled(&[("backlog", 1), ("ready", 1)]).await;
    assert_eq!(consumer.process.lines(), Vec::<String>::new());
    let (_relay, mut consumer) = restart(&mut here, vec![relay, consumer]).await;
    let stats = here.stats().await;
    let (paused, other) = (group(&stats, "audit"), group(&stats, GROUP));
    assert_eq!(
        (&paused["paused"], &paused["backlog"]),
        (&json!(true), &json!(1)),
        "{stats:#}"
    );
    assert_eq!(
        (&other["paused"], &other["ready"]),
        (&Value::Null, &json!(1)),
        "{stats:#}"
    );
    assert_eq!(stats["paused"], false, "{stats:#}");
    assert_eq!(consumer.process.lines(), Vec::<String>::new());
    pause(&here, false).await;
    let line = lines(&mut consumer, 1, SOON).await.remove(0);
    assert_eq!(line.id, "m");
    here.conserved().await;
}
