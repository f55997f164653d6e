//! A consumer that sleeps longer than its lease.

use super::deployment::{STDOUT, TOPIC};
use super::{Deployment, SOON, lines};
use lisa_tests::{Answer, Webhook, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;

const HELD: usize = 10;

fn hook_sink(hook: &Webhook) -> String {
    format!(
        "concurrency = {HELD}\nsink = {{ type = \"http\", url = \"{}\", allow_private = true }}",
        hook.url()
    )
}

#[tokio::test]
async fn a_frozen_consumer_settles_nothing_of_what_another_one_holds_by_then() {
    let here = Deployment::start("lease = \"1s\"")
        .await
        .with("[shutdown]\ngrace = \"100ms\"");
    let relay = here.combined().await;
    // It answers well, but only when the consumer is frozen already.
    let late = Answer::status(200).after(Duration::from_secs(4));
    let answers = std::iter::repeat_n(late, HELD).chain(std::iter::repeat_n(Answer::hang(), HELD));
    let slow = Webhook::start(answers).await;
    let mut frozen = here.consumer(&hook_sink(&slow)).await;
    let messages: Vec<Value> = (0..HELD).map(|n| json!({ "payload": n })).collect();
    relay.api.batch(TOPIC, &messages).await;
    eventually(SOON, async || match slow.count() {
        HELD => Ok(()),
        other => Err(format!("{other} requests")),
    })
    .await;
    let first = here.held().await;
    assert_eq!(first.len(), 1, "{first:?}");
    frozen.process.stop();

    let stuck = Webhook::start(std::iter::repeat_n(Answer::hang(), HELD)).await;
    let mut holder = here.consumer(&hook_sink(&stuck)).await;
    // Messages that come again after a crash run alone, so most may stay on the stream, where the first one also finds
    // them.
    let (name, held) = eventually(SOON, async || match &here.held().await[..] {
        [(name, held)] if *name != first[0].0 => Ok((name.clone(), *held)),
        other => Err(format!("{other:?}, at first {first:?}")),
    })
    .await;
    let before = here.snapshot().await;

    frozen.process.cont();
    eventually(SOON, async || {
        let metrics = frozen.api.get("/metrics").await.body;
        let stale = metrics.lines().find(|line| {
            line.starts_with("lisa_deliveries_total") && line.contains("outcome=\"stale\"")
        });
        match stale {
            Some(line) if line.ends_with(&format!(" {HELD}")) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let after = here.held().await;
    let holds = |(of, count): &(String, u64)| *of == name && *count >= held;
    assert!(after.iter().any(holds), "{after:?}, before {held}");
    let after = here.snapshot().await;
    let payloads = format!("v1:{{{TOPIC}:0}}:payload");
    assert_eq!(after.hash(&payloads).len(), HELD, "{after}");
    assert_eq!(after.hash(&payloads), before.hash(&payloads));
    let stats = here.stats().await;
    assert_eq!(Deployment::counter(&stats, "acked"), 0, "{stats:#}");
    assert_eq!(stats["conservation_error"], 0, "{stats:#}");

    // Nothing is stuck: when both are gone, a third one gets all of them, each once.
    frozen.stop().await;
    holder.stop().await;
    let mut third = here.consumer(STDOUT).await;
    let lines = lines(&mut third, HELD, SOON).await;
    assert_eq!(super::by_id(&lines).len(), HELD);
    // Nothing was charged, so each is still due when its message was.
    for request in slow.requests().iter().take(HELD) {
        let (id, due) = (request.header("webhook-id"), request.header("lisa-due-at"));
        let line = lines.iter().find(|line| line.id == id);
        let line = line.expect("a line of each");
        assert_eq!((line.attempt, line.due_at.as_str()), (1, due));
        assert!(line.lateness_ms > 1000, "{line:?}");
    }
    here.drained().await;
    here.conserved().await;
}

#[tokio::test]
async fn a_consumer_that_wakes_up_starts_nothing_that_was_rescheduled_while_it_was_frozen() {
    let here = Deployment::start("lease = \"4s\"").await;
    let relay = here.combined().await;
    let mut frozen = here.consumer(STDOUT).await;
    // Delivered to the connection of a process that does not run: by a read that began before.
    let mut taken = None;
    for n in 0..20 {
        let id = format!("m{n}");
        frozen.process.stop();
        let sent = relay.api.send(TOPIC, "x", &[("Lisa-Id", &id)]).await;
        sent.expect(202);
        if Deployment::count(&here.stats().await, "in_flight") == 1 {
            taken = Some(id);
            break;
        }
        // Its read was over; the next one finds the message.
        frozen.process.cont();
        lines(&mut frozen, 1, SOON).await;
    }
    let id = taken.expect("a read that waits");
    let post = async |verb: &str| {
        let path = format!("/v1/topics/{TOPIC}/{verb}");
        let reply = relay.api.call(Method::POST, &path, &Value::Null).await;
        reply.expect(200);
    };
    // So that a message that comes back when the lease is over stays where it can be rescheduled.
    post("pause").await;
    let path = format!("/v1/topics/{TOPIC}/messages/{id}");
    let later = json!({ "delay": "1h" });
    eventually(SOON, async || {
        let reply = relay.api.call(Method::PATCH, &path, &later).await;
        match reply.status {
            200 => Ok(()),
            other => Err(format!("{other}: {}", reply.body)),
        }
    })
    .await;
    frozen.process.cont();
    post("resume").await;
    let sent = relay.api.send(TOPIC, "x", &[("Lisa-Id", "last")]).await;
    sent.expect(202);
    let came = lines(&mut frozen, 1, SOON).await;
    assert_eq!(came[0].id, "last");
    let cancelled = relay.api.call(Method::DELETE, &path, &Value::Null).await;
    cancelled.expect(200);
    here.drained().await;
    here.conserved().await;
}
