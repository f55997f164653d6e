//! Recurring messages: sent ahead of each time of a schedule, caught up if no manager ran, refused where they are not
//! possible.

use super::{Running, SOON, config};
use lisa_core::broker::Declare;
use lisa_core::message::MessageId;
use lisa_core::time::UnixMs;
use lisa_core::topic::TopicSettings;
use lisa_producer::{GetOutcome, Producer};
use lisa_service::config::Config;
use lisa_tests::{Server, eventually};
use redis::AsyncCommands;
use std::collections::BTreeMap;
use std::time::Duration;

/// Comes once a year, so a test sees none of its times but the one that was missed.
const YEARLY: &str = "0 0 0 1 1 *";
const SECONDLY: &str = "* * * * * *";

/// A configuration of topic `t` with a schedule `tick` of these keys.
fn ticking(server: &Server, namespace: &str, keys: &[(&str, &str)]) -> Config {
    let own = [("schedules.tick.topic", "t"), ("topics.t.lease", "30s")];
    config(server, namespace, &[&own, keys].concat())
}

fn registry(namespace: &str) -> String {
    format!("{namespace}:v1:{{registry}}:schedules")
}

/// Notes the time up to which `tick` has fired.
async fn note(server: &Server, namespace: &str, note: &str) {
    let mut connection = server.connection().await;
    let key = registry(namespace);
    connection
        .hset::<_, _, _, ()>(key, "tick", note)
        .await
        .unwrap();
}

/// Returns the noted time of `tick`.
async fn noted(server: &Server, namespace: &str) -> Option<String> {
    let mut connection = server.connection().await;
    connection.hget(registry(namespace), "tick").await.unwrap()
}

/// The id of the message for the first second of this year.
fn of_this_year() -> MessageId {
    let year = jiff::Timestamp::now().strftime("%Y");
    format!("tick:{year}0101T000000Z").parse().unwrap()
}

/// The ids and due times of all messages of topic `t`, moved or not.
async fn messages(running: &Running) -> BTreeMap<String, u64> {
    let topic = running.topic("t").await;
    let group = &topic.groups()[0];
    let mut all = BTreeMap::new();
    for state in ["waiting", "ready"] {
        let state = state.parse().unwrap();
        let page = running.broker().list(&topic, group, state, None, 1000);
        for item in page.await.unwrap().items {
            all.insert(item.id.to_string(), item.due_at.expect("waiting").get());
        }
    }
    all
}

/// Waits until this many messages are there, and returns them.
async fn wait_for_messages(running: &Running, count: usize) -> BTreeMap<String, u64> {
    eventually(SOON, async || {
        let found = messages(running).await;
        if found.len() >= count {
            Ok(found)
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await
}

/// Waits until a metric of the manager has this line.
async fn wait_for_metric(running: &Running, line: &str) {
    eventually(SOON, async || {
        let text = running.runtime.metrics.encode();
        text.lines()
            .any(|found| found == line)
            .then_some(())
            .ok_or(text)
    })
    .await;
}

#[tokio::test]
async fn a_message_is_sent_ahead_for_each_time_and_due_then() {
    let server = Server::start();
    let config = ticking(
        &server,
        "ahead",
        &[
            ("schedules.tick.cron", SECONDLY),
            ("schedules.tick.payload", "tock"),
            ("schedules.tick.headers.a", "b"),
            ("schedules.tick.max_attempts", "3"),
        ],
    );
    let first = Running::start(&config).await;
    wait_for_messages(&first, 2).await;
    let second = Running::start(&config).await;
    let found = wait_for_messages(&first, 8).await;
    // The schedule may have begun too shortly before its first second to send for it in time.
    let due: Vec<u64> = found.values().copied().skip(1).collect();
    assert!(
        due.windows(2).all(|two| two[1] == two[0] + 1000),
        "{found:?}"
    );
    for (id, due) in &found {
        let named = jiff::Timestamp::from(UnixMs::new(*due)).strftime("tick:%Y%m%dT%H%M%SZ");
        assert_eq!(*id, named.to_string());
    }
    let producer = Producer::new(first.broker().clone());
    let last = found.keys().next_back().unwrap();
    let GetOutcome::Stored(stored) = producer.get("t", last.as_str()).await.unwrap() else {
        panic!("{last} is not there");
    };
    assert_eq!(stored.payload.text(), Some("tock"));
    assert_eq!(stored.headers.get("a"), Some("b"));
    assert_eq!(stored.max_attempts, 3);
    // A message that one manager has sent, the other does not send again, unless the topic moves between them at that
    // moment.
    let topic = first.topic("t").await;
    let stats = first.broker().stats(&topic).await.unwrap();
    let twice = stats.counters.get("duplicates").copied().unwrap_or(0);
    assert!(twice <= 1, "{stats:?}");
    drop(second);
}

#[tokio::test]
async fn the_newest_time_that_was_missed_is_made_up_for() {
    let server = Server::start();
    note(&server, "missed", &format!("1 {YEARLY} UTC")).await;
    let keys = [
        ("schedules.tick.cron", YEARLY),
        ("schedules.tick.catch_up", "365d"),
    ];
    let running = Running::start(&ticking(&server, "missed", &keys)).await;
    let found = wait_for_messages(&running, 1).await;
    assert_eq!(found.keys().collect::<Vec<_>>(), [of_this_year().as_str()]);
    wait_for_metric(
        &running,
        r#"lisa_schedule_fires_total{schedule="tick",outcome="late"} 1"#,
    )
    .await;
    let noted = noted(&server, "missed").await.unwrap();
    let (at, rule) = noted.split_once(' ').unwrap();
    assert_eq!(rule, format!("{YEARLY} UTC"));
    let last = format!(
        r#"lisa_schedule_last_timestamp_seconds{{schedule="tick"}} {}"#,
        at.strip_suffix("000").unwrap()
    );
    wait_for_metric(&running, &last).await;
}

/// Starts a manager on a note that must not make it send, and returns the note after that.
async fn sends_nothing(namespace: &str, note_before: Option<&str>, catch_up: &str) -> String {
    let server = Server::start();
    if let Some(text) = note_before {
        note(&server, namespace, text).await;
    }
    let keys = [
        ("schedules.tick.cron", YEARLY),
        ("schedules.tick.catch_up", catch_up),
    ];
    let running = Running::start(&ticking(&server, namespace, &keys)).await;
    eventually(SOON, async || {
        noted(&server, namespace).await.ok_or("no note")
    })
    .await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(messages(&running).await, BTreeMap::new());
    noted(&server, namespace).await.unwrap()
}

#[tokio::test]
async fn a_time_that_was_missed_for_too_long_is_not_made_up_for() {
    let before = format!("1 {YEARLY} UTC");
    let after = sends_nothing("too-late", Some(&before), "0s").await;
    assert_eq!(after, before);
}

#[tokio::test]
async fn a_schedule_begins_when_it_is_first_seen_and_again_with_other_times() {
    for before in [
        None,
        Some("1 0 0 0 2 1 * UTC"),
        Some("99999999999999 0 0 0 1 1 * UTC"),
    ] {
        let now = jiff::Timestamp::now().as_millisecond();
        let after = sends_nothing("begins", before, "365d").await;
        let (at, rule) = after.split_once(' ').unwrap();
        assert_eq!(rule, format!("{YEARLY} UTC"));
        let begun = at.parse::<i64>().unwrap();
        assert!(
            (now - 2000..now + 60_000).contains(&begun),
            "{before:?}: {after}"
        );
    }
}

#[tokio::test]
async fn a_message_that_the_topic_refuses_is_reported_and_holds_up_no_other_schedule() {
    let server = Server::start();
    note(&server, "refused", &format!("1 {YEARLY} UTC")).await;
    // The managers' file does not state how little the topic accepts.
    let small = [("topics.small.max_payload", "4")];
    drop(Running::start(&config(&server, "refused", &small)).await);
    let keys = |payload| {
        [
            ("schedules.tick.topic", "small"),
            ("schedules.tick.cron", YEARLY),
            ("schedules.tick.catch_up", "365d"),
            ("schedules.tick.payload", payload),
            ("schedules.other.topic", "t"),
            ("schedules.other.cron", SECONDLY),
        ]
    };
    let running = Running::start(&ticking(&server, "refused", &keys("too much"))).await;
    let failed = r#"lisa_schedule_fires_total{schedule="tick",outcome="failed"} 1"#;
    wait_for_metric(&running, failed).await;
    wait_for_messages(&running, 5).await;
    // It is tried once, and caught up by a manager that starts with a payload that fits.
    wait_for_metric(&running, failed).await;
    drop(running);
    let running = Running::start(&ticking(&server, "refused", &keys("less"))).await;
    let late = r#"lisa_schedule_fires_total{schedule="tick",outcome="late"} 1"#;
    wait_for_metric(&running, late).await;
}

#[tokio::test]
async fn a_topic_that_is_not_there_yet_is_waited_for() {
    let server = Server::start();
    note(&server, "unknown", &format!("1 {YEARLY} UTC")).await;
    let keys = [
        ("schedules.tick.cron", YEARLY),
        ("schedules.tick.catch_up", "365d"),
        ("schedules.tick.topic", "late"),
    ];
    let running = Running::start(&config(&server, "unknown", &keys)).await;
    let failed = r#"lisa_schedule_fires_total{schedule="tick",outcome="failed"} 1"#;
    wait_for_metric(&running, failed).await;
    let topic = "late".parse().unwrap();
    let settings = TopicSettings::default();
    running
        .broker()
        .declare(&topic, &settings, Declare::Create)
        .await
        .unwrap();
    wait_for_metric(
        &running,
        r#"lisa_schedule_fires_total{schedule="tick",outcome="late"} 1"#,
    )
    .await;
    let producer = Producer::new(running.broker().clone());
    let found = producer.get("late", of_this_year()).await.unwrap();
    assert!(matches!(found, GetOutcome::Stored(_)), "{found:?}");
}

#[tokio::test]
async fn a_topic_that_takes_no_long_delays_gets_its_messages_later() {
    let server = Server::start();
    let keys = [
        ("schedules.tick.cron", SECONDLY),
        ("topics.t.max_delay", "1s"),
    ];
    let running = Running::start(&ticking(&server, "short", &keys)).await;
    wait_for_messages(&running, 3).await;
    let metrics = running.runtime.metrics.encode();
    assert!(!metrics.contains("outcome=\"failed\""), "{metrics}");
}

#[tokio::test]
async fn a_schedule_that_cannot_send_delays_no_other_one() {
    let server = Server::start();
    note(&server, "beside", &format!("1 {YEARLY} UTC")).await;
    let keys = [
        ("schedules.tick.cron", YEARLY),
        ("schedules.tick.catch_up", "365d"),
        ("schedules.tick.topic", "unknown"),
        ("schedules.other.topic", "t"),
        ("schedules.other.cron", SECONDLY),
    ];
    let running = Running::start(&ticking(&server, "beside", &keys)).await;
    // All messages that can be sent ahead exist long before this many tries.
    eventually(SOON, async || {
        let found = messages(&running).await;
        if found.len() >= 5 {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let failed = r#"lisa_schedule_fires_total{schedule="tick",outcome="failed"} 1"#;
    wait_for_metric(&running, failed).await;
}

#[tokio::test]
async fn a_send_that_waits_for_a_replica_delays_no_other_one() {
    let server = Server::start();
    let mut connection = server.connection().await;
    let missed = format!("1 {YEARLY} UTC");
    let missed = [("one", &missed), ("tick", &missed)];
    let key = registry("waits");
    let noted = connection.hset_multiple::<_, _, _, ()>(key, &missed);
    noted.await.unwrap();
    // There is no replica.
    let keys = [
        ("topics.safe.durability", "replicas:1"),
        ("topics.safe.durability_timeout", "1m"),
        ("schedules.one.topic", "safe"),
        ("schedules.one.cron", YEARLY),
        ("schedules.one.catch_up", "365d"),
        ("schedules.tick.topic", "safe"),
        ("schedules.tick.cron", YEARLY),
        ("schedules.tick.catch_up", "365d"),
        ("schedules.other.topic", "t"),
        ("schedules.other.cron", SECONDLY),
    ];
    let running = Running::start(&ticking(&server, "waits", &keys)).await;
    wait_for_messages(&running, 7).await;
    let safe = running.topic("safe").await;
    eventually(SOON, async || {
        let stats = running.broker().stats(&safe).await.unwrap();
        match stats.counters.get("accepted") {
            Some(2) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    // The manager's shutdown does not wait for it either.
    running.runtime.shutdown.begin();
    running.runtime.supervisor.join().await.expect("ended");
}

#[tokio::test]
async fn messages_that_are_merged_are_not_sent_ahead() {
    let server = Server::start();
    let keys = [
        ("schedules.tick.cron", SECONDLY),
        ("schedules.tick.merge_key", "one"),
    ];
    let running = Running::start(&ticking(&server, "merged", &keys)).await;
    let found = wait_for_messages(&running, 3).await;
    let topic = running.topic("t").await;
    let stats = running.broker().stats(&topic).await.unwrap();
    assert_eq!(stats.counters.get("merged"), None, "{found:?} {stats:?}");
    let late = found.values().filter(|due| **due % 1000 > 900).count();
    assert_eq!(late, 0, "{found:?}");
}

#[tokio::test]
async fn a_topic_that_takes_no_delays_at_all_gets_its_messages_in_time() {
    let server = Server::start();
    let keys = [
        ("schedules.tick.cron", SECONDLY),
        ("schedules.tick.catch_up", "0s"),
        ("topics.t.max_delay", "0s"),
    ];
    let running = Running::start(&ticking(&server, "no-delay", &keys)).await;
    let found = wait_for_messages(&running, 3).await;
    let metrics = running.runtime.metrics.encode();
    assert!(!metrics.contains("outcome=\"late\""), "{found:?} {metrics}");
}
