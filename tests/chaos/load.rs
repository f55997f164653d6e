//! The senders: batches and single messages with their own ids, at a rate, to any producer that answers; and their
//! later changes.

use crate::fleet::Fleet;
use crate::journal::Journal;
use crate::plan::{Change, Dice, Message, id};
use crate::record::{Changed, Record, now};
use crate::target;
use crate::wire::{Tried, answer, attempts, judge, judge_problem, line, payload, with_headers};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// The number of senders at a time.
const SENDERS: u64 = 12;
/// The longest wait for an answer: more than a producer waits for Redis.
const ANSWER: Duration = Duration::from_secs(8);
/// The pause between two tries of a send.
const PAUSE: Duration = Duration::from_millis(250);
/// The time limit of a patient sender's tries.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time after which a try can no longer be stored. A sender with an unknown outcome must not retry when a repeat
/// would no longer be recognized.
const UNSURE: Duration = Duration::from_secs(14);
/// One in this many sends stops after its first try.
const IMPATIENT: u64 = 10;
/// One in this many sends is of a single message.
const SINGLE: u64 = 5;
/// The largest batch.
const BATCH: u64 = 80;
/// The pause between two sends by the command line.
const CLI: Duration = Duration::from_secs(3);

/// State that the senders share.
pub(crate) struct Load {
    pub(crate) journal: Arc<Journal>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) dice: Dice,
    /// Messages a second.
    pub(crate) rate: f64,
    client: Client,
    next: AtomicU64,
    stop: AtomicBool,
}

impl Load {
    pub(crate) fn new(journal: Arc<Journal>, fleet: Arc<Fleet>, dice: Dice, rate: f64) -> Self {
        let client = Client::builder()
            .timeout(ANSWER)
            .connect_timeout(Duration::from_secs(1))
            .no_proxy()
            .tls_certs_only([])
            .build();
        Self {
            journal,
            fleet,
            dice,
            rate,
            client: client.expect("the HTTP client is built"),
            next: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// Returns the number of messages begun.
    pub(crate) fn sent(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }

    /// Lets the senders finish what they have begun.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Sends until it is stopped, and ends when each send and each change has ended.
    pub(crate) async fn run(self: &Arc<Self>) {
        self.stop.store(false, Ordering::SeqCst);
        let (begun, first) = (Instant::now(), self.sent());
        let mut senders = JoinSet::new();
        for _ in 0..SENDERS {
            let load = self.clone();
            senders.spawn(async move { load.keep_sending(begun, first).await });
        }
        let load = self.clone();
        senders.spawn(async move { load.keep_typing().await });
        while let Some(ended) = senders.join_next().await {
            ended.expect("a sender does not panic");
        }
    }

    async fn keep_sending(self: &Arc<Self>, begun: Instant, first: u64) {
        let mut changes = JoinSet::new();
        while !self.stop.load(Ordering::SeqCst) {
            let number = self.next.load(Ordering::SeqCst);
            let size = match number % SINGLE {
                0 => 1,
                _ => 1 + fastrand::u64(0..BATCH),
            };
            let from = self.next.fetch_add(size, Ordering::SeqCst);
            // After an outage they catch up.
            let after = (from - first) as f64 / self.rate;
            sleep_until(begun + Duration::from_secs_f64(after)).await;
            let messages: Vec<Message> = (from..from + size)
                .map(|number| self.dice.message(number))
                .collect();
            for message in self.deliver(messages).await {
                if let Some(change) = message.change {
                    let load = self.clone();
                    changes.spawn(async move { load.change(message, change).await });
                }
            }
            while changes.try_join_next().is_some() {}
        }
        while let Some(ended) = changes.join_next().await {
            ended.expect("a change does not panic");
        }
    }

    /// Sends messages, a batch per topic, and returns those that were accepted.
    async fn deliver(&self, messages: Vec<Message>) -> Vec<Message> {
        let mut accepted = Vec::new();
        let mut rest = messages;
        while let Some(first) = rest.first() {
            let topic = first.topic;
            let (mut batch, others): (Vec<_>, Vec<_>) =
                rest.into_iter().partition(|message| message.topic == topic);
            rest = others;
            self.send(&mut batch).await;
            accepted.append(&mut batch);
        }
        accepted
    }

    /// Sends messages of one topic until each is accepted or its sender stops trying; leaves the accepted ones.
    async fn send(&self, messages: &mut Vec<Message>) {
        let begun = now();
        for message in messages.iter() {
            self.journal.note(&Record::Intend {
                number: message.number,
                topic: message.topic,
                key: message.key,
                plan: message.plan,
                earliest: begun + message.delay,
            });
        }
        let call_timeout = match fastrand::u64(0..IMPATIENT) {
            0 => Duration::ZERO,
            _ => PATIENCE,
        };
        let mut deadline = Instant::now() + call_timeout;
        let mut open: Vec<(Message, bool)> = messages.drain(..).map(|m| (m, false)).collect();
        loop {
            let (producer, port) = self.any_producer();
            let (tried_at, tried) = (now(), Instant::now());
            let results = self.try_send(port, &open).await;
            let mut left = Vec::new();
            let mut answered = false;
            for ((message, maybe_stored), result) in open.into_iter().zip(results) {
                let number = message.number;
                match result {
                    Tried::Accepted(due) => {
                        answered = true;
                        self.journal.note(&Record::Accepted {
                            number,
                            begun: tried_at,
                            due,
                        });
                        messages.push(message);
                    }
                    Tried::Merged(into) => {
                        answered = true;
                        self.journal.note(&Record::Merged {
                            number,
                            begun: tried_at,
                            into,
                        });
                    }
                    Tried::Refused => left.push((message, maybe_stored)),
                    Tried::Unknown => {
                        let known_for = message.topic.dedup_window().saturating_sub(UNSURE);
                        deadline = deadline.min(tried + known_for);
                        left.push((message, true));
                    }
                }
            }
            if answered {
                self.journal.accepted_by(producer, tried_at);
            }
            if left.is_empty() {
                return;
            }
            open = left;
            if Instant::now() >= deadline {
                break;
            }
            sleep(PAUSE).await;
        }
        for (message, maybe_stored) in open {
            let number = message.number;
            self.journal.note(&match maybe_stored {
                true => Record::Unknown { number },
                false => Record::Refused { number },
            });
        }
    }

    fn any_producer(&self) -> (&'static str, u16) {
        let producers = self.fleet.producers();
        producers[fastrand::usize(0..producers.len())]
    }

    /// One request; a result for each message.
    async fn try_send(&self, port: u16, open: &[(Message, bool)]) -> Vec<Tried> {
        let topic = open[0].0.topic.name();
        let base = format!("http://127.0.0.1:{port}/v1/topics/{topic}/messages");
        let (url, body, kind, single) = match open {
            [(message, _)] => (base, payload(message).to_string(), "application/json", true),
            _ => {
                let lines = open
                    .iter()
                    .map(|(message, _)| format!("{}\n", line(message)));
                let url = format!("{base}:batch");
                (url, lines.collect(), "application/x-ndjson", false)
            }
        };
        let mut request = self
            .client
            .post(url)
            .header("Content-Type", kind)
            .body(body);
        if single {
            request = with_headers(request, &open[0].0);
        }
        let mut results = Vec::with_capacity(open.len());
        if let Some(answer) = answer(request).await {
            let whole = answer
                .1
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            match answer.0 {
                200 | 202 => results.extend(whole.map(|line: Value| judge(&line))),
                // One problem for all.
                _ => {
                    let problem: Option<Value> = serde_json::from_str(&answer.1).ok();
                    let judged = || problem.as_ref().map_or(Tried::Unknown, judge_problem);
                    results.extend(open.iter().map(|_| judged()));
                }
            }
        }
        results.resize_with(open.len(), || Tried::Unknown);
        results
    }

    /// Changes a message that was accepted, once.
    async fn change(&self, message: Message, change: Change) {
        let number = message.number;
        let wait = match change {
            Change::Cancel(after) | Change::Reschedule(_, after) => after,
        };
        sleep(Duration::from_millis(wait)).await;
        let (_, port) = self.any_producer();
        let topic = message.topic.name();
        let url = format!(
            "http://127.0.0.1:{port}/v1/topics/{topic}/messages/{}",
            id(number)
        );
        let (method, delay) = match change {
            Change::Cancel(_) => (Method::DELETE, None),
            Change::Reschedule(delay, _) => (Method::PATCH, Some(delay)),
        };
        let mut request = self.client.request(method, url);
        if let Some(key) = message.key {
            request = request.header("Lisa-Key", key.to_string());
        }
        if let Some(delay) = delay {
            request = request.json(&json!({ "delay": format!("{delay}ms") }));
        }
        let asked = now();
        let how = match answer(request).await {
            Some((200, body)) => {
                let body: Value = serde_json::from_str(&body).unwrap_or_default();
                Changed::Done(body["due_at"].as_str().and_then(target::instant))
            }
            Some((404 | 409, _)) => Changed::Late,
            _ => Changed::Unknown,
        };
        self.journal.note(&match delay {
            None => Record::Cancelled { number, asked, how },
            Some(delay) => Record::Moved {
                number,
                asked,
                delay,
                how,
            },
        });
    }

    /// Sends by the command line, one message now and then.
    async fn keep_typing(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            sleep(CLI).await;
            let number = self.next.fetch_add(1, Ordering::SeqCst);
            let message = self.dice.message(number);
            let begun = now();
            self.journal.note(&Record::Intend {
                number,
                topic: message.topic,
                key: message.key,
                plan: message.plan,
                earliest: begun + message.delay,
            });
            let (id, delay) = (id(number), format!("{}ms", message.delay));
            let attempts = attempts(&message).map(|n| n.to_string());
            let (payload, key) = (
                payload(&message).to_string(),
                message.key.map(|k| k.to_string()),
            );
            let mut arguments = vec!["send", message.topic.name(), &payload];
            arguments.extend(["--id", &id, "--delay", &delay, "--output", "json"]);
            if let Some(key) = &key {
                arguments.extend(["--key", key]);
            }
            if let Some(attempts) = &attempts {
                arguments.extend(["--max-attempts", attempts]);
            }
            let (code, output, _) = self.fleet.send(&arguments).await;
            let receipt: Option<Value> = serde_json::from_str(&output).ok();
            self.journal.note(&match (code, receipt) {
                (Some(0), Some(receipt)) => Record::Accepted {
                    number,
                    begun,
                    due: receipt["due_at"].as_str().and_then(target::instant),
                },
                _ => Record::Unknown { number },
            });
        }
    }
}
