//! Messages that are inspected, cancelled, postponed, delivered at once and replaced, over HTTP and on the command
//! line, in every possible state.

use super::deployment::{STDOUT, TOPIC};
use super::verbs::is;
use super::{Deployment, Role, SOON, lines};
use futures_util::future::join_all;
use lisa_tests::http::Reply;
use lisa_tests::{Api, Binary, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A subscription whose command does what the payload says: exits with that code, or sleeps.
const OBEDIENT: &str = r#"concurrency = 8
            sink = { type = "command", command = ["/bin/sh", "-c", "p=$(cat); case $p in hang) exec sleep 60;; *) exit $p;; esac"] }"#;

async fn send(api: &Api, id: &str, payload: &str, options: &[(&str, &str)]) {
    let options = [&[("Lisa-Id", id)], options].concat();
    let receipt = api.send(TOPIC, payload, &options).await.expect(202).json();
    assert_eq!(receipt["id"], id, "{receipt}");
}

async fn deliver_now(api: &Api, id: &str) -> Reply {
    let path = format!("/v1/topics/{TOPIC}/messages/{id}/deliver-now");
    api.call(Method::POST, &path, &Value::Null).await
}

/// Returns the explanation of why a message has not run.
async fn why(here: &Deployment, id: &str, state: &str) -> String {
    let (code, told) = here
        .json(Binary::Manager, &["messages", "show", TOPIC, id])
        .await;
    assert_eq!(code, 0, "{told}");
    assert_eq!(told["state"], state, "{told}");
    assert_eq!(told["groups"][0]["state"], state, "{told}");
    told["groups"][0]["why"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// Checks the explanation of a message, and that it cannot be delivered at once.
async fn refuses(here: &Deployment, api: &Api, id: &str, state: &str, said: &str) {
    is(api, id, state).await;
    let why = why(here, id, state).await;
    assert!(why.contains(said), "{id} is {state}: {why}");
    let word = if state == "garbage" {
        state
    } else {
        "in_flight"
    };
    let told = deliver_now(api, id).await.expect(409).json();
    assert_eq!(
        (&told["code"], &told["id"]),
        (&json!(word), &json!(id)),
        "{told}"
    );
    let (code, told) = here
        .json(Binary::Producer, &["deliver-now", TOPIC, id])
        .await;
    assert_eq!((code, &told["outcome"]), (1, &json!(word)), "{told}");
    is(api, id, state).await;
}

/// Checks the explanations of two messages, delivers both at once, one each way, then postpones one and cancels the
/// other one.
async fn takes_changes(here: &Deployment, api: &Api, ids: [&str; 2], state: &str, said: &str) {
    let [over_http, by_program] = ids;
    for id in ids {
        is(api, id, state).await;
        let why = why(here, id, state).await;
        assert!(why.contains(said), "{id} is {state}: {why}");
    }
    let told = deliver_now(api, over_http).await.expect(200).json();
    assert_eq!(told["outcome"], "rescheduled", "{told}");
    let verb = ["deliver-now", TOPIC, by_program];
    let (code, told) = here.json(Binary::Producer, &verb).await;
    assert_eq!(
        (code, &told["outcome"]),
        (0, &json!("rescheduled")),
        "{told}"
    );
    // Its obstacle remains.
    for id in ids {
        is(api, id, state).await;
    }

    let path = format!("/v1/topics/{TOPIC}/messages/{over_http}");
    let told = api
        .call(Method::PATCH, &path, &json!({ "delay": "2h" }))
        .await;
    let due = told.expect(200).json()["due_at"].clone();
    let seen = api.get_json(&path).await;
    assert_eq!(
        (&seen["state"], &seen["due_at"]),
        (&json!("waiting"), &due),
        "{seen}"
    );
    let told = api.call(Method::DELETE, &path, &Value::Null).await;
    assert_eq!(told.expect(200).json()["outcome"], "cancelled");
    let verb = ["cancel", TOPIC, by_program];
    let (code, told) = here.json(Binary::Producer, &verb).await;
    assert_eq!((code, &told["outcome"]), (0, &json!("cancelled")), "{told}");
    for id in ids {
        is(api, id, "gone").await;
    }
}

#[tokio::test]
async fn a_message_says_why_it_has_not_run_and_can_be_changed_until_it_is_ready() {
    let topic = "max_ready = 2\nretry = { base = \"1h\", max = \"1h\", jitter = 0.0 }";
    let here = Deployment::start(topic).await;
    let Role {
        process: _relay,
        api,
    } = here.combined().await;
    let keyed = [("Lisa-Key", "k")];

    // The head of a key and another message fill the window; each of the others waits for one of them.
    send(&api, "head", "hang", &keyed).await;
    is(&api, "head", "ready").await;
    send(&api, "full", "hang", &[]).await;
    refuses(&here, &api, "full", "ready", "no consumer has read it").await;
    for id in ["parked-1", "parked-2"] {
        send(&api, id, "0", &keyed).await;
    }
    for id in ["backlog-1", "backlog-2"] {
        send(&api, id, "0", &[]).await;
    }
    send(&api, "early", "0", &[("Lisa-Delay", "1h")]).await;
    let parked = ["parked-1", "parked-2"];
    takes_changes(
        &here,
        &api,
        parked,
        "parked",
        "behind head of the same ordering key",
    )
    .await;
    let backlog = ["backlog-1", "backlog-2"];
    takes_changes(
        &here,
        &api,
        backlog,
        "backlog",
        "the window is full: 2 ready or in flight",
    )
    .await;

    let consumer = here.consumer(OBEDIENT).await;
    refuses(&here, &api, "head", "in_flight", "runs attempt 1").await;
    assert!(
        why(&here, "early", "waiting")
            .await
            .starts_with("not due before 20")
    );
    drop(consumer);
    here.conserved().await;
}

#[tokio::test]
async fn a_hurried_message_is_delivered_at_once_whether_it_waits_or_comes_again() {
    let here = Deployment::start("retry = { base = \"1h\", max = \"1h\", jitter = 0.0 }").await;
    let Role {
        process: _relay,
        api,
    } = here.combined().await;
    let mut consumer = here.consumer(OBEDIENT).await;
    for (id, by_program) in [("one", false), ("two", true)] {
        send(&api, id, "1", &[("Lisa-Delay", "1h")]).await;
        assert!(
            why(&here, id, "waiting")
                .await
                .starts_with("not due before 20")
        );
        for attempt in [2, 3] {
            if by_program {
                let verb = ["deliver-now", TOPIC, id];
                let (code, told) = here.json(Binary::Producer, &verb).await;
                assert_eq!(
                    (code, &told["outcome"]),
                    (0, &json!("rescheduled")),
                    "{told}"
                );
            } else {
                let told = deliver_now(&api, id).await.expect(200).json();
                assert_eq!(told["outcome"], "rescheduled", "{told}");
            }
            let path = format!("/v1/topics/{TOPIC}/messages/{id}");
            eventually(SOON, async || {
                let seen = api.get_json(&path).await;
                let comes = seen["state"] == "retry" && seen["attempt"] == attempt;
                if comes { Ok(()) } else { Err(seen.to_string()) }
            })
            .await;
            let why = why(&here, id, "retry").await;
            assert!(
                why.starts_with(&format!("attempt {attempt} is due at 20")),
                "{why}"
            );
        }
    }
    send(&api, "rejected", "65", &[]).await;
    let in_garbage = "in garbage after 1 attempt: rejected";
    refuses(&here, &api, "rejected", "garbage", in_garbage).await;

    send(&api, "handled", "0", &[]).await;
    is(&api, "handled", "gone").await;
    for (id, how) in [("handled", "acked"), ("nobody", "has no message nobody")] {
        let told = deliver_now(&api, id).await.expect(404).json();
        assert_eq!(told["code"], "not_found", "{told}");
        let (code, told) = here
            .json(Binary::Producer, &["deliver-now", TOPIC, id])
            .await;
        assert_eq!((code, &told["outcome"]), (1, &json!("unknown")), "{told}");
        let shown = here
            .verb(Binary::Manager, &["messages", "show", TOPIC, id])
            .await;
        assert_eq!(shown.code, Some(1), "{shown:?}");
        assert!(shown.stderr.contains(how), "{shown:?}");
    }
    consumer.stop().await;
    here.conserved().await;
}

/// Sends a message that replaces another one.
async fn replace(api: &Api, old: &str, payload: &str) -> Reply {
    let options = [("Lisa-Replace", old), ("Lisa-Delay", "1h")];
    api.send(TOPIC, payload, &options).await
}

/// Lets `count` senders replace one message at the same time; returns the id of the only one that could.
async fn race(api: &Api, old: &str, count: usize) -> String {
    let payloads: Vec<String> = (0..count).map(|number| format!("{old} {number}")).collect();
    let replies = join_all(payloads.iter().map(|payload| replace(api, old, payload))).await;
    let mut winners = Vec::new();
    for reply in &replies {
        let told = reply.json();
        if reply.status == 202 {
            assert_eq!(told["outcome"], "waiting", "{told}");
            winners.push(told["id"].as_str().unwrap_or_default().to_owned());
        } else {
            assert_eq!(reply.status, 404, "{reply:?}");
            assert_eq!(
                (&told["code"], &told["id"]),
                (&json!("unknown_message"), &json!(old))
            );
        }
    }
    assert_eq!(winners.len(), 1, "of {count} that replace {old}");
    is(api, old, "gone").await;
    winners.remove(0)
}

#[tokio::test]
async fn of_two_hundred_that_replace_one_message_exactly_one_does() {
    let here = Deployment::start("shards = 4").await;
    let Role {
        process: _relay,
        api,
    } = here.combined().await;
    let first = api.send(TOPIC, "first", &[("Lisa-Delay", "1h")]).await;
    let first = first.expect(202).json()["id"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    // All at once, and then in a chain: twenty for each of ten that survive.
    let mut survivor = race(&api, &first, 200).await;
    for _ in 0..10 {
        survivor = race(&api, &survivor, 20).await;
    }
    let stats = here.stats().await;
    assert_eq!(Deployment::count(&stats, "waiting"), 1, "{stats:#}");
    assert_eq!(Deployment::counter(&stats, "accepted"), 12, "{stats:#}");
    assert_eq!(Deployment::counter(&stats, "cancelled"), 11, "{stats:#}");
    deliver_now(&api, &survivor).await.expect(200);
    let mut consumer = here.consumer(STDOUT).await;
    let line = lines(&mut consumer, 1, SOON).await.remove(0);
    assert_eq!(line.id, survivor);
    here.drained().await;
    here.conserved().await;
}

#[tokio::test]
async fn what_cannot_be_cancelled_is_not_replaced_and_nothing_is_stored() {
    let here = Deployment::start("retry = { base = \"1h\", max = \"1h\", jitter = 0.0 }").await;
    let Role {
        process: _relay,
        api,
    } = here.combined().await;
    let refused = async |old: &str, status: u16, code: &str| {
        let before = here.snapshot().await;
        let told = replace(&api, old, "0").await.expect(status).json();
        assert_eq!(
            (&told["code"], &told["id"]),
            (&json!(code), &json!(old)),
            "{told}"
        );
        let send = ["send", TOPIC, "0", "--delay", "1h", "--replace", old];
        let told = here.verb(Binary::Producer, &send).await;
        assert_eq!(told.code, Some(1), "{told:?}");
        assert!(told.stderr.contains(old), "{told:?}");
        let after = here.snapshot().await;
        for what in [
            "payload",
            "waiting",
            "meta",
            "tomb",
            "retry:billing",
            "garbage:billing",
        ] {
            let key = format!("v1:{{{TOPIC}:0}}:{what}");
            assert_eq!(before.get(&key), after.get(&key), "{code}: {what}");
        }
    };
    refused("nobody", 404, "unknown_message").await;
    send(&api, "busy", "hang", &[]).await;
    is(&api, "busy", "ready").await;
    refused("busy", 409, "in_flight").await;
    let mut consumer = here.consumer(OBEDIENT).await;
    is(&api, "busy", "in_flight").await;
    refused("busy", 409, "in_flight").await;
    send(&api, "bad", "65", &[]).await;
    is(&api, "bad", "garbage").await;
    refused("bad", 409, "garbage").await;

    // A message that waits for a retry can be replaced; the program and HTTP return the same.
    let mut stored = BTreeSet::new();
    for (old, by_program) in [("failed-1", false), ("failed-2", true)] {
        send(&api, old, "1", &[]).await;
        is(&api, old, "retry").await;
        let told = if by_program {
            let send = ["send", TOPIC, "0", "--delay", "1h", "--replace", old];
            let (code, told) = here.json(Binary::Producer, &send).await;
            assert_eq!(code, 0, "{told}");
            told
        } else {
            replace(&api, old, "0").await.expect(202).json()
        };
        assert_eq!(told["outcome"], "waiting", "{told}");
        stored.insert(told["id"].to_string());
        is(&api, old, "gone").await;
        refused(old, 404, "unknown_message").await;
    }
    assert_eq!(stored.len(), 2);
    let stats = here.stats().await;
    assert_eq!(Deployment::count(&stats, "waiting"), 2, "{stats:#}");
    assert_eq!(Deployment::counter(&stats, "cancelled"), 2, "{stats:#}");
    consumer.process.kill9();
    here.conserved().await;
}
