//! Features at once: keys, groups, windows, rates, priorities, merging, expiry and pauses of one topic. Also the
//! results of a verb on a message that is in a different state in each group.

use super::deployment::{GROUP, TOPIC};
use super::verbs::is;
use super::workers::Workers;
use super::{Deployment, Role, SOON};
use lisa_consumer::{Delivery, Outcome};
use lisa_tests::{Api, Binary, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::Semaphore;

const OTHER: &str = "audit";

/// Consumers that record what they handle, and are slow with payloads called `slow`.
#[derive(Clone)]
struct Desk {
    handled: Arc<Mutex<Vec<String>>>,
    go: Arc<Semaphore>,
}

impl Desk {
    fn new() -> Self {
        Self {
            handled: Arc::default(),
            go: Arc::new(Semaphore::new(0)),
        }
    }

    async fn open(&self, here: &Deployment, group: &str) -> Workers {
        let desk = self.clone();
        let work = move |delivery: Delivery| {
            let desk = desk.clone();
            async move {
                let id = delivery.id.to_string();
                if id.starts_with("slow") {
                    desk.go.acquire().await.expect("never closed").forget();
                }
                desk.handled.lock().unwrap().push(id);
                Outcome::Ack
            }
        };
        Workers::start(here, group, (1, 8), work).await
    }

    fn handled(&self) -> Vec<String> {
        self.handled.lock().unwrap().clone()
    }

    #[track_caller]
    fn had(&self, ids: &[&str]) -> impl Future<Output = ()> {
        eventually(SOON, async move || {
            let handled = self.handled();
            if handled == ids {
                Ok(())
            } else {
                Err(format!("{handled:?}"))
            }
        })
    }
}

async fn send(api: &Api, id: &str, options: &[(&str, &str)]) {
    let options = [&[("Lisa-Id", id)], options].concat();
    api.send(TOPIC, id, &options).await.expect(202);
}

async fn post(api: &Api, path: &str) {
    let path = format!("/v1/topics/{TOPIC}/{path}");
    api.call(Method::POST, &path, &Value::Null)
        .await
        .expect(200);
}

/// The state of a message in each group.
async fn states(api: &Api, id: &str) -> BTreeMap<String, String> {
    let seen = api
        .get_json(&format!("/v1/topics/{TOPIC}/messages/{id}"))
        .await;
    let copies = seen["groups"].as_array().cloned().unwrap_or_default();
    let text = |copy: &Value, name: &str| copy[name].as_str().unwrap_or_default().to_owned();
    let copies = copies
        .iter()
        .map(|copy| (text(copy, "group"), text(copy, "state")));
    copies.collect()
}

/// Waits until a message has these states in the two groups.
#[track_caller]
fn are(api: &Api, id: &str, group: &str, other: &str) -> impl Future<Output = ()> {
    let wanted =
        BTreeMap::from([(GROUP, group), (OTHER, other)].map(|(a, b)| (a.to_owned(), b.to_owned())));
    eventually(SOON, async move || {
        let states = states(api, id).await;
        if states == wanted {
            Ok(())
        } else {
            Err(format!("{id}: {states:?}"))
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_topic_holds_the_next_message_of_a_key_when_the_one_before_is_done() {
    let here = Deployment::start("").await;
    let Role {
        process: _relay,
        api,
    } = here.combined().await;
    let desk = Desk::new();
    let workers = desk.open(&here, GROUP).await;
    send(&api, "slow", &[("Lisa-Key", "k")]).await;
    is(&api, "slow", "in_flight").await;
    send(&api, "next", &[("Lisa-Key", "k")]).await;
    is(&api, "next", "parked").await;
    post(&api, "pause").await;
    desk.go.add_permits(1);
    desk.had(&["slow"]).await;
    is(&api, "next", "backlog").await;
    let verb = ["messages", "show", TOPIC, "next"];
    let (_, shown) = here.json(Binary::Manager, &verb).await;
    assert_eq!(
        shown["groups"][0]["why"], "held back; the topic is paused",
        "{shown}"
    );
    // Even a new due time does not get it past the pause.
    post(&api, "messages/next/deliver-now").await;
    is(&api, "next", "waiting").await;
    assert_eq!(desk.handled(), ["slow"]);
    post(&api, "resume").await;
    desk.had(&["slow", "next"]).await;
    here.drained().await;
    workers.stop().await;
    here.conserved().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_head_lets_the_rest_of_its_key_go_on() {
    for on_expired in ["drop", "garbage"] {
        let settings = format!("on_expired = \"{on_expired}\"\nrate = \"200/s\"\nmax_ready = 5");
        let here = Deployment::start(&settings).await.groups(&[GROUP, OTHER]);
        let Role {
            process: _relay,
            api,
        } = here.combined().await;
        post(&api, "pause").await;
        let keyed = ("Lisa-Key", "k");
        send(&api, "first", &[keyed, ("Lisa-Ttl", "1ms")]).await;
        send(
            &api,
            "second",
            &[keyed, ("Lisa-Ttl", "1ms"), ("Lisa-Priority", "9")],
        )
        .await;
        send(&api, "third", &[keyed, ("Lisa-Merge-Key", "m")]).await;
        post(&api, "resume").await;
        let desks = [Desk::new(), Desk::new()];
        for (desk, group) in desks.iter().zip([GROUP, OTHER]) {
            let workers = desk.open(&here, group).await;
            desk.had(&["third"]).await;
            workers.stop().await;
        }
        let stats = here.drained().await;
        let ended = if on_expired == "drop" {
            ("expired", 0)
        } else {
            ("lapsed", 4)
        };
        assert_eq!(Deployment::counter(&stats, ended.0), 4, "{stats:#}");
        assert_eq!(Deployment::count(&stats, "garbage"), ended.1, "{stats:#}");
        here.conserved().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_group_works_on_no_verb_takes_from_the_other() {
    let here = Deployment::start("").await.groups(&[GROUP, OTHER]);
    let Role {
        process: _relay,
        api,
    } = here.combined().await;
    post(&api, &format!("groups/{OTHER}/pause")).await;
    let desk = Desk::new();
    let workers = desk.open(&here, GROUP).await;
    send(&api, "slow", &[]).await;
    are(&api, "slow", "in_flight", "backlog").await;

    let path = format!("/v1/topics/{TOPIC}/messages/slow");
    let later = json!({ "delay": "1h" });
    let replacement = [("Lisa-Id", "new"), ("Lisa-Replace", "slow")];
    let refused = [
        api.call(Method::DELETE, &path, &Value::Null).await,
        api.call(Method::PATCH, &path, &later).await,
        api.call(Method::POST, &format!("{path}/deliver-now"), &Value::Null)
            .await,
        api.send(TOPIC, "new", &replacement).await,
    ];
    for reply in refused {
        assert_eq!(reply.expect(409).json()["code"], "in_flight");
    }
    is(&api, "new", "gone").await;
    are(&api, "slow", "in_flight", "backlog").await;

    // When one group is done, the rest belongs to the other alone.
    desk.go.add_permits(1);
    are(&api, "slow", "done", "backlog").await;
    let put_off = api.call(Method::PATCH, &path, &later).await.expect(200);
    assert_eq!(put_off.json()["outcome"], "rescheduled");
    are(&api, "slow", "done", "retry").await;
    let cancelled = api
        .call(Method::DELETE, &path, &Value::Null)
        .await
        .expect(200);
    assert_eq!(cancelled.json()["payload"], "slow");
    is(&api, "slow", "gone").await;
    let stats = here.drained().await;
    assert_eq!(Deployment::counter(&stats, "cancelled"), 1, "{stats:#}");
    assert_eq!(Deployment::counter(&stats, "acked"), 1, "{stats:#}");
    workers.stop().await;
    here.conserved().await;
}
