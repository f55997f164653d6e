//! Messages of one merge key: one stands for all of them while no group has begun it.

use super::deployment::{STDOUT, TOPIC};
use super::verbs::is;
use super::{Deployment, Role, SOON, lines, millis};
use lisa_tests::{Api, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// The behaviors of a send when there is a message with its merge key.
const KINDS: [&str; 3] = ["first", "last", "reject"];
/// The states of that message: not due; overdue as the topic is paused; due, and the window is full.
const PLACES: [&str; 3] = ["waiting", "paused", "backlog"];

/// Sends a message that is merged by its payload, or by a key.
async fn send(api: &Api, id: &str, payload: &str, key: Option<&str>, delay: &str) -> Value {
    let mut options = vec![("Lisa-Id", id), ("Lisa-Delay", delay)];
    options.extend(key.map(|key| ("Lisa-Merge-Key", key)));
    let reply = api.send(TOPIC, payload, &options).await.expect(202);
    let location = reply.header("location").to_owned();
    let receipt = reply.json();
    let id = receipt["id"].as_str().unwrap_or_default();
    assert_eq!(location, format!("/v1/topics/{TOPIC}/messages/{id}"));
    receipt
}

async fn get(api: &Api, id: &str) -> Value {
    let path = format!("/v1/topics/{TOPIC}/messages/{id}");
    api.get_json(&path).await
}

async fn post(api: &Api, path: &str) {
    let path = format!("/v1/topics/{TOPIC}/{path}");
    api.call(Method::POST, &path, &Value::Null)
        .await
        .expect(200);
}

/// Sends three messages of one merge key while the first one is in `place`, and the second one once more. Returns the
/// payload that is to come out, under the id of the first.
async fn three(api: &Api, kind: &str, by_key: bool, place: &str) -> (String, String) {
    let ids = [1, 2, 3].map(|number| format!("{place}-{number}"));
    let payloads = [1, 2, 3].map(|number| match by_key {
        true => format!("{place} {number}"),
        false => place.to_owned(),
    });
    let key = by_key.then_some(place);
    let delay = if place == "waiting" { "3h" } else { "0s" };
    let first = send(api, &ids[0], &payloads[0], key, delay).await;
    assert_eq!(first["outcome"], "waiting", "{first}");
    assert_eq!(first["id"], ids[0], "{first}");
    let state = if place == "backlog" { place } else { "waiting" };
    is(api, &ids[0], state).await;

    // The last one is due before the second: the later send wins, and not the later due time.
    let mut last = Value::Null;
    for (number, delay, hours) in [(1, "2h", 2), (2, "1h", 1)] {
        let before = jiff::Timestamp::now().as_millisecond();
        last = send(api, &ids[number], &payloads[number], key, delay).await;
        assert_eq!(last["id"], ids[0], "{kind} {place}: {last}");
        let outcome = if kind == "reject" {
            "duplicate"
        } else {
            "merged"
        };
        assert_eq!(last["outcome"], outcome, "{kind} {place}: {last}");
        match kind {
            "last" => {
                let due = millis(last["due_at"].as_str().unwrap_or_default()) - hours * 3_600_000;
                assert!((before..before + 20_000).contains(&due), "{last}");
            }
            "reject" if place == "backlog" => assert_eq!(last["due_at"], Value::Null),
            _ => assert_eq!(last["due_at"], first["due_at"], "{kind} {place}"),
        }
    }
    let again = send(api, &ids[1], &payloads[1], key, "2h").await;
    let outcome = if kind == "reject" {
        "duplicate"
    } else {
        "merged"
    };
    assert_eq!(again["outcome"], outcome, "{kind} {place}: {again}");
    assert_eq!(again["id"], ids[0], "{again}");
    if kind != "reject" {
        let path = format!("/v1/topics/{TOPIC}/messages/{}", ids[1]);
        let gone = api.get(&path).await.expect(404);
        assert!(gone.body.contains("merged"), "{gone:?}");
    }

    let stands = get(api, &ids[0]).await;
    let wins = if kind == "last" { 2 } else { 0 };
    assert_eq!(
        stands["payload"], payloads[wins],
        "{kind} {place}: {stands}"
    );
    if kind == "last" {
        assert_eq!(stands["state"], "waiting", "it waits again: {stands}");
        assert_eq!(stands["due_at"], last["due_at"], "{stands}");
    }
    (ids[0].clone(), payloads[wins].clone())
}

/// One kind of merging in each place.
async fn merge(kind: &str, by_key: bool) {
    let by = if by_key { "key" } else { "payload" };
    let topic = format!("merge = \"{kind}\"\nmerge_by = \"{by}\"\nmax_ready = 1");
    let here = Deployment::start(&topic).await;
    let Role {
        process: _relay,
        api,
    } = here.combined().await;
    // It fills the window.
    send(&api, "full", "full", None, "0s").await;
    is(&api, "full", "ready").await;

    let mut wanted = BTreeMap::from([("full".to_owned(), "full".to_owned())]);
    for place in ["waiting", "backlog", "paused"] {
        if place == "paused" {
            post(&api, "pause").await;
        }
        wanted.extend([three(&api, kind, by_key, place).await]);
    }
    let stats = here.stats().await;
    let (merged, duplicates) = if kind == "reject" { (0, 9) } else { (6, 3) };
    assert_eq!(Deployment::counter(&stats, "merged"), merged, "{stats:#}");
    assert_eq!(
        Deployment::counter(&stats, "duplicates"),
        duplicates,
        "{stats:#}"
    );
    assert_eq!(
        Deployment::counter(&stats, "accepted"),
        4 + merged,
        "{stats:#}"
    );

    post(&api, "resume").await;
    for place in PLACES {
        post(&api, &format!("messages/{place}-1/deliver-now")).await;
    }
    let mut consumer = here.consumer(STDOUT).await;
    let came = lines(&mut consumer, wanted.len(), SOON).await;
    let came: BTreeMap<_, _> = came
        .into_iter()
        .map(|line| (line.id, line.payload))
        .collect();
    assert_eq!(came, wanted, "{kind} by {by}");
    let stats = here.drained().await;
    assert_eq!(Deployment::counter(&stats, "acked"), 4, "{stats:#}");
    here.conserved().await;
}

#[tokio::test]
async fn the_first_message_of_a_merge_key_stands_for_the_later_ones() {
    merge("first", true).await;
}

#[tokio::test]
async fn the_last_message_of_a_merge_key_stands_for_the_earlier_ones() {
    merge("last", true).await;
}

#[tokio::test]
async fn a_second_message_of_a_merge_key_is_refused_as_a_duplicate() {
    merge("reject", true).await;
}

#[tokio::test]
async fn messages_are_merged_by_their_payload_where_the_topic_says_so() {
    for kind in KINDS {
        merge(kind, false).await;
    }
}

#[tokio::test]
async fn what_is_ready_or_in_flight_is_not_merged_into_and_the_next_one_is_delivered_beside_it() {
    let place = tempfile::tempdir().unwrap();
    let [gate, seen] = ["gate", "seen"].map(|name| place.path().join(name));
    // Each handler records its message, and ends when the gate is open.
    let script = format!(
        "p=$(cat); echo \"$p\" >> {seen}; until [ -e {gate} ]; do sleep 0.02; done",
        seen = seen.display(),
        gate = gate.display()
    );
    let sink = format!(
        "concurrency = 8\nsink = {{ type = \"command\", command = [\"/bin/sh\", \"-c\", '{script}'] }}"
    );
    let held = |payload: &str| {
        std::fs::read_to_string(&seen).is_ok_and(|seen| seen.lines().any(|line| line == payload))
    };
    for kind in KINDS {
        let _ = std::fs::remove_file(&gate);
        let here = Deployment::start(&format!("merge = \"{kind}\"")).await;
        let Role {
            process: _relay,
            api,
        } = here.combined().await;
        let beside = async |id: &str| {
            let receipt = send(&api, id, &format!("{kind} {id}"), Some("k"), "0s").await;
            assert_eq!(
                (&receipt["id"], &receipt["outcome"]),
                (&json!(id), &json!("waiting"))
            );
        };
        beside("a").await;
        is(&api, "a", "ready").await;
        beside("b").await;
        is(&api, "b", "ready").await;
        let _consumer = here.consumer(&sink).await;
        is(&api, "b", "in_flight").await;
        beside("c").await;
        is(&api, "c", "in_flight").await;
        for id in ["a", "b", "c"] {
            let payload = format!("{kind} {id}");
            eventually(SOON, async || {
                held(&payload).then_some(()).ok_or("not begun")
            })
            .await;
        }
        std::fs::write(&gate, "").unwrap();
        let stats = here.drained().await;
        assert_eq!(Deployment::counter(&stats, "acked"), 3, "{stats:#}");
        assert_eq!(Deployment::counter(&stats, "merged"), 0, "{stats:#}");
        here.conserved().await;
    }
    let all = std::fs::read_to_string(&seen).unwrap();
    assert_eq!(all.lines().count(), 9, "{all}");
}

#[tokio::test]
async fn what_is_parked_is_merged_into_and_what_has_begun_and_comes_again_is_not() {
    let place = tempfile::tempdir().unwrap();
    let [good, seen] = ["good", "seen"].map(|name| place.path().join(name));
    // All but the head fail until it is good.
    let script = format!(
        "p=$(cat); echo \"$p\" >> {seen}; [ \"$p\" = head ] || [ -e {good} ]",
        seen = seen.display(),
        good = good.display()
    );
    let sink =
        format!("sink = {{ type = \"command\", command = [\"/bin/sh\", \"-c\", '{script}'] }}");
    let here = Deployment::start("retry = { kind = \"fixed\", delay = \"1h\" }").await;
    let Role {
        process: _relay,
        api,
    } = here.combined().await;
    let keyed = async |id: &str, merge: Option<&str>| {
        let mut options = vec![("Lisa-Id", id), ("Lisa-Key", "k")];
        options.extend(merge.map(|merge| ("Lisa-Merge-Key", merge)));
        let receipt = api.send(TOPIC, id, &options).await.expect(202).json();
        (receipt["id"].clone(), receipt["outcome"].clone())
    };
    keyed("head", None).await;
    is(&api, "head", "ready").await;
    assert_eq!(keyed("a", Some("m")).await, (json!("a"), json!("waiting")));
    is(&api, "a", "parked").await;
    assert_eq!(keyed("b", Some("m")).await, (json!("a"), json!("merged")));
    assert_eq!(get(&api, "a").await["payload"], "b");

    let _consumer = here.consumer(&sink).await;
    is(&api, "a", "retry").await;
    assert_eq!(keyed("c", Some("m")).await, (json!("c"), json!("waiting")));
    is(&api, "c", "parked").await;
    std::fs::write(&good, "").unwrap();
    post(&api, "messages/a/deliver-now").await;
    let stats = here.drained().await;
    assert_eq!(Deployment::counter(&stats, "acked"), 3, "{stats:#}");
    assert_eq!(Deployment::counter(&stats, "merged"), 1, "{stats:#}");
    let came = std::fs::read_to_string(&seen).unwrap();
    // A message delivered at once releases its key, so the next one went first.
    assert_eq!(came.lines().collect::<Vec<_>>(), ["head", "b", "c", "b"]);
    here.conserved().await;
}

/// A message that stands for others: how far it can be postponed, when it is due, and what was merged into it last.
struct Standing {
    cap: i64,
    due: i64,
    payload: String,
}

#[tokio::test]
async fn a_debounced_message_comes_once_it_is_quiet_and_no_later_than_max_wait_after_the_first() {
    const QUIET: i64 = 400;
    const MAX_WAIT: i64 = 1_000;
    let here = Deployment::start(&format!("merge = \"last\"\nmax_wait = \"{MAX_WAIT}ms\"")).await;
    let Role {
        process: _relay,
        api,
    } = here.combined().await;
    let mut consumer = here.consumer(STDOUT).await;
    let mut standing: BTreeMap<String, Standing> = BTreeMap::new();
    let (mut latest, mut sent, mut put_off) = (None::<String>, 0_i64, 0);
    // The expected result follows from the times of the sends, which a busy machine spreads. Two that were postponed
    // for the longest time come at any pace below what counts as quiet.
    while put_off < 2 || sent < 60 {
        assert!(sent < 1000, "{put_off} of {} were put off", standing.len());
        let (id, payload) = (format!("m{sent}"), sent.to_string());
        sent += 1;
        let before = jiff::Timestamp::now().as_millisecond();
        let receipt = send(&api, &id, &payload, Some("k"), &format!("{QUIET}ms")).await;
        let after = jiff::Timestamp::now().as_millisecond();
        let due = millis(receipt["due_at"].as_str().unwrap_or_default());
        let stands = receipt["id"].as_str().unwrap_or_default().to_owned();
        let earlier = latest.as_ref().map(|id| &standing[id]);
        if receipt["outcome"] == "waiting" {
            assert_eq!(stands, id);
            assert!((before + QUIET..=after + QUIET).contains(&due), "{receipt}");
            // The one before was moved, and that not before it was due.
            assert!(earlier.is_none_or(|one| one.due <= after), "{receipt}");
            let cap = due - QUIET + MAX_WAIT;
            standing.insert(stands.clone(), Standing { cap, due, payload });
            latest = Some(stands);
        } else {
            assert_eq!(receipt["outcome"], "merged");
            assert_eq!(latest.as_ref(), Some(&stands), "{receipt}");
            let one = standing.get_mut(&stands).expect("the last one stands");
            // Postponed up to its cap; if it is not moved by then, it is due now.
            let due_at = |now: i64| (now + QUIET).min(one.cap.max(now));
            assert!(
                (due_at(before)..=due_at(after)).contains(&due),
                "{receipt}: sent from {before} to {after}, cap {}",
                one.cap
            );
            put_off += u32::from(one.due < one.cap && due >= one.cap);
            (one.due, one.payload) = (due, payload);
        }
        // The pace of the senders: less than what counts as quiet.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let count = standing.len();
    for line in lines(&mut consumer, count, SOON).await {
        let one = &standing[&line.id];
        assert_eq!(line.payload, one.payload, "{line:?}");
        assert_eq!(millis(&line.due_at), one.due, "{line:?}");
    }
    let stats = here.drained().await;
    assert_eq!(
        Deployment::counter(&stats, "merged"),
        sent - count as i64,
        "{stats:#}"
    );
    assert_eq!(
        Deployment::counter(&stats, "acked"),
        count as i64,
        "{stats:#}"
    );
    here.conserved().await;
}
