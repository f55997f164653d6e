//! Targets that fail, refuse, and ask for call_timeout.

use super::deployment::TOPIC;
use super::{Deployment, Role, SOON};
use lisa_tests::webhook::Recorded;
use lisa_tests::{Answer, Binary, Stopwatch, Webhook, eventually};
use serde_json::Value;
use std::time::Duration;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// The first pause after a failure; each one after that is twice as long.
const BASE: Duration = Duration::from_millis(300);
/// The extra time that may follow a pause.
const SLACK: Duration = Duration::from_millis(600);
const RETRY: &str = r#"max_attempts = 5
            retry = { base = "300ms", factor = 2.0, max = "10s", jitter = 0.0 }"#;

/// A relay whose consumer posts to a target that gives these answers.
async fn relay(answers: Vec<Answer>) -> (Deployment, Webhook, Role, Role) {
    relay_with(RETRY, answers, "").await
}

/// Like [`relay`], with other settings of the topic, and further keys of the sink.
async fn relay_with(
    topic: &str,
    answers: Vec<Answer>,
    keys: &str,
) -> (Deployment, Webhook, Role, Role) {
    let here = Deployment::start(topic).await;
    let hook = Webhook::start(answers).await;
    let sink = format!(
        "sink = {{ type = \"http\", url = \"{}\", secret = \"{SECRET}\", allow_private = true{keys} }}",
        hook.url()
    );
    let relay = here.combined().await;
    let consumer = here.consumer(&sink).await;
    (here, hook, relay, consumer)
}

/// Waits for this many requests in all, and returns them.
#[track_caller]
fn requests(hook: &Webhook, count: usize) -> impl Future<Output = Vec<Recorded>> {
    eventually(SOON, async move || match hook.count() {
        seen if seen == count => Ok(hook.requests()),
        seen => Err(format!("{seen} requests")),
    })
}

/// The pauses between requests.
fn gaps(requests: &[Recorded]) -> Vec<Duration> {
    let gap = |pair: &[Recorded]| pair[1].at.duration_since(pair[0].at).unwrap_or_default();
    requests.windows(2).map(gap).collect()
}

/// Checks that a pause is as long as it should be, and not much longer.
#[track_caller]
fn paused(watch: &Stopwatch, gap: Duration, pause: Duration) {
    // A few ms less: the answer travels back before the pause begins, the next request out after it ends.
    assert!(
        gap + Duration::from_millis(5) >= pause,
        "{gap:?} instead of {pause:?}"
    );
    watch.assert_took(gap, pause, SLACK);
}

async fn garbage(here: &Deployment) -> Vec<Value> {
    let (code, page) = here
        .json(Binary::Manager, &["garbage", "list", TOPIC])
        .await;
    assert_eq!(code, 0, "{page}");
    page["messages"].as_array().cloned().unwrap_or_default()
}

#[tokio::test]
async fn a_failing_webhook_is_tried_again_by_the_policy_and_every_attempt_is_signed() {
    let failing = vec![Answer::status(500), Answer::status(500)];
    let (here, hook, relay, _consumer) = relay(failing).await;
    let options = [("Lisa-Id", "order-7"), ("Content-Type", "application/json")];
    let watch = Stopwatch::start();
    relay
        .api
        .send(TOPIC, "{\"order\": 7}", &options)
        .await
        .expect(202);

    let requests = requests(&hook, 3).await;
    let gaps = gaps(&requests);
    paused(&watch, gaps[0], BASE);
    paused(&watch, gaps[1], 2 * BASE);
    let verifier = standardwebhooks::Webhook::new(SECRET).expect("a key");
    for (number, request) in requests.iter().enumerate() {
        verifier
            .verify(&request.body, &request.headers)
            .expect("a good signature");
        assert_eq!(request.header("webhook-id"), "order-7");
        assert_eq!(request.header("lisa-attempt"), (number + 1).to_string());
        assert_eq!(request.header("lisa-topic"), TOPIC);
        assert_eq!(request.header("content-type"), "application/json");
        assert_eq!(&request.body[..], b"{\"order\": 7}");
    }
    let stats = here.drained().await;
    assert_eq!(Deployment::counter(&stats, "acked"), 1, "{stats:#}");
    assert_eq!(Deployment::counter(&stats, "retried"), 2, "{stats:#}");
    assert_eq!(hook.count(), 3);
    here.conserved().await;
}

#[tokio::test]
async fn what_always_fails_is_in_garbage_with_its_last_error_and_a_requeue_delivers_it() {
    let failing = vec![
        Answer::status(500).body("first"),
        Answer::status(500).body("second"),
    ];
    let (here, hook, relay, _consumer) = relay(failing).await;
    let options = [("Lisa-Id", "order-7"), ("Lisa-Max-Attempts", "2")];
    relay.api.send(TOPIC, "7", &options).await.expect(202);

    here.settled(&[("garbage", 1), ("in_flight", 0)]).await;
    let listed = garbage(&here).await;
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0]["id"], "order-7", "{listed:?}");
    assert_eq!(listed[0]["reason"], "exhausted", "{listed:?}");
    assert_eq!(listed[0]["attempt"], 2, "{listed:?}");
    let error = listed[0]["error"].as_str().unwrap_or_default();
    assert!(
        error.contains("500") && error.contains("second"),
        "{listed:?}"
    );
    assert_eq!(hook.count(), 2);

    let requeue = ["garbage", "requeue", TOPIC, "order-7"];
    let (code, swept) = here.json(Binary::Manager, &requeue).await;
    assert_eq!((code, &swept["done"]), (0, &1.into()), "{swept}");
    let requests = requests(&hook, 3).await;
    assert_eq!(requests[2].header("webhook-id"), "order-7");
    assert_eq!(
        requests[2].header("lisa-attempt"),
        "1",
        "attempts begin again"
    );
    let stats = here.drained().await;
    assert_eq!(Deployment::counter(&stats, "acked"), 1, "{stats:#}");
    assert_eq!(Deployment::count(&stats, "garbage"), 0, "{stats:#}");
    // There is nothing left to requeue, and the verb says so.
    let again = here.verb(Binary::Manager, &requeue).await;
    assert_eq!(again.code, Some(1), "{again:?}");
    here.conserved().await;
}

#[tokio::test]
async fn a_rejected_message_gets_no_second_attempt() {
    let answer = Answer::status(422).header("Lisa-Outcome", "reject");
    let (here, hook, relay, _consumer) = relay(vec![answer.body("no such order")]).await;
    relay
        .api
        .send(TOPIC, "7", &[("Lisa-Id", "order-7")])
        .await
        .expect(202);
    here.settled(&[("garbage", 1), ("in_flight", 0), ("retry", 0)])
        .await;
    let listed = garbage(&here).await;
    assert_eq!(listed[0]["reason"], "rejected", "{listed:?}");
    assert_eq!(listed[0]["attempt"], 1, "{listed:?}");
    let error = listed[0]["error"].as_str().unwrap_or_default();
    assert!(
        error.contains("422") && error.contains("no such order"),
        "{listed:?}"
    );
    assert_eq!(hook.count(), 1);
    here.conserved().await;
}

#[tokio::test]
async fn a_webhook_under_load_is_left_alone_for_as_long_as_it_asks() {
    let (here, hook, relay, _consumer) =
        relay(vec![Answer::status(429).header("Retry-After", "1")]).await;
    let watch = Stopwatch::start();
    relay.api.send(TOPIC, "7", &[]).await.expect(202);
    let gaps = gaps(&requests(&hook, 2).await);
    paused(&watch, gaps[0], Duration::from_secs(1));
    here.drained().await;
    here.conserved().await;
}

#[tokio::test]
async fn to_be_asked_again_later_is_an_attempt_or_none_as_the_sink_says() {
    for (word, attempt, retried, deferred) in [("retry", "2", 1, 0), ("defer", "1", 0, 1)] {
        let later = vec![Answer::status(503).header("Retry-After", "1")];
        let keys = format!(", retry_after = \"{word}\"");
        let (here, hook, relay, _consumer) = relay_with(RETRY, later, &keys).await;
        let watch = Stopwatch::start();
        relay.api.send(TOPIC, "7", &[]).await.expect(202);
        let requests = requests(&hook, 2).await;
        paused(&watch, gaps(&requests)[0], Duration::from_secs(1));
        assert_eq!(requests[0].header("lisa-attempt"), "1");
        assert_eq!(requests[1].header("lisa-attempt"), attempt, "{word}");
        let stats = here.drained().await;
        let counted = ["retried", "deferred"].map(|name| Deployment::counter(&stats, name));
        assert_eq!(counted, [retried, deferred], "{word}: {stats:#}");
        here.conserved().await;
    }
}

#[tokio::test]
async fn a_message_has_its_own_retry_policy_and_its_own_number_of_attempts() {
    // The topic would retry it once more, after an hour.
    let topic = r#"max_attempts = 2
        retry = { base = "1h", max = "1h", jitter = 0.0 }"#;
    let failing = vec![Answer::status(500); 5];
    let (here, hook, relay, _consumer) = relay_with(topic, failing, "").await;
    let policy = r#"{"kind":"list","delays":["200ms","700ms"],"jitter":0.0}"#;
    let options = [
        ("Lisa-Id", "own"),
        ("Lisa-Retry", policy),
        ("Lisa-Max-Attempts", "4"),
    ];
    let watch = Stopwatch::start();
    relay.api.send(TOPIC, "7", &options).await.expect(202);
    let requests = requests(&hook, 4).await;
    for (gap, pause) in gaps(&requests).into_iter().zip([200, 700, 700]) {
        paused(&watch, gap, Duration::from_millis(pause));
    }
    here.settled(&[("garbage", 1), ("in_flight", 0)]).await;
    let listed = garbage(&here).await;
    assert_eq!(listed[0]["reason"], "exhausted", "{listed:?}");
    assert_eq!(listed[0]["attempt"], 4, "{listed:?}");
    let path = format!("/v1/topics/{TOPIC}/messages/own");
    let seen = relay.api.get_json(&path).await;
    assert_eq!(seen["max_attempts"], 4, "{seen}");
    assert_eq!(seen["retry"]["kind"], "list", "{seen}");

    // An answer without a delay is retried as the topic says.
    let options = [("Lisa-Id", "plain")];
    relay.api.send(TOPIC, "7", &options).await.expect(202);
    here.settled(&[("retry", 1), ("garbage", 1)]).await;
    assert_eq!(hook.count(), 5);
    here.conserved().await;
}
