//! Workers that pull: each from its own gateway. While that one does not answer, the worker settles at the other.

use crate::journal::Journal;
use crate::plan::{self, GATEWAYS, Plan, Topic};
use crate::record::Record;
use crate::target;
use crate::wire::answer;
use reqwest::Client;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// The lease of each delivery, extended at this interval.
const LEASE: Duration = Duration::from_secs(3);
const EXTEND: Duration = Duration::from_secs(1);
/// The largest number of messages in one pull, and how long it waits for the first one.
const MAX: usize = 50;
const WAIT: Duration = Duration::from_secs(1);
/// The longest wait for the answer to a pull, in addition to [`WAIT`]: a gateway waits two seconds for Redis.
const ANSWER: Duration = Duration::from_secs(4);
/// The longest wait for one gateway before the other one is called: both get a turn within a lease.
const TURN: Duration = Duration::from_millis(1400);
/// The pause before a worker tries again.
const PAUSE: Duration = Duration::from_millis(100);

/// Starts a worker for each gateway, in `tasks`; the ports are in the order of [`GATEWAYS`].
pub(crate) fn start(ports: [u16; GATEWAYS.len()], journal: &Arc<Journal>, tasks: &mut JoinSet<()>) {
    for (index, process) in GATEWAYS.into_iter().enumerate() {
        let mut ports = ports.to_vec();
        ports.rotate_left(index);
        let client = Client::builder()
            .timeout(WAIT + ANSWER)
            .no_proxy()
            .tls_certs_only([])
            .build();
        let worker = Arc::new(Worker {
            process,
            ports,
            client: client.expect("the HTTP client is built"),
            journal: journal.clone(),
        });
        tasks.spawn(worker.work());
    }
}

struct Worker {
    /// Its gateway.
    process: &'static str,
    /// The port of its gateway, then the others.
    ports: Vec<u16>,
    client: Client,
    journal: Arc<Journal>,
}

/// A delivery whose handler has begun.
struct Delivery {
    number: u64,
    attempt: u32,
    plan: Plan,
    token: String,
}

impl Worker {
    async fn work(self: Arc<Self>) {
        let mut handlers = JoinSet::new();
        loop {
            let deliveries = self.pull().await;
            if deliveries.is_empty() {
                sleep(PAUSE).await;
            }
            let is_quick = |delivery: &Delivery| !matches!(delivery.plan, Plan::Work(1..));
            let (quick, slow): (Vec<_>, Vec<_>) = deliveries.into_iter().partition(is_quick);
            for together in slow
                .into_iter()
                .map(|delivery| vec![delivery])
                .chain([quick])
            {
                let worker = self.clone();
                handlers.spawn(async move { worker.handle(together).await });
            }
            while let Some(ended) = handlers.try_join_next() {
                ended.expect("a handler does not panic");
            }
        }
    }

    /// Pulls from its own gateway only; notes that the handlers begin.
    async fn pull(&self) -> Vec<Delivery> {
        let topic = Topic::Pulled;
        let (topic, group) = (topic.name(), topic.groups()[0]);
        let port = self.ports[0];
        let url = format!("http://127.0.0.1:{port}/v1/topics/{topic}/groups/{group}/pull");
        let wait = format!("{}ms", WAIT.as_millis());
        let lease = format!("{}ms", LEASE.as_millis());
        let body = json!({ "max": MAX, "wait": wait, "lease": lease, "consumer": self.process });
        let Some((status, text)) = answer(self.client.post(url).json(&body)).await else {
            return Vec::new();
        };
        match status {
            200 => {}
            // The topic is gone with everything; Redis does not answer.
            404 | 500.. => return Vec::new(),
            _ => {
                let process = self.process;
                let what = format!("{process} answered {status} to a pull: {text}");
                self.journal.violation(what);
                return Vec::new();
            }
        }
        // A gateway that is killed may leave half an answer.
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        let deliveries = body["deliveries"].as_array().into_iter().flatten();
        deliveries
            .filter_map(|delivery| self.begin(delivery))
            .collect()
    }

    fn begin(&self, delivery: &Value) -> Option<Delivery> {
        let read = || -> Option<(Delivery, u64)> {
            let begun = Delivery {
                number: plan::number(delivery["id"].as_str()?)?,
                attempt: u32::try_from(delivery["attempt"].as_u64()?).ok()?,
                plan: target::planned(delivery["payload"].as_str()?.as_bytes())?,
                token: delivery["token"].as_str()?.to_owned(),
            };
            Some((begun, target::instant(delivery["due_at"].as_str()?)?))
        };
        let Some((begun, due)) = read() else {
            let what = format!("{} delivered {delivery}", self.process);
            self.journal.violation(what);
            return None;
        };
        self.journal.note(&Record::Begin {
            number: begun.number,
            attempt: begun.attempt,
            due,
            process: self.process.to_owned(),
        });
        Some(begun)
    }

    /// Handles deliveries that end together.
    async fn handle(&self, deliveries: Vec<Delivery>) {
        let mut items = Vec::new();
        for delivery in deliveries {
            let Delivery {
                number,
                attempt,
                plan,
                token,
            } = delivery;
            let item = match plan {
                Plan::Work(ms) => {
                    self.keep(&token, Duration::from_millis(ms)).await;
                    json!({ "token": token, "ack": true })
                }
                Plan::Flaky(times) if attempt > times => json!({ "token": token, "ack": true }),
                // Its lease ends.
                Plan::Hang if attempt == 1 => continue,
                Plan::Hang => json!({ "token": token, "ack": true }),
                Plan::Reject => json!({ "token": token, "reject": {} }),
                Plan::Flaky(_) | Plan::Fail | Plan::Panic | Plan::Poison => {
                    json!({ "token": token, "retry": { "error": "as planned" } })
                }
            };
            self.journal.note(&Record::End {
                number,
                attempt,
                process: self.process.to_owned(),
                done: item["ack"] == true,
            });
            items.push(item);
        }
        self.call("settle", items).await;
    }

    /// Holds a delivery while it works.
    async fn keep(&self, token: &str, mut work: Duration) {
        while work > EXTEND {
            sleep(EXTEND).await;
            work -= EXTEND;
            let lease = format!("{}ms", LEASE.as_millis());
            let item = json!({ "token": token, "lease": lease });
            self.call("extend", vec![item]).await;
        }
        sleep(work).await;
    }

    /// Calls one gateway after the other until each delivery has an answer, or would be stale.
    async fn call(&self, what: &str, mut items: Vec<Value>) {
        let end = Instant::now() + LEASE;
        let mut ports = self.ports.iter().cycle();
        while !items.is_empty() && Instant::now() < end {
            let port = ports.next().expect("there are gateways");
            let url = format!("http://127.0.0.1:{port}/v1/deliveries:{what}");
            let request = self.client.post(url).timeout(TURN).json(&items);
            let results: Vec<Value> = match answer(request).await {
                Some((200, body)) => serde_json::from_str(&body).unwrap_or_default(),
                Some((status @ ..500, body)) => {
                    let text = format!("a gateway answered {status} to {what}: {body}");
                    return self.journal.violation(text);
                }
                _ => Vec::new(),
            };
            let mut results = results.iter();
            items.retain(|_| !results.next().is_some_and(|result| self.is_answer(result)));
            if !items.is_empty() {
                sleep(PAUSE).await;
            }
        }
    }

    /// Returns whether a delivery needs no other call: it has its outcome, or is stale.
    fn is_answer(&self, result: &Value) -> bool {
        match result["error"]["code"].as_str() {
            // The key of the tokens is gone with everything. At any other time, the message would come again without a reason.
            None | Some("stale" | "invalid_delivery_token") => true,
            Some("indeterminate" | "unavailable" | "timeout" | "internal") => false,
            Some(_) => {
                self.journal
                    .violation(format!("a gateway answered {result}"));
                true
            }
        }
    }
}
