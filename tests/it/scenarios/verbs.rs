//! Cancel and reschedule, over HTTP and on the command line, in every state that a message can be in.

use super::deployment::TOPIC;
use super::{Deployment, Role, SOON};
use lisa_tests::{Api, Binary, eventually};
use reqwest::Method;
use serde_json::{Value, json};

/// A subscription whose command does what the payload says: exits with that code, or sleeps.
const OBEDIENT: &str = r#"concurrency = 8
            sink = { type = "command", command = ["/bin/sh", "-c", "p=$(cat); case $p in hang) exec sleep 60;; *) exit $p;; esac"] }"#;

/// A state in which neither verb can do anything, with the answer of each.
struct Refusal {
    state: &'static str,
    status: u16,
    code: &'static str,
    word: &'static str,
}

const TOO_LATE: (u16, &str, &str) = (409, "in_flight", "in_flight");

impl Refusal {
    fn new(state: &'static str, (status, code, word): (u16, &'static str, &'static str)) -> Self {
        Self {
            state,
            status,
            code,
            word,
        }
    }

    /// Tries both verbs both ways, and checks that nothing changes.
    async fn check(&self, here: &Deployment, api: &Api, id: &str) {
        let before = here.snapshot().await;
        let path = format!("/v1/topics/{TOPIC}/messages/{id}");
        let what = |verb: &str| format!("{verb} of a message that is {}", self.state);
        let cancelled = api.call(Method::DELETE, &path, &Value::Null).await;
        let later = api
            .call(Method::PATCH, &path, &json!({ "delay": "1h" }))
            .await;
        for (verb, reply) in [("cancel", cancelled), ("reschedule", later)] {
            assert_eq!(reply.status, self.status, "{}: {reply:?}", what(verb));
            assert_eq!(reply.json()["code"], self.code, "{}: {reply:?}", what(verb));
            assert_eq!(reply.json()["id"], id, "{}: {reply:?}", what(verb));
        }
        for verb in [
            &["cancel", TOPIC, id][..],
            &["reschedule", TOPIC, id, "--delay", "1h"],
        ] {
            let (code, said) = here.json(Binary::Producer, verb).await;
            assert_eq!(code, 1, "{}: {said}", what(verb[0]));
            assert_eq!(said["outcome"], self.word, "{}: {said}", what(verb[0]));
        }
        let after = here.snapshot().await;
        for key in [
            "payload",
            "waiting",
            "retry:billing",
            "garbage:billing",
            "tomb",
        ] {
            let key = format!("v1:{{{TOPIC}:0}}:{key}");
            assert_eq!(
                before.get(&key),
                after.get(&key),
                "{} changed {key}",
                self.state
            );
        }
    }
}

/// Sends a message and waits until it is in a state; `gone` is one, too.
async fn bring(api: &Api, id: &str, payload: &str, state: &str, delay: &str) {
    let options = [("Lisa-Id", id), ("Lisa-Delay", delay)];
    api.send(TOPIC, payload, &options).await.expect(202);
    is(api, id, state).await;
}

/// Waits until a message is in a state; `gone` is one, too.
pub(super) async fn is(api: &Api, id: &str, state: &str) {
    let path = format!("/v1/topics/{TOPIC}/messages/{id}");
    eventually(SOON, async || {
        let reply = api.get(&path).await;
        let seen = match reply.status {
            404 => "gone".to_owned(),
            _ => reply.json()["state"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        };
        if seen == state {
            Ok(())
        } else {
            Err(format!("{id} is {seen}, not {state}"))
        }
    })
    .await;
}

/// Reschedules and cancels messages that are in a state in which both are possible: one over HTTP, one by the program.
async fn can_be_changed(here: &Deployment, api: &Api, state: &str, payload: &str, delay: &str) {
    let [over_http, by_program] = ["http", "cli"].map(|way| format!("{state}-{way}"));
    bring(api, &over_http, payload, state, delay).await;
    bring(api, &by_program, payload, state, delay).await;

    let path = format!("/v1/topics/{TOPIC}/messages/{over_http}");
    let later = json!({ "deliver_at": "2099-12-31T23:59:59Z" });
    // Within the topic's max_delay, however far away that is.
    let refused = api.call(Method::PATCH, &path, &later).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    let moved = api
        .call(Method::PATCH, &path, &json!({ "delay": "2h" }))
        .await
        .expect(200)
        .json();
    assert_eq!(moved["outcome"], "rescheduled", "{moved}");
    assert_eq!(api.get_json(&path).await["due_at"], moved["due_at"]);
    is(api, &over_http, state).await;
    let gone = api
        .call(Method::DELETE, &path, &Value::Null)
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&gone["outcome"], &gone["payload"]),
        (&json!("cancelled"), &json!(payload))
    );
    let again = api
        .call(Method::DELETE, &path, &Value::Null)
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&again["outcome"], &again["payload"]),
        (&json!("cancelled"), &Value::Null)
    );

    let id = by_program.as_str();
    let (code, moved) = here
        .json(
            Binary::Producer,
            &["reschedule", TOPIC, id, "--delay", "2h"],
        )
        .await;
    assert_eq!(
        (code, &moved["outcome"]),
        (0, &json!("rescheduled")),
        "{moved}"
    );
    is(api, id, state).await;
    let cancel = ["cancel", TOPIC, id];
    let (code, gone) = here.json(Binary::Producer, &cancel).await;
    assert_eq!(
        (code, &gone["outcome"], &gone["payload"]),
        (0, &json!("cancelled"), &json!(payload))
    );
    let (code, again) = here.json(Binary::Producer, &cancel).await;
    assert_eq!(
        (code, &again["outcome"]),
        (0, &json!("cancelled")),
        "a repeat: {again}"
    );

    // Once cancelled, a message cannot be rescheduled: that would raise the dead.
    for id in [&over_http, &by_program] {
        let path = format!("/v1/topics/{TOPIC}/messages/{id}");
        let late = api
            .call(Method::PATCH, &path, &json!({ "delay": "1h" }))
            .await
            .expect(404);
        assert_eq!(late.json()["code"], "not_found", "{late:?}");
        let verb = ["reschedule", TOPIC, id, "--delay", "1h"];
        let (code, said) = here.json(Binary::Producer, &verb).await;
        assert_eq!((code, &said["outcome"]), (1, &json!("unknown")), "{said}");
    }
}

#[tokio::test]
async fn cancel_and_reschedule_answer_truthfully_in_every_state_over_http_and_on_the_command_line()
{
    let here = Deployment::start("retry = { base = \"1h\", max = \"1h\", jitter = 0.0 }").await;
    let Role {
        process: _relay,
        api,
    } = here.combined().await;
    let gone = (404, "not_found", "unknown");

    can_be_changed(&here, &api, "waiting", "0", "1h").await;
    Refusal::new("unheard of", gone)
        .check(&here, &api, "nobody")
        .await;
    bring(&api, "ready", "hang", "ready", "0s").await;
    Refusal::new("ready", TOO_LATE)
        .check(&here, &api, "ready")
        .await;

    let mut consumer = here.consumer(OBEDIENT).await;
    is(&api, "ready", "in_flight").await;
    Refusal::new("in flight", TOO_LATE)
        .check(&here, &api, "ready")
        .await;
    can_be_changed(&here, &api, "retry", "1", "0s").await;
    bring(&api, "rejected", "65", "garbage", "0s").await;
    let garbage = (409, "garbage", "garbage");
    Refusal::new("in garbage", garbage)
        .check(&here, &api, "rejected")
        .await;
    bring(&api, "handled", "0", "gone", "0s").await;
    Refusal::new("handled", gone)
        .check(&here, &api, "handled")
        .await;
    let path = format!("/v1/topics/{TOPIC}/messages/handled");
    let reply = api.get(&path).await;
    assert!(
        reply.body.contains("acked"),
        "it does not say how it ended: {reply:?}"
    );

    let stats = here.stats().await;
    assert_eq!(Deployment::counter(&stats, "cancelled"), 4, "{stats:#}");
    consumer.process.kill9();
    here.conserved().await;
}
