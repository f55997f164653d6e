//! A producer killed during a request; the client gets no answer, and asks again.

use super::calls::Side::{self, Before, Behind};
use super::cell::{Cell, TOPIC};
use super::{COUNT, Scene};
use crate::faults::role;
use Scene::{Batch, Cancel, Keyed, Reschedule, Send};
use lisa_tests::relay::ms;
use lisa_tests::{Api, Binary};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

/// Returns the request to a producer when it is killed, and again when it is back.
fn ask(scene: Scene, api: &Api) -> RequestBuilder {
    let messages = format!("/v1/topics/{TOPIC}/messages");
    let post = |path: &str| api.request(Method::POST, path);
    match scene {
        Send => post(&messages).header("Lisa-Id", "even-0").body("x"),
        Keyed => {
            let asked = post(&messages).header("Lisa-Id", "even-0").body("x");
            asked.header("Lisa-Key", "even")
        }
        Batch => {
            let line = |number| json!({ "id": format!("even-{number}"), "payload": number });
            let lines = (0..COUNT).map(|number| format!("{}\n", line(number)));
            post(&format!("{messages}:batch"))
                .header("Content-Type", "application/x-ndjson")
                .body(lines.collect::<String>())
        }
        Cancel => api.request(Method::DELETE, &format!("{messages}/even-0")),
        Reschedule => {
            let asked = api.request(Method::PATCH, &format!("{messages}/even-0"));
            asked.json(&json!({ "delay": "300ms" }))
        }
        other => panic!("{other:?} is no producer's"),
    }
}

pub(super) async fn run(cell: Cell<'_>, scene: Scene, call: &'static str, side: Side) {
    let config = cell.config();
    let manager = role::Role::manager(&config).await;
    cell.declared(&manager.broker).await;
    let mut victim = cell.victim(Binary::Producer);
    victim.ready().await;
    if matches!(scene, Cancel | Reschedule) {
        let options = [("Lisa-Id", "even-0"), ("Lisa-Delay", "1h")];
        victim.api.send(TOPIC, "x", &options).await.expect(202);
    }
    match scene {
        Batch => (0..COUNT).for_each(|number| cell.expect(&format!("even-{number}"), ms(0))),
        Cancel => {}
        Reschedule => cell.expect("even-0", ms(300)),
        _ => cell.expect("even-0", ms(0)),
    }
    cell.calls.hold(call, side);
    let asked = ask(scene, &victim.api);
    let asked = tokio::spawn(async move { asked.send().await?.text().await });
    cell.kill(&mut victim).await;
    assert!(asked.await.unwrap().is_err(), "{}", cell.what);

    // The client that got no answer asks again.
    let back = cell.again(Binary::Producer).await;
    let answer = ask(scene, &back.api).send().await.unwrap();
    let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
    let first: Value = serde_json::from_str(text.lines().next().unwrap_or_default()).unwrap();
    let told = (status, first["outcome"].as_str().unwrap_or_default());
    let wanted = match (scene, side) {
        // Either request may have cancelled it.
        (Cancel, _) => (200, "cancelled"),
        (Reschedule, Before) => (200, "rescheduled"),
        // By now it may be due.
        (Reschedule, Behind) => told,
        (Batch, Before) => (200, "ready"),
        (Batch, Behind) => (200, "duplicate"),
        (Keyed, Before) => (202, "waiting"),
        (_, Before) => (202, "ready"),
        (_, Behind) => (202, "duplicate"),
    };
    assert_eq!(told, wanted, "{}: {text}", cell.what);
    let consumer = cell.consumer(&config).await;
    cell.finish(&manager.broker, 0, 1, false).await;
    consumer.stop().await;
    manager.stop().await;
}
