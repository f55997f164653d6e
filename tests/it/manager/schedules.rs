//! Schedules that are created, changed, paused and removed at run time, over HTTP and on the command line.

use super::SOON;
use super::operators::lisa_manager;
use super::served::Served;
use lisa_core::state::State;
use lisa_core::time::UnixMs;
use lisa_core::topic::Topic;
use lisa_tests::http::Reply;
use lisa_tests::{Server, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;

/// Comes once a year.
const YEARLY: &str = "0 0 0 1 1 *";
const SECONDLY: &str = "* * * * * *";
const NEW: (&str, &str) = ("If-None-Match", "*");

/// A manager with the topics `a` and `b`, and these further keys.
pub(super) async fn served(server: &Server, keys: &[(&str, &str)]) -> Served {
    let topics = [("topics.a.lease", "1m"), ("topics.b.lease", "1m")];
    Served::with(server, "by-call", &[&topics, keys].concat(), true).await
}

async fn call(
    served: &Served,
    method: Method,
    schedule: &str,
    (header, value): (&str, &str),
    body: Option<Value>,
) -> Reply {
    let path = format!("/v1/schedules/{schedule}");
    let request = served.api.request(method, &path);
    let request = match body {
        Some(body) => request.json(&body),
        None => request,
    };
    let request = match header {
        "" => request,
        header => request.header(header, value),
    };
    lisa_tests::http::reply(request).await
}

async fn put(served: &Served, schedule: &str, condition: (&str, &str), body: Value) -> Reply {
    call(served, Method::PUT, schedule, condition, Some(body)).await
}

pub(super) async fn create(served: &Served, schedule: &str, topic: &str, cron: &str) {
    let body = json!({ "topic": topic, "cron": cron, "payload": schedule });
    put(served, schedule, NEW, body).await.expect(201);
}

/// The ids of the messages of a topic that wait or are ready.
pub(super) async fn ids(served: &Served, topic: &str) -> BTreeSet<String> {
    let topic: Topic = topic.parse().unwrap();
    let topic = served.broker.topic(&topic).await.unwrap();
    let mut ids = BTreeSet::new();
    for state in [State::Waiting, State::Ready] {
        let group = &topic.groups()[0];
        let page = served.broker.list(&topic, group, state, None, 1000);
        for item in page.await.unwrap().items {
            // Its due time is the time in its id, unless it was late.
            ids.insert(item.id.to_string());
        }
    }
    ids
}

/// Waits until a topic has this many messages of a schedule.
async fn sent(served: &Served, topic: &str, schedule: &str, count: usize) -> Vec<String> {
    eventually(SOON, async || {
        let mut ids = ids(served, topic).await;
        ids.retain(|id| id.starts_with(&format!("{schedule}:")));
        match ids.len() >= count {
            true => Ok(ids.into_iter().collect()),
            false => Err(format!("{ids:?}")),
        }
    })
    .await
}

/// The times in ids of messages, in seconds.
fn seconds(ids: &[String]) -> Vec<i64> {
    let second = |id: &String| {
        let (_, time) = id.split_once(':').unwrap();
        let time = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", time).unwrap();
        time.to_zoned(jiff::tz::TimeZone::UTC)
            .unwrap()
            .timestamp()
            .as_second()
    };
    ids.iter().map(second).collect()
}

async fn show(served: &Served, schedule: &str) -> Value {
    let path = format!("/v1/schedules/{schedule}");
    served.api.get_json(&path).await
}

#[tokio::test]
async fn a_schedule_is_created_changed_and_removed_and_leaves_nothing() {
    let server = Server::start();
    let served = served(&server, &[]).await;
    let body = json!({
        "topic": "a", "cron": "0 30 2 31 * *", "time_zone": "Europe/Berlin", "payload": "{}", "headers": { "x": "y" },
        "retry": { "kind": "fixed", "delay": "5s" },
    });
    let created = put(&served, "s", NEW, body.clone()).await.expect(201);
    let tag = created.header("etag").to_owned();
    let shown = created.json();
    assert_eq!(format!("\"{}\"", shown["version"]), tag);
    assert_eq!(shown["definition"]["headers"], json!({ "x": "y" }));
    assert_eq!(shown["next_times"].as_array().unwrap().len(), 5);
    let warnings = shown["warnings"].to_string();
    assert!(
        warnings.contains("day 31 does not exist in February"),
        "{warnings}"
    );
    // A repeat of the same request, as after a lost answer, and one with another definition.
    let again = put(&served, "s", NEW, body.clone()).await.expect(200);
    assert_eq!(again.header("etag"), tag);
    let other = json!({ "topic": "b", "cron": YEARLY });
    put(&served, "s", NEW, other.clone()).await.expect(412);
    let changed = put(&served, "s", ("If-Match", &tag), other.clone()).await;
    let changed = changed.expect(200);
    let new_tag = changed.header("etag").to_owned();
    assert_ne!(new_tag, tag);
    assert_eq!(changed.json()["definition"]["headers"], json!({}));
    put(&served, "s", ("If-Match", &tag), body)
        .await
        .expect(412);
    assert_eq!(show(&served, "s").await["topic"], "b");
    let remove = async |condition| call(&served, Method::DELETE, "s", condition, None).await;
    remove(("If-Match", &tag)).await.expect(412);
    remove(("If-Match", &new_tag)).await.expect(204);
    remove(("", "")).await.expect(404);
    let audit = served.api.get_json("/v1/audit").await;
    let audit: Vec<_> = audit["entries"].as_array().unwrap().iter().rev().collect();
    let actions: Vec<_> = audit.iter().map(|entry| &entry["action"]).collect();
    assert_eq!(
        actions[..],
        [
            "create_schedule",
            "change_schedule",
            "change_schedule",
            "change_schedule",
            "change_schedule",
            "remove_schedule",
            "remove_schedule",
            "remove_schedule"
        ]
    );
    let mut connection = server.connection().await;
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("by-call:v1:{registry}:*")
        .query_async(&mut connection)
        .await
        .unwrap();
    let of_schedules = |key: &&String| key.contains("schedule") || key.contains("fires");
    assert_eq!(keys.iter().find(of_schedules), None);
}

#[tokio::test]
async fn a_wrong_request_says_what_is_wrong_and_stores_nothing() {
    let server = Server::start();
    let keys = [
        ("schedules.filed.topic", "a"),
        ("schedules.filed.cron", YEARLY),
        ("topics.a.max_payload", "100KiB"),
        ("topics.b.max_payload", "10"),
    ];
    let served = served(&server, &keys).await;
    let of = |topic: &str, payload: String| json!({ "topic": topic, "cron": YEARLY, "payload": payload });
    for (schedule, body, status, text) in [
        ("Bad", json!({}), 422, "schedule:"),
        ("s", json!({}), 422, "topic: missing"),
        (
            "s",
            json!({ "topic": "a", "cron": "x" }),
            422,
            "cron: expected six fields",
        ),
        (
            "s",
            json!({ "topic": "a", "cron": "0 0 0 30 2 *" }),
            422,
            "cron: never fires",
        ),
        (
            "s",
            json!({ "topic": "a", "cron": YEARLY, "time_zone": "Berlin" }),
            422,
            "time_zone: expected a name",
        ),
        (
            "s",
            json!({ "topic": "a", "cron": YEARLY, "delay": "5s" }),
            422,
            "delay: unknown field",
        ),
        (
            "s",
            json!({ "topic": "a", "cron": YEARLY, "headers": { "x": 5 } }),
            422,
            "headers.x: expected a string",
        ),
        (
            "s",
            json!({ "topic": "a", "cron": YEARLY, "retry": { "kind": "x" } }),
            422,
            "retry.kind:",
        ),
        (
            "s",
            of("none", String::new()),
            404,
            "topic none is not registered",
        ),
        ("s", of("b", "x".repeat(11)), 422, "payload: has 11 bytes"),
        (
            "s",
            of("a", "x".repeat(66_000)),
            422,
            "payload: the schedule has",
        ),
        (
            "filed",
            of("a", String::new()),
            409,
            "the managers' configuration declares schedule filed",
        ),
    ] {
        let refused = put(&served, schedule, ("", ""), body.clone()).await;
        let refused = refused.expect(status);
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.starts_with(text), "{body:.100}: {detail}");
    }
    call(&served, Method::DELETE, "filed", ("", ""), None)
        .await
        .expect(409);
    for (verb, body, status) in [
        ("pause", Value::Null, 404),
        ("resume", Value::Null, 404),
        ("run", Value::Null, 404),
        ("backfill", json!({ "from": "2026-01-01T00:00:00Z" }), 404),
    ] {
        let path = format!("schedules/none/{verb}");
        served.post(&path, body).await.expect(status);
    }
    for (period, text) in [
        (json!({}), "from: missing"),
        (
            json!({ "from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z" }),
            "from: must be before to",
        ),
        (
            json!({ "from": "2026-01-02T00:00:00Z", "to": "2990-01-01T00:00:00Z" }),
            "to: must not be in the future",
        ),
    ] {
        let refused = served.post("schedules/filed/backfill", period).await;
        let detail = refused.expect(422).json()["detail"].to_string();
        assert!(detail.contains(text), "{detail}");
    }
    let list = served.api.get_json("/v1/schedules").await;
    assert_eq!(list["schedules"].as_array().unwrap().len(), 1, "{list}");
}

#[tokio::test]
async fn each_time_is_sent_for_once_ahead_by_two_managers_of_which_one_stops() {
    let server = Server::start();
    let first = served(&server, &[]).await;
    let second = served(&server, &[]).await;
    create(&first, "tick", "a", SECONDLY).await;
    sent(&first, "a", "tick", 7).await;
    first.shutdown.begin();
    let ids = sent(&second, "a", "tick", 14).await;
    let seconds = seconds(&ids);
    assert!(
        seconds.windows(2).all(|two| two[1] == two[0] + 1),
        "{ids:?}"
    );
    let shown = show(&second, "tick").await;
    assert_eq!(
        (&shown["missed"], &shown["error"]),
        (&json!(0), &Value::Null)
    );
    let metrics = second.api.get("/metrics").await.body;
    assert!(
        metrics.contains(r#"lisa_schedule_fires_total{schedule="(run time)",outcome="sent"}"#),
        "{metrics}"
    );
    first.run.await.unwrap();
}

#[tokio::test]
async fn a_paused_schedule_sends_nothing_and_goes_on_later_without_what_it_left_out() {
    let server = Server::start();
    let keys = [
        ("schedules.filed.topic", "b"),
        ("schedules.filed.cron", SECONDLY),
    ];
    let served = served(&server, &keys).await;
    create(&served, "tick", "a", SECONDLY).await;
    for (topic, schedule) in [("a", "tick"), ("b", "filed")] {
        sent(&served, topic, schedule, 3).await;
        let path = format!("schedules/{schedule}");
        let pause = async |verb| served.post(&format!("{path}/{verb}"), Value::Null).await;
        assert_eq!(pause("pause").await.expect(200).json()["changed"], true);
        assert_eq!(pause("pause").await.expect(200).json()["changed"], false);
        let paused = jiff::Timestamp::now().as_second();
        // Those that were on their way are due within 5 s.
        tokio::time::sleep(Duration::from_secs(9)).await;
        let before = ids(&served, topic).await;
        let before: Vec<String> = before.into_iter().collect();
        assert!(seconds(&before).last() <= Some(&(paused + 6)), "{before:?}");
        let shown = show(&served, schedule).await;
        assert!(
            shown["paused_since"].is_string() && shown["next"].is_null(),
            "{shown}"
        );
        let resuming = jiff::Timestamp::now().as_second();
        assert_eq!(pause("resume").await.expect(200).json()["changed"], true);
        let after = sent(&served, topic, schedule, before.len() + 3).await;
        let new = after.into_iter().filter(|id| !before.contains(id));
        let new: Vec<String> = new.collect();
        assert!(
            seconds(&new)[0] >= resuming,
            "{new:?} after {before:?}, resumed at {resuming}"
        );
        assert_eq!(show(&served, schedule).await["missed"], 0);
    }
}

#[tokio::test]
async fn a_resumed_schedule_still_shows_the_time_up_to_which_it_has_sent() {
    let server = Server::start();
    let served = served(&server, &[]).await;
    create(&served, "s", "a", YEARLY).await;
    let shown = show(&served, "s").await;
    assert_eq!(shown["sent_until"], Value::Null);
    // It has sent at the beginning of the year.
    let year = jiff::Timestamp::now().strftime("%Y-01-01T00:00:00.000Z");
    let year = year.to_string();
    let ms = year.parse::<UnixMs>().unwrap().get();
    let sent = format!("{ms} {} {YEARLY} UTC", shown["version"]);
    let mut connection = server.connection().await;
    let _: u64 = redis::cmd("HSET")
        .arg(&["by-call:v1:{registry}:schedule_progress", "s", &sent])
        .query_async(&mut connection)
        .await
        .unwrap();
    for verb in ["pause", "resume", "pause", "resume"] {
        let path = format!("schedules/s/{verb}");
        served.post(&path, Value::Null).await.expect(200);
        let shown = show(&served, "s").await;
        assert_eq!(shown["sent_until"], year, "{verb}");
        assert_eq!(shown["missed"], 0);
    }
}

#[tokio::test]
async fn a_topic_that_is_gone_is_shown_as_the_error_and_holds_up_no_other() {
    let server = Server::start();
    let served = served(&server, &[]).await;
    let topic = async |method| {
        let request = served.api.request(method, "/v1/topics/gone");
        lisa_tests::http::reply(request.json(&json!({}))).await
    };
    topic(Method::PUT).await.expect(201);
    create(&served, "lost", "gone", SECONDLY).await;
    sent(&served, "gone", "lost", 2).await;
    let request = served
        .api
        .request(Method::DELETE, "/v1/topics/gone?how=force");
    lisa_tests::http::reply(request).await.expect(202);
    eventually(SOON, async || {
        let shown = show(&served, "lost").await;
        let error = shown["error"].as_str().map(|error| error.contains("gone"));
        (error == Some(true)).then_some(()).ok_or(shown)
    })
    .await;
    create(&served, "tick", "a", SECONDLY).await;
    let ids = sent(&served, "a", "tick", 8).await;
    assert!(
        seconds(&ids).windows(2).all(|two| two[1] == two[0] + 1),
        "{ids:?}"
    );
    // It goes on once the topic exists again.
    eventually(SOON, async || {
        let put = topic(Method::PUT).await;
        (put.status == 201).then_some(()).ok_or(put.body)
    })
    .await;
    sent(&served, "gone", "lost", 2).await;
    eventually(SOON, async || {
        let shown = show(&served, "lost").await;
        shown["error"].is_null().then_some(()).ok_or(shown)
    })
    .await;
}

#[tokio::test]
async fn a_schedule_that_a_file_declares_replaces_the_one_that_was_created_by_call() {
    let server = Server::start();
    let before = served(&server, &[]).await;
    create(&before, "tick", "a", SECONDLY).await;
    create(&before, "other", "a", YEARLY).await;
    let keys = [
        ("schedules.tick.topic", "b"),
        ("schedules.tick.cron", YEARLY),
    ];
    let after = served(&server, &keys).await;
    let shown = show(&after, "tick").await;
    assert_eq!(
        (&shown["declared_in_file"], &shown["topic"]),
        (&json!(true), &json!("b"))
    );
    call(&before, Method::GET, "tick", ("", ""), None)
        .await
        .expect(404);
    let list = after.api.get_json("/v1/schedules?limit=1").await;
    assert_eq!(
        (&list["schedules"][0]["schedule"], &list["next"]),
        (&json!("other"), &json!("other"))
    );
    let list = after
        .api
        .get_json("/v1/schedules?limit=1&cursor=other")
        .await;
    assert_eq!(
        (&list["schedules"][0]["schedule"], &list["next"]),
        (&json!("tick"), &Value::Null)
    );
    let list = after.api.get_json("/v1/schedules?prefix=t").await;
    assert_eq!(list["schedules"].as_array().unwrap().len(), 1);
    let forecast = after.api.get_json("/v1/forecast?for=366d").await;
    let times = forecast["recurring"].as_array().unwrap();
    let names: BTreeSet<_> = times.iter().map(|time| time["schedule"].as_str()).collect();
    assert_eq!(names, BTreeSet::from([Some("other"), Some("tick")]));
}

#[tokio::test]
async fn what_cannot_be_read_holds_up_no_other_schedule() {
    let server = Server::start();
    let served = served(&server, &[]).await;
    let key = |name| format!("by-call:v1:{{registry}}:{name}");
    let mut connection = server.connection().await;
    for (schedule, definition, progress) in [
        ("BAD NAME", "{}", "1 7 r"),
        ("no-json", "{", "1 7 r"),
        ("no-text", "\u{fffd}", "1 7 r"),
        (
            "no-number",
            "{}",
            "9999999999999999999999999 9999999999999999999999999 r",
        ),
        ("no-progress", "{}", "nonsense"),
        ("no-definition", "", ""),
    ] {
        for (command, name, arguments) in [
            ("HSET", "schedule_definitions", [schedule, definition]),
            ("HSET", "schedule_progress", [schedule, progress]),
            ("ZADD", "schedule_names", ["0", schedule]),
            ("ZADD", "fires", ["1", schedule]),
        ] {
            let mut store = redis::cmd(command);
            store.arg(key(name)).arg(&arguments);
            let is_missing = command == "HSET" && definition.is_empty();
            if !is_missing {
                store.exec_async(&mut connection).await.unwrap();
            }
        }
    }
    create(&served, "tick", "a", SECONDLY).await;
    let ids = sent(&served, "a", "tick", 9).await;
    let seconds = seconds(&ids);
    assert!(
        seconds.windows(2).all(|two| two[1] == two[0] + 1),
        "{ids:?}"
    );
    let list = served.api.get_json("/v1/schedules").await;
    let damaged: Vec<_> = list["damaged"].as_array().unwrap().iter().collect();
    let names: Vec<_> = damaged.iter().map(|one| one["schedule"].as_str()).collect();
    assert_eq!(
        names[..3],
        ["no-json", "no-number", "no-progress"].map(Some),
        "{list}"
    );
}

#[tokio::test]
async fn a_schedule_that_another_manager_declares_goes_on_undisturbed() {
    let server = Server::start();
    let keys = [
        ("schedules.tick.topic", "a"),
        ("schedules.tick.cron", "* * * * * *"),
    ];
    let with_file = served(&server, &keys).await;
    let without = served(&server, &[]).await;
    sent(&with_file, "a", "tick", 3).await;
    create(&without, "tick", "b", SECONDLY).await;
    // The one that declares it takes the other first, or looks for it within seconds. Then it removes it.
    eventually(SOON, async || {
        let there = call(&without, Method::GET, "tick", ("", ""), None).await;
        (there.status == 404).then_some(()).ok_or(there.body)
    })
    .await;
    let ids = sent(&with_file, "a", "tick", 12).await;
    assert!(
        seconds(&ids).windows(2).all(|two| two[1] == two[0] + 1),
        "{ids:?}"
    );
    assert_eq!(show(&with_file, "tick").await["missed"], 0);
}

#[tokio::test]
async fn the_command_line_creates_shows_changes_and_removes_a_schedule() {
    let server = Server::start();
    let served = served(&server, &[]).await;
    let run = async |arguments: &[&str]| {
        let arguments = [arguments, &["--url", &served.url]].concat();
        lisa_manager(&server, &arguments).run(SOON).await
    };
    for (arguments, code, text) in [
        (
            &[
                "schedules",
                "create",
                "s",
                "topic=a",
                "cron=0 0 9 31 * *",
                "payload={\"a\": 1}",
                "headers.x=5",
            ][..],
            0,
            "s created; next: ",
        ),
        (&["schedules", "change", "s", "catch_up=6h"], 0, "s changed"),
        (
            &["schedules", "change", "s", "catch_up=6h"],
            0,
            "s already has this definition",
        ),
        (&["schedules", "show", "s"], 0, "day 31 does not exist"),
        (&["schedules", "pause", "s"], 0, "s is paused"),
        (&["schedules", "pause", "s"], 0, "s is already paused"),
        (&["schedules"], 0, "paused"),
        (&["schedules", "resume", "s"], 0, "s is resumed"),
        (&["schedules", "run", "s"], 0, "sent s:"),
        (
            &[
                "schedules",
                "backfill",
                "s",
                "--from",
                "2025-01-01T00:00:00Z",
                "--to",
                "2026-01-01T00:00:00Z",
            ],
            0,
            "7 messages sent to a",
        ),
        (
            &["schedules", "create", "s", "topic=b", "cron=0 0 9 1 * *"],
            1,
            "already exists",
        ),
        (
            &["schedules", "change", "s", "cronn=x"],
            2,
            "did you mean cron?",
        ),
        (&["schedules", "remove", "s"], 0, "s is removed"),
        (&["schedules", "remove", "s"], 1, "there is no schedule s"),
    ] {
        let done = run(arguments).await;
        assert_eq!(done.code, Some(code), "{arguments:?} {done:?}");
        let said = format!("{}{}", done.stdout, done.stderr);
        assert!(said.contains(text), "{arguments:?} {done:?}");
    }
}
