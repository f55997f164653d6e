//! Requests of SQS clients to a gateway, beside the same requests to an independent emulator, `moto_server`.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lisa_tests::sqs::{hex, signed};
use lisa_tests::{Api, Launch, Process, free_port};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::binaries::{Role, Running, Site};
use crate::engines::fetch;
use crate::lab::{Lab, Spread, Variant};
use crate::lisa::payload;
use crate::report::{Report, Section, number};

const SIZE: usize = 100;
/// Connections that are kept alive, each with one request at a time.
const CONNECTIONS: usize = 20;
/// Messages of a request with a batch, the most that SQS allows.
const MANY: usize = 10;
/// The time limit for the emulator to become ready.
const PATIENCE: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_millis(20);
const KEY: &str = "bench";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

const NOTE: &str = "One `lisa-manager run --with-producer`, Redis, and one `lisa-consumer` with a gateway for SQS clients, \
shipped settings; beside it `moto_server`, an emulator in Python that keeps messages in memory. 20 connections, each with one \
signed request at a time, 100 B. The gateway checks signatures, the emulator does not. Both get the same requests of the same \
client, one server after the other, each operation for a fixed time. The receives take what the sends before them stored; each \
is followed by a `DeleteMessageBatch`. Load and servers share the machine.";

/// An operation that is measured, in the order of a round.
#[derive(Clone, Copy)]
enum Stage {
    Send,
    SendMany,
    Drain,
}

impl Stage {
    const ALL: [Self; 3] = [Self::Send, Self::SendMany, Self::Drain];

    fn name(self) -> &'static str {
        match self {
            Self::Send => "`SendMessage`",
            Self::SendMany => "`SendMessageBatch` of 10",
            Self::Drain => "`ReceiveMessage` of up to 10 and `DeleteMessageBatch`",
        }
    }
}

/// The rates of one stage.
#[derive(Clone, Copy)]
struct Rates {
    requests: f64,
    messages: f64,
}

/// A server that is ready.
enum Target {
    Lisa { gateway: Running, combined: Running },
    Moto { _process: Process, port: u16 },
}

/// Measures the servers in turn.
pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let span = Duration::from_secs(lab.options.pick(5, 1));
    let secrets = tempfile::tempdir().expect("a folder");
    let site = &Site::new(lab, 1).gateway(settings(secrets.path()));
    let moto = fetch("fetch-clients.sh", "sqs").map(|tools| tools + "/bin/moto_server");
    let mut variants = vec![Variant::new("Lisa", move || round(start_lisa(site), span))];
    if let Ok(moto) = &moto {
        let start = move || round(start_moto(moto), span);
        variants.push(Variant::new("moto_server", start));
    }
    let rounds = lab.alternate(&variants).await;
    let header = [
        "operation",
        "Lisa, requests/s",
        "moto_server, requests/s",
        "Lisa, messages/s",
        "moto_server, messages/s",
    ];
    let missing = moto.as_ref().err().map(|why| {
        eprintln!("  no moto_server: {why}");
        format!(" `moto_server` was not available: {why}.")
    });
    let note = NOTE.to_owned() + &missing.unwrap_or_default();
    let mut section = Section::new("SQS clients", &note, &header);
    for (index, stage) in Stage::ALL.into_iter().enumerate() {
        let median = |server: usize, figure: fn(&Rates) -> f64| match rounds.get(server) {
            Some(rounds) => {
                let figures = rounds.iter().map(|stages| figure(&stages[index]));
                number(Spread::of(figures).median)
            }
            None => "–".to_owned(),
        };
        section.row([
            stage.name().to_owned(),
            median(0, |rates| rates.requests),
            median(1, |rates| rates.requests),
            median(0, |rates| rates.messages),
            median(1, |rates| rates.messages),
        ]);
    }
    report.section(section);
}

/// Returns the settings of a gateway that checks signatures.
fn settings(secrets: &Path) -> String {
    let file = secrets.join("secret");
    std::fs::write(&file, SECRET).expect("a file");
    format!(
        "gateway.sqs = true\n[[auth.tokens]]\nname = \"{KEY}\"\nsha256 = \"{}\"\n\
         scopes = [\"send\", \"receive\", \"operate\", \"read\"]\naws_secret_file = \"{}\"\n",
        hex(&Sha256::digest(KEY)),
        file.display()
    )
}

async fn start_lisa(site: &Site) -> Target {
    let combined = site.start(Role::Combined).await;
    let gateway = site.start(Role::Gateway).await;
    Target::Lisa { gateway, combined }
}

async fn start_moto(moto: &str) -> Target {
    let port = free_port();
    let arguments = ["--host", "127.0.0.1", "--port", &port.to_string()];
    let process = Launch::new(moto, arguments).start();
    let (api, begun) = (Api::new(port), Instant::now());
    let is_ready = async || {
        let reply = api.try_get("/moto-api/").await;
        reply.is_some_and(|reply| reply.status == 200)
    };
    while !is_ready().await {
        let log = || process.stderr();
        assert!(begun.elapsed() < PATIENCE, "moto_server: {}", log());
        tokio::time::sleep(ASK_EVERY).await;
    }
    Target::Moto {
        _process: process,
        port,
    }
}

/// Runs all stages on a new server.
async fn round(start: impl Future<Output = Target>, span: Duration) -> [Rates; 3] {
    let target = start.await;
    let port = match &target {
        Target::Lisa { gateway, .. } => gateway.port,
        Target::Moto { port, .. } => *port,
    };
    let client = Client::new(port).await;
    let mut rates = Vec::new();
    for stage in Stage::ALL {
        rates.push(client.run(stage, span).await);
    }
    if let Target::Lisa { gateway, combined } = target {
        gateway.end().await;
        combined.end().await;
    }
    rates
        .try_into()
        .unwrap_or_else(|_| unreachable!("one for each stage"))
}

/// A client of one queue.
struct Client {
    api: Api,
    queue: Value,
    body: String,
    /// The messages that are stored.
    stored: Cell<usize>,
}

impl Client {
    async fn new(port: u16) -> Self {
        let mut client = Self {
            api: Api::new(port),
            queue: Value::Null,
            body: String::from_utf8_lossy(&payload(SIZE)).into_owned(),
            stored: Cell::new(0),
        };
        let created = client.call("CreateQueue", json!({"QueueName": "t0"})).await;
        client.queue = created["QueueUrl"].clone();
        client
    }

    async fn call(&self, action: &str, body: Value) -> Value {
        let request = signed(&self.api, KEY, SECRET, action, &body);
        let reply = request.send().await.expect("an answer");
        let is_ok = reply.status().is_success();
        let text = reply.text().await.expect("a whole answer");
        assert!(is_ok, "{action}: {text}");
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Repeats an operation over all connections for that time, or until there is nothing left.
    async fn run(&self, stage: Stage, span: Duration) -> Rates {
        let begun = Instant::now();
        let callers = (0..CONNECTIONS).map(|_| async {
            let (mut requests, mut messages) = (0, 0);
            while begun.elapsed() < span {
                let (more, count) = match stage {
                    Stage::Send => self.send().await,
                    Stage::SendMany => self.send_many().await,
                    Stage::Drain if self.stored.get() == 0 => break,
                    Stage::Drain => self.drain().await,
                };
                requests += more;
                messages += count;
            }
            (requests, messages)
        });
        let counts = join_all(callers).await;
        let seconds = begun.elapsed().as_secs_f64();
        let requests: usize = counts.iter().map(|(requests, _)| requests).sum();
        let messages: usize = counts.iter().map(|(_, messages)| messages).sum();
        assert!(messages > 0, "{}", stage.name());
        Rates {
            requests: requests as f64 / seconds,
            messages: messages as f64 / seconds,
        }
    }

    async fn send(&self) -> (usize, usize) {
        let body = json!({"QueueUrl": self.queue, "MessageBody": self.body});
        self.call("SendMessage", body).await;
        self.stored.set(self.stored.get() + 1);
        (1, 1)
    }

    async fn send_many(&self) -> (usize, usize) {
        let entry = |id: usize| json!({"Id": id.to_string(), "MessageBody": self.body});
        let entries: Vec<_> = (0..MANY).map(entry).collect();
        let body = json!({"QueueUrl": self.queue, "Entries": entries});
        let sent = self.call("SendMessageBatch", body).await;
        assert_eq!(successful(&sent), MANY, "{sent}");
        self.stored.set(self.stored.get() + MANY);
        (1, MANY)
    }

    /// Receives and deletes messages. Returns the number of requests, which is 1 if there was none.
    async fn drain(&self) -> (usize, usize) {
        let body = json!({"QueueUrl": self.queue, "MaxNumberOfMessages": MANY});
        let received = self.call("ReceiveMessage", body).await;
        let messages = received["Messages"].as_array().cloned().unwrap_or_default();
        if messages.is_empty() {
            return (1, 0);
        }
        let entry = |(id, message): (usize, &Value)| json!({"Id": id.to_string(), "ReceiptHandle": message["ReceiptHandle"]});
        let entries: Vec<_> = messages.iter().enumerate().map(entry).collect();
        let body = json!({"QueueUrl": self.queue, "Entries": entries});
        let deleted = self.call("DeleteMessageBatch", body).await;
        assert_eq!(successful(&deleted), messages.len(), "{deleted}");
        self.stored.set(self.stored.get() - messages.len());
        (2, messages.len())
    }
}

/// Returns how many entries of a batch succeeded.
fn successful(batch: &Value) -> usize {
    batch["Successful"].as_array().map_or(0, Vec::len)
}
