//! Messages that are not worth delivering any more, and attempts that come too late.

use super::deployment::{GROUP, STDOUT, TOPIC};
use super::verbs::is;
use super::workers::Workers;
use super::{Deployment, Role, SOON, lines, millis};
use lisa_consumer::{Delivery, Outcome};
use lisa_tests::{Api, Binary, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// The topic's time to live for all messages, in ms: enough for a message in time to arrive on a busy machine.
const TTL: i64 = 2_000;
const MAX_LATENESS: i64 = 2_000;

async fn send(api: &Api, id: &str, options: &[(&str, &str)]) -> Value {
    let options = [&[("Lisa-Id", id)], options].concat();
    api.send(TOPIC, id, &options).await.expect(202).json()
}

async fn post(api: &Api, path: &str) {
    let path = format!("/v1/topics/{TOPIC}/{path}");
    api.call(Method::POST, &path, &Value::Null)
        .await
        .expect(200);
}

/// Returns the instant in this many ms, and its text form.
fn instant(ms: u64) -> (i64, String) {
    let instant = jiff::Timestamp::now() + Duration::from_millis(ms);
    (instant.as_millisecond(), instant.to_string())
}

/// Waits until an instant is over, on the clock of the Redis of these tests.
async fn past(instant: i64) {
    eventually(SOON, async || {
        let left = instant - jiff::Timestamp::now().as_millisecond();
        if left < 0 {
            Ok(())
        } else {
            Err(format!("{left} ms are left"))
        }
    })
    .await;
}

/// Checks that these messages are in garbage as expired, untried, or that they are gone, as the topic says.
async fn ended(here: &Deployment, api: &Api, ids: &[&str], error: &str, dropped: bool) {
    let state = if dropped { "gone" } else { "garbage" };
    for id in ids {
        is(api, id, state).await;
        let path = format!("/v1/topics/{TOPIC}/messages/{id}");
        let reply = api.get(&path).await;
        if dropped {
            assert!(reply.body.contains("purged"), "{reply:?}");
            continue;
        }
        let garbage = reply.json();
        assert_eq!(garbage["reason"], "expired", "{reply:?}");
        assert_eq!(garbage["attempt"], 0, "{reply:?}");
        assert_eq!(garbage["error"], error, "{reply:?}");
    }
    let stats = here.stats().await;
    let (counted, not) = if dropped {
        ("expired", "lapsed")
    } else {
        ("lapsed", "expired")
    };
    assert_eq!(
        Deployment::counter(&stats, counted),
        ids.len() as i64,
        "{stats:#}"
    );
    assert_eq!(Deployment::counter(&stats, not), 0, "{stats:#}");
}

/// Lets messages expire in each state on their way to the handler, and checks that none of them reaches it.
async fn expire(on_expired: &str) {
    let here =
        Deployment::start(&format!("ttl = \"{TTL}ms\"\non_expired = \"{on_expired}\"")).await;
    let Role {
        process: _relay,
        api,
    } = here.combined().await;

    // On the stream already, and expired before any consumer reads it.
    let read_late = send(&api, "read-late", &[]).await;
    is(&api, "read-late", "ready").await;
    // Due while the topic is paused: by the topic's ttl, its own, and an instant; and two that stay worth delivering.
    post(&api, "pause").await;
    let topics = send(&api, "topics", &[]).await;
    send(&api, "own", &[("Lisa-Ttl", "50ms")]).await;
    let (expiry, at) = instant(300);
    send(&api, "instant", &[("Lisa-Expires-At", &at)]).await;
    let verb = ["send", TOPIC, "cli", "--id", "cli", "--ttl", "50ms"];
    let (code, told) = here.json(Binary::Producer, &verb).await;
    assert_eq!((code, &told["outcome"]), (0, &json!("waiting")), "{told}");
    send(&api, "long", &[("Lisa-Ttl", "1h")]).await;
    // The ttl counts from the due time, and not from the send.
    let delayed = [("Lisa-Ttl", "1h"), ("Lisa-Delay", "500ms")];
    send(&api, "delayed", &delayed).await;
    let sent =
        [read_late, topics].map(|receipt| millis(receipt["due_at"].as_str().unwrap_or_default()));
    past(expiry.max(sent[0] + TTL).max(sent[1] + TTL)).await;
    post(&api, "resume").await;

    let mut consumer = here.consumer(STDOUT).await;
    let came = lines(&mut consumer, 2, SOON).await;
    let came: BTreeSet<_> = came.iter().map(|line| line.id.as_str()).collect();
    assert_eq!(came, BTreeSet::from(["delayed", "long"]));
    let expired = ["read-late", "topics", "own", "instant", "cli"];
    ended(
        &here,
        &api,
        &expired,
        "its ttl is over",
        on_expired == "drop",
    )
    .await;
    here.drained().await;
    consumer.stop().await;
    let rest = consumer.process.lines_to_end(SOON).await;
    assert_eq!(rest, Vec::<String>::new());
    here.conserved().await;
}

#[tokio::test]
async fn what_has_expired_on_its_way_goes_to_garbage_and_is_never_handled() {
    expire("garbage").await;
}

#[tokio::test]
async fn what_has_expired_on_its_way_is_dropped_where_the_topic_says_so() {
    expire("drop").await;
}

/// Delays a message for longer than the topic's `max_lateness`, and releases it together with one that is in time.
async fn late(on_late: &str) -> (Deployment, Role, Role) {
    let here = Deployment::start(&format!(
        "max_lateness = \"{MAX_LATENESS}ms\"\non_late = \"{on_late}\""
    ))
    .await;
    let relay = here.combined().await;
    post(&relay.api, "pause").await;
    let late = send(&relay.api, "late", &[]).await;
    past(millis(late["due_at"].as_str().unwrap_or_default()) + MAX_LATENESS).await;
    let consumer = here.consumer(STDOUT).await;
    post(&relay.api, "resume").await;
    (here, relay, consumer)
}

#[tokio::test]
async fn a_late_message_is_delivered_and_says_so() {
    let (here, relay, mut consumer) = late("deliver").await;
    let told: Value = serde_json::from_str(&consumer.process.next_line(SOON).await).unwrap();
    assert_eq!(
        (&told["id"], &told["late"]),
        (&json!("late"), &json!(true)),
        "{told}"
    );
    send(&relay.api, "timely", &[]).await;
    let told: Value = serde_json::from_str(&consumer.process.next_line(SOON).await).unwrap();
    assert_eq!(
        (&told["id"], &told["late"]),
        (&json!("timely"), &Value::Null),
        "{told}"
    );
    here.drained().await;
    here.conserved().await;
}

#[tokio::test]
async fn a_late_message_goes_to_garbage_or_is_dropped_where_the_topic_says_so() {
    for on_late in ["garbage", "drop"] {
        let (here, relay, mut consumer) = late(on_late).await;
        let dropped = on_late == "drop";
        ended(&here, &relay.api, &["late"], "it is too late", dropped).await;
        // Its successor is in time.
        send(&relay.api, "timely", &[]).await;
        let line = lines(&mut consumer, 1, SOON).await.remove(0);
        assert_eq!(line.id, "timely");
        if !dropped {
            // Requeued, it has a new due time.
            let requeue = ["garbage", "requeue", TOPIC, "late"];
            let (code, swept) = here.json(Binary::Manager, &requeue).await;
            assert_eq!((code, &swept["done"]), (0, &json!(1)), "{swept}");
            let line = lines(&mut consumer, 1, SOON).await.remove(0);
            assert_eq!(line.id, "late");
        }
        here.drained().await;
        here.conserved().await;
    }
}

/// Lets messages fail once and come again after more than `max_lateness`.
async fn retry_late(gate: &str) {
    let delay = MAX_LATENESS + 500;
    let here = Deployment::start(&format!(
        "max_lateness = \"{MAX_LATENESS}ms\"\non_late = \"garbage\"\nretry = {{ kind = \"fixed\", delay = \"{delay}ms\", jitter = 0.0 }}\n{gate}"
    ))
    .await;
    let relay = here.combined().await;
    let work = |delivery: Delivery| {
        let outcome = match delivery.attempt {
            1 => Outcome::retry("not yet"),
            _ => Outcome::Ack,
        };
        std::future::ready(outcome)
    };
    let workers = Workers::start(&here, GROUP, (1, 8), work).await;
    send(&relay.api, "alone", &[]).await;
    send(
        &relay.api,
        "keyed",
        &[("Lisa-Key", "k"), ("Lisa-Ttl", "1h")],
    )
    .await;
    here.settled(&[("retry", 2)]).await;
    let stats = here.drained().await;
    assert_eq!(Deployment::counter(&stats, "acked"), 2, "{stats:#}");
    assert_eq!(Deployment::counter(&stats, "lapsed"), 0, "{stats:#}");
    workers.stop().await;
    here.conserved().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_is_late_by_its_own_time_and_not_by_the_due_time() {
    // With a window it comes through the backlog.
    tokio::join!(retry_late(""), retry_late("max_ready = 8"));
}
