//! The options of a message in each way of sending: HTTP, a line of a batch, the command line, an import, and the Rust
//! library. They must all mean the same, even when they are mixed.

use super::deployment::{STDOUT, TOPIC};
use super::{Deployment, Role, SOON, lines, millis};
use lisa_core::broker::Broker;
use lisa_core::time::{UnixMs, parse_duration};
use lisa_producer::{NewMessage, Producer};
use lisa_tests::{Api, Binary};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const WAYS: [Way; 5] = [Way::Http, Way::Batch, Way::Cli, Way::Import, Way::Library];

/// A way of sending a message.
#[derive(Clone, Copy, Debug)]
enum Way {
    Http,
    Batch,
    Cli,
    Import,
    Library,
}

/// The options of a message.
#[derive(Clone, Debug, Default)]
struct Wish {
    id: String,
    key: Option<String>,
    merge_key: Option<String>,
    priority: i32,
    ttl: Option<String>,
    at: Option<String>,
}

impl Wish {
    fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            ..Self::default()
        }
    }

    /// Its names and values, as a line of a batch has them.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![("id", self.id.clone())];
        let priority = (self.priority != 0).then(|| self.priority.to_string());
        for (name, value) in [
            ("key", &self.key),
            ("merge_key", &self.merge_key),
            ("priority", &priority),
            ("ttl", &self.ttl),
            ("deliver_at", &self.at),
        ] {
            fields.extend(value.clone().map(|value| (name, value)));
        }
        fields
    }

    fn line(&self) -> Value {
        let mut line = json!({ "payload": self.id });
        for (name, value) in self.fields() {
            line[name] = match name {
                "priority" => json!(self.priority),
                _ => json!(value),
            };
        }
        line
    }
}

/// An instant as senders write it, from ms since the epoch.
fn instant(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms)
        .expect("an instant")
        .to_string()
}

/// A deployment, and the means to send to it.
struct Senders {
    here: Deployment,
    relay: Role,
    broker: Broker,
}

impl Senders {
    async fn start(topic: &str) -> Self {
        let here = Deployment::start(topic).await;
        let relay = here.combined().await;
        let broker = here.broker().await;
        Self {
            here,
            relay,
            broker,
        }
    }

    fn api(&self) -> &Api {
        &self.relay.api
    }

    async fn post(&self, verb: &str) {
        let path = format!("/v1/topics/{TOPIC}/{verb}");
        let reply = self.api().call(Method::POST, &path, &Value::Null).await;
        reply.expect(200);
    }

    async fn get(&self, id: &str) -> Value {
        let path = format!("/v1/topics/{TOPIC}/messages/{id}");
        self.api().get_json(&path).await
    }

    /// Sends a message; returns the outcome, and the id in the receipt where there is one for each message.
    async fn send(&self, way: Way, wish: &Wish) -> (String, Option<String>) {
        let receipt = match way {
            Way::Http => {
                let named: Vec<(String, String)> = wish
                    .fields()
                    .into_iter()
                    .map(|(name, value)| (format!("Lisa-{}", name.replace('_', "-")), value))
                    .collect();
                let headers: Vec<(&str, &str)> = named
                    .iter()
                    .map(|(name, value)| (name.as_str(), value.as_str()))
                    .collect();
                let reply = self.api().send(TOPIC, wish.id.as_str(), &headers).await;
                reply.expect(202).json()
            }
            Way::Batch => self.api().batch(TOPIC, &[wish.line()]).await.remove(0),
            Way::Cli => {
                let flags: Vec<String> = wish
                    .fields()
                    .into_iter()
                    .map(|(name, value)| match name {
                        "deliver_at" => format!("--at={value}"),
                        name => format!("--{}={value}", name.replace('_', "-")),
                    })
                    .collect();
                let mut arguments = vec!["send", TOPIC, wish.id.as_str()];
                arguments.extend(flags.iter().map(String::as_str));
                let (code, receipt) = self.here.json(Binary::Producer, &arguments).await;
                assert_eq!(code, 0, "{receipt}");
                receipt
            }
            Way::Import => {
                let file = tempfile::NamedTempFile::new().expect("a file");
                std::fs::write(file.path(), format!("{}\n", wish.line())).expect("written");
                let path = file.path().to_str().expect("a readable path");
                let (code, counts) = self
                    .here
                    .json(Binary::Producer, &["import", TOPIC, path])
                    .await;
                assert_eq!((code, &counts["lines"]), (0, &json!(1)), "{counts}");
                assert_eq!(counts["accepted"], 1, "{counts}");
                let outcome = if counts["merged"] == 1 {
                    "merged"
                } else {
                    "waiting"
                };
                return (outcome.to_owned(), None);
            }
            Way::Library => {
                let mut message = NewMessage::new(wish.id.clone())
                    .id(&wish.id)
                    .priority(wish.priority);
                if let Some(key) = &wish.key {
                    message = message.key(key);
                }
                if let Some(key) = &wish.merge_key {
                    message = message.merge_key(key);
                }
                if let Some(ttl) = &wish.ttl {
                    message = message.ttl(parse_duration(ttl).expect("a duration"));
                }
                if let Some(at) = &wish.at {
                    message = message.at(at.parse::<UnixMs>().expect("an instant"));
                }
                let producer = Producer::new(self.broker.clone());
                let receipt = producer.send_message(TOPIC, message).await.expect("sent");
                json!({ "id": receipt.id.as_str(), "outcome": receipt.outcome.as_str() })
            }
        };
        let text = |name: &str| receipt[name].as_str().unwrap_or_default().to_owned();
        (text("outcome"), Some(text("id")))
    }
}

#[tokio::test]
async fn each_way_of_sending_says_the_same_and_merges_with_each_other() {
    let senders = Senders::start("").await;
    let tomorrow = jiff::Timestamp::now().as_millisecond() + 24 * 3_600_000;
    let mut merged = 0;
    for (n, way) in WAYS.into_iter().enumerate() {
        let wish = Wish {
            key: Some(format!("key {n}")),
            merge_key: Some(format!("merge {n}")),
            priority: [i32::MIN, -1, 1, 42, i32::MAX][n],
            ttl: Some(format!("{}h", n + 1)),
            at: Some(instant(tomorrow)),
            ..Wish::new(&format!("{way:?}"))
        };
        let (outcome, id) = senders.send(way, &wish).await;
        assert_eq!(outcome, "waiting", "{way:?}");
        assert!(id.is_none_or(|id| id == wish.id), "{way:?}");
        let stored = senders.get(&wish.id).await;
        assert_eq!(stored["key"], json!(wish.key), "{way:?}: {stored}");
        assert_eq!(
            stored["merge_key"],
            json!(wish.merge_key),
            "{way:?}: {stored}"
        );
        assert_eq!(
            stored["priority"],
            json!(wish.priority),
            "{way:?}: {stored}"
        );
        let due = millis(stored["due_at"].as_str().unwrap_or_default());
        assert_eq!(due, tomorrow, "{way:?}: {stored}");
        let expires = millis(stored["expires_at"].as_str().unwrap_or_default());
        assert_eq!(
            expires,
            tomorrow + 3_600_000 * (n as i64 + 1),
            "{way:?}: {stored}"
        );

        for (m, again) in WAYS.into_iter().enumerate() {
            let later = Wish {
                id: format!("{}-{again:?}", wish.id),
                priority: 1000 + m as i32,
                ttl: Some(format!("{}m", m + 1)),
                ..wish.clone()
            };
            let (outcome, id) = senders.send(again, &later).await;
            assert_eq!(outcome, "merged", "{way:?}, then {again:?}");
            assert!(id.is_none_or(|id| id == wish.id), "{way:?}, then {again:?}");
            // The last one's payload and options.
            let stands = senders.get(&wish.id).await;
            let payload = stands["payload"].as_str().unwrap_or_default();
            assert_eq!(payload.trim_matches('"'), later.id, "{stands}");
            assert_eq!(stands["priority"], json!(later.priority), "{stands}");
            let expires = millis(stands["expires_at"].as_str().unwrap_or_default());
            assert_eq!(expires, tomorrow + 60_000 * (m as i64 + 1), "{stands}");
            merged += 1;
        }
        // The same merge key with another ordering key, or with none, is another one.
        for (m, key) in [None, Some("another".to_owned())].into_iter().enumerate() {
            let beside = Wish {
                id: format!("{way:?}-beside-{m}"),
                key,
                ..wish.clone()
            };
            assert_eq!(senders.send(way, &beside).await.0, "waiting", "{way:?}");
        }
    }
    let stats = senders.here.stats().await;
    assert_eq!(Deployment::counter(&stats, "merged"), merged, "{stats:#}");
    assert_eq!(Deployment::count(&stats, "waiting"), 3 * WAYS.len() as u64);
    senders.here.conserved().await;
}

#[tokio::test]
async fn of_what_is_overdue_the_most_urgent_goes_first_whichever_way_it_was_sent() {
    const LEVELS: [i32; 4] = [i32::MIN, -1, 0, i32::MAX];
    let senders = Senders::start("max_ready = 1").await;
    senders.post("pause").await;
    // Each way sends each level, with one message of each level due before those of the other ways and one due after
    // them.
    let mut wanted = Vec::new();
    for (n, way) in WAYS.into_iter().enumerate() {
        for (m, priority) in LEVELS.into_iter().enumerate() {
            let due = jiff::Timestamp::now().as_millisecond() + 200 - 20 * n as i64;
            let wish = Wish {
                priority,
                at: Some(instant(due)),
                ..Wish::new(&format!("{way:?}-{m}"))
            };
            assert_eq!(senders.send(way, &wish).await.0, "waiting");
            let due = senders.get(&wish.id).await["due_at"].clone();
            let due = millis(due.as_str().unwrap_or_default());
            // If two have no options and are due in the same millisecond, their order of arrival is not recorded.
            let arrival = if priority == 0 { 0 } else { wanted.len() };
            wanted.push((-i64::from(priority), due, arrival, wish.id));
        }
    }
    wanted.sort();
    // No more than one call of a mover takes at once, so that it has them all before the first one is picked.
    let last = wanted
        .iter()
        .map(|(_, due, ..)| *due)
        .max()
        .unwrap_or_default();
    while jiff::Timestamp::now().as_millisecond() <= last {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    senders.post("resume").await;
    let mut consumer = senders
        .here
        .consumer("concurrency = 1\nsink = { type = \"stdout\" }")
        .await;
    let came = lines(&mut consumer, wanted.len(), SOON).await;
    let came: Vec<&str> = came.iter().map(|line| line.id.as_str()).collect();
    let wanted: Vec<&str> = wanted.iter().map(|(.., id)| id.as_str()).collect();
    assert_eq!(came, wanted);
    senders.here.drained().await;
    senders.here.conserved().await;
}

#[tokio::test]
async fn an_urgent_message_waits_for_no_more_than_the_window() {
    const WINDOW: usize = 3;
    const LESS_URGENT: usize = 30;
    let senders = Senders::start(&format!("max_ready = {WINDOW}")).await;
    let often: Vec<Value> = (0..LESS_URGENT)
        .map(|n| Wish::new(&format!("m{n}")).line())
        .collect();
    senders.api().batch(TOPIC, &often).await;
    let backlog = (LESS_URGENT - WINDOW) as u64;
    senders
        .here
        .settled(&[("ready", WINDOW as u64), ("backlog", backlog)])
        .await;
    let urgent = Wish {
        priority: 1,
        ..Wish::new("urgent")
    };
    senders.send(Way::Http, &urgent).await;
    senders.here.settled(&[("backlog", backlog + 1)]).await;
    let mut consumer = senders.here.consumer(STDOUT).await;
    let came = lines(&mut consumer, LESS_URGENT + 1, SOON).await;
    let urgent = came.iter().find(|line| line.id == "urgent");
    let urgent = urgent.expect("it came").delivered_at();
    // By their deliveries: the handlers of a window run at once, so they may end in any order.
    let before = came.iter().filter(|line| line.delivered_at() < urgent);
    assert!(before.count() < 2 * WINDOW, "{came:?}");
    let ids: BTreeSet<&str> = came.iter().map(|line| line.id.as_str()).collect();
    assert_eq!(ids.len(), LESS_URGENT + 1, "each once");
    senders.here.drained().await;
    senders.here.conserved().await;
}
