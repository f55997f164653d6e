//! Backfills of schedules, also those that fail halfway or are large, over HTTP and on the command line, and full topics as what needs attention.

use super::SOON;
use super::operators::lisa_manager;
use super::schedules;
use super::served::Served;
use lisa_tests::Server;
use lisa_tests::process::Finished;
use reqwest::Method;
use serde_json::{Value, json};

/// Each minute of the 29th of February, which is 1440 times in a leap year.
const LEAP_DAY: &str = "0 * * 29 2 *";
const PERIOD: (&str, &str) = ("2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z");
const FULL: &str = "the topic has reached its max_messages or max_bytes";

/// A manager with the topic `a`, which has one shard, and a schedule `leap` of it.
async fn served(server: &Server, key: &str, limit: &str) -> Served {
    let keys = [("topics.a.shards", "1"), (key, limit)];
    let served = Served::with(server, "backfill", &keys, true).await;
    let body = json!({ "topic": "a", "cron": LEAP_DAY, "payload": "x" });
    let put = served.api.call(Method::PUT, "/v1/schedules/leap", &body);
    put.await.expect(201);
    served
}

/// Runs the command line with this option of a backfill of the whole day.
async fn backfill(server: &Server, served: &Served, option: &str) -> Finished {
    let (from, to) = PERIOD;
    let period = ["--from", from, "--to", to, option, "--url", &served.url];
    let arguments = [&["schedules", "backfill", "leap"][..], &period].concat();
    lisa_manager(server, &arguments).run(SOON).await
}

async fn stored(served: &Served) -> u64 {
    let topic = served.broker.topic(&"a".parse().unwrap()).await.unwrap();
    served.broker.stats(&topic).await.unwrap().stored
}

/// The newest entry of the audit log.
async fn audited(served: &Served) -> Value {
    let audit = served.api.get_json("/v1/audit").await;
    audit["entries"][0].clone()
}

/// The kinds of what needs attention in the topic, each with its status.
async fn troubles(served: &Served) -> Vec<(Value, Value)> {
    let found = served.api.get_json("/v1/attention?topic=a").await;
    let troubles = found["troubles"].as_array().unwrap().iter();
    let troubles = troubles.filter(|one| one["kind"] != "late" && one["kind"] != "no_consumer");
    troubles
        .map(|one| (one["kind"].clone(), one["status"].clone()))
        .collect()
}

#[tokio::test]
async fn a_backfill_that_fails_says_how_many_it_sent_and_where_to_continue() {
    let server = Server::start();
    let served = served(&server, "topics.a.max_messages", "9").await;
    let period = json!({ "from": PERIOD.0, "to": PERIOD.1 });
    for (sent, path) in [(9, "first"), (0, "again")] {
        let refused = served.post("schedules/leap/backfill", period.clone()).await;
        let problem = refused.expect(429).json();
        assert_eq!(problem["code"], "full", "{path} {problem}");
        let next = "continue from 2024-02-29T00:09:00.000Z";
        let text = format!("{sent} messages sent; {next}: {FULL}");
        assert_eq!(problem["detail"], text, "{path}");
        let audited = audited(&served).await;
        assert_eq!(audited["outcome"], format!("failed: {text}"), "{path}");
    }
    assert_eq!(stored(&served).await, 9);
}

#[tokio::test]
async fn the_command_line_says_what_all_calls_of_a_backfill_sent() {
    let server = Server::start();
    let served = served(&server, "topics.a.max_messages", "1005").await;
    let ended = backfill(&server, &served, "--yes").await;
    let text = format!("1005 messages sent; continue from 2024-02-29T16:45:00.000Z: {FULL}");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains(&text), "{ended:?}");
    assert_eq!(stored(&served).await, 1005);
}

#[tokio::test]
async fn a_large_backfill_is_counted_first_and_requires_a_confirmation() {
    let server = Server::start();
    let served = served(&server, "topics.a.lease", "1m").await;
    let before = audited(&served).await;
    let dry = json!({ "from": PERIOD.0, "to": PERIOD.1, "dry_run": true });
    let counted = served.post("schedules/leap/backfill", dry).await;
    let counted = counted.expect(200).json();
    assert_eq!(
        (&counted["times"], &counted["sent"], &counted["next"]),
        (&json!(1000), &json!(0), &json!("2024-02-29T16:40:00.000Z"))
    );
    let ended = backfill(&server, &served, "--dry-run").await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(
        ended.stdout,
        "would send to a for 1440 scheduled times, except those that are already sent\n"
    );
    // There is no terminal.
    let ended = backfill(&server, &served, "--output=table").await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let text = "a backfill for more than 1000 times requires --yes when there is no terminal";
    assert!(ended.stderr.contains(text), "{ended:?}");
    assert_eq!(stored(&served).await, 0);
    assert_eq!(audited(&served).await, before);
    let ended = backfill(&server, &served, "--yes").await;
    assert_eq!(ended.stdout, "1440 messages sent to a, 0 already there\n");
    assert_eq!(stored(&served).await, 1440);
}

#[tokio::test]
async fn a_topic_at_a_limit_needs_attention() {
    for (key, limit) in [
        ("topics.a.max_messages", "9"),
        ("topics.a.max_bytes", "2KiB"),
    ] {
        let server = Server::start();
        let served = served(&server, key, limit).await;
        let before = troubles(&served).await;
        assert!(before.is_empty(), "{key} {before:?}");
        let period = json!({ "from": PERIOD.0, "to": PERIOD.1 });
        let refused = served.post("schedules/leap/backfill", period).await;
        refused.expect(429);
        let full = [(json!("full"), json!("warning"))];
        assert_eq!(troubles(&served).await, full, "{key}");
        let check = [
            "check",
            "--late",
            "1h",
            "--oldest",
            "2h",
            "--url",
            &served.url,
        ];
        let check = lisa_manager(&server, &check).run(SOON).await;
        assert_eq!(check.code, Some(1), "{check:?}");
        let text = "LISA WARNING: a: max_messages or max_bytes";
        assert!(check.stdout.starts_with(text), "{check:?}");
        let stats = served.api.get_json("/v1/stats").await;
        assert_eq!(stats["topics"][0]["full"], true, "{stats}");
    }
}

#[tokio::test]
async fn a_run_sends_now_and_a_backfill_what_was_left_out_once() {
    let server = Server::start();
    let served = schedules::served(&server, &[]).await;
    schedules::create(&served, "s", "a", "0 0 * * * *").await;
    let run = served
        .post("schedules/s/run", Value::Null)
        .await
        .expect(200)
        .json();
    assert_eq!(run["sent"], true);
    let id = run["id"].as_str().unwrap().to_owned();
    assert!(schedules::ids(&served, "a").await.contains(&id));
    let backfill = async |from: &str, to: &str| {
        let period = json!({ "from": from, "to": to });
        served
            .post("schedules/s/backfill", period)
            .await
            .expect(200)
            .json()
    };
    let day = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let done = backfill(day.0, day.1).await;
    assert_eq!(
        (&done["sent"], &done["duplicates"], &done["next"]),
        (&json!(24), &json!(0), &Value::Null)
    );
    let done = backfill(day.0, "2026-01-02T02:00:00Z").await;
    assert_eq!(
        (&done["sent"], &done["duplicates"]),
        (&json!(2), &json!(24))
    );
    assert!(
        schedules::ids(&served, "a")
            .await
            .contains("s:20260102T010000Z")
    );
    // Three hours; one may begin between two readings of the clock.
    let done = backfill("4h", "1h").await;
    let hours = [&done["sent"], &done["duplicates"]].map(|count| count.as_u64().unwrap());
    assert!((3..=4).contains(&hours.iter().sum::<u64>()), "{done}");
    // A call sends for at most 1,000 times.
    let done = backfill("2025-01-01T00:00:00Z", day.0).await;
    assert_eq!(
        (&done["sent"], &done["next"]),
        (&json!(1000), &json!("2025-02-11T16:00:00.000Z"))
    );
}
