//! Sends through the producer binary over HTTP, beside the same sends through the Rust API in this process.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lisa_core::topic::TopicSettings;
use lisa_producer::NewMessage;
use lisa_tests::Api;
use tokio::process::Command;

use crate::binaries::{Role, Running, Site};
use crate::lab::{self, Lab, Sample, Spread, Variant};
use crate::lisa::{BATCH, HOUR, Lisa, payload};
use crate::report::{Report, Section, number};

const SIZE: usize = 100;
/// Connections that are kept alive, each with one request at a time.
const CONNECTIONS: u64 = 50;
const DELAY: &str = "1h";

const NOTE: &str = "One `lisa-producer` with the shipped settings; 50 connections that are kept alive, each with one request \
at a time; 100 B, due in an hour. Load, producer and server share the machine. The Rust rows are the same sends without \
HTTP: 50 callers, one message at a time; batches of 500, four at a time.";

/// The body and form of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Single,
    Batch,
}

impl Kind {
    fn path(self) -> &'static str {
        match self {
            Self::Single => "/v1/topics/t0/messages",
            Self::Batch => "/v1/topics/t0/messages:batch",
        }
    }

    fn messages(self) -> u64 {
        match self {
            Self::Single => 1,
            Self::Batch => BATCH,
        }
    }
}

struct Round {
    sample: Sample,
    /// Processor time of the producer process, in seconds.
    producer: Option<f64>,
}

/// Measures all four rows in turn.
pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let span = Duration::from_secs(lab.options.pick(8, 2));
    let single = lab.options.pick(200_000, 40_000);
    let batched = lab.options.pick(500_000, 100_000);
    let site = Site::new(lab, 1);
    let wrk = has_wrk().await;
    let over_http = |kind| {
        let site = &site;
        move || http(lab, site, kind, wrk, span)
    };
    let rounds = lab
        .alternate(&[
            Variant::new("HTTP, a message a request", over_http(Kind::Single)),
            Variant::new("Rust API, 50 callers", move || {
                rust(lab, Kind::Single, single)
            }),
            Variant::new("HTTP, NDJSON batches of 500", over_http(Kind::Batch)),
            Variant::new("Rust API, batches of 500", move || {
                rust(lab, Kind::Batch, batched)
            }),
        ])
        .await;
    let header = [
        "interface",
        "of the Rust API's rate",
        "messages/s",
        "server CPU, µs/message",
        "producer CPU, µs/message",
    ];
    let load = match wrk {
        true => "The load is `wrk` with two threads.",
        false => {
            "`wrk` is not installed; the load is a small client of the harness, which takes more of the machine."
        }
    };
    let mut section = Section::new("Sends over HTTP", &format!("{NOTE} {load}"), &header);
    let names = [
        "HTTP, a message a request",
        "Rust API, 50 callers",
        "HTTP, NDJSON batches of 500",
        "Rust API, batches of 500",
    ];
    for (index, name) in names.into_iter().enumerate() {
        let (own, rust) = (&rounds[index], &rounds[index | 1]);
        let ratio = Spread::of_ratios(own, rust, |round| round.sample.rate());
        let median = |figure: fn(&Round) -> f64| number(Spread::of(own.iter().map(figure)).median);
        let producer: Vec<f64> = own
            .iter()
            .filter_map(|round| Some(round.producer? * 1e6 / round.sample.n as f64))
            .collect();
        section.row([
            name.to_owned(),
            format!("{} %", number(ratio.median * 100.0)),
            median(|round| round.sample.rate()),
            median(|round| round.sample.cpu_us()),
            if producer.is_empty() {
                "–".to_owned()
            } else {
                number(Spread::of(producer).median)
            },
        ]);
    }
    report.section(section);
}

async fn rust(lab: &Lab, kind: Kind, n: u64) -> Round {
    let lisa = Lisa::new(lab, TopicSettings::default()).await;
    let make = |_| NewMessage::new(payload(SIZE)).delay(HOUR);
    let sample = match kind {
        Kind::Single => lab.timed(n, lisa.send_single(CONNECTIONS, n, make)).await,
        Kind::Batch => lab.timed(n, lisa.send_batches(n, make)).await,
    };
    lisa.end().await;
    Round {
        sample,
        producer: None,
    }
}

async fn http(lab: &Lab, site: &Site, kind: Kind, wrk: bool, span: Duration) -> Round {
    // It declares the topic, and is not used after that.
    let manager = site.start(Role::Manager).await;
    let producer = site.start(Role::Producer).await;
    let before = (producer.cpu(), lab.cpu().await, lab::client_cpu());
    let (requests, seconds) = if wrk {
        with_wrk(&producer, kind, span).await
    } else {
        with_own_client(&producer, kind, span).await
    };
    let after = (producer.cpu(), lab.cpu().await, lab::client_cpu());
    // Requests that were in flight when the load ended are stored and not counted.
    let n = requests * kind.messages();
    let stats = Api::new(manager.port).get_json("/v1/topics/t0").await;
    let stored = stats["stats"]["waiting"].as_u64().unwrap_or_default();
    let on_the_way = CONNECTIONS * kind.messages();
    assert!(
        (n..=n + on_the_way).contains(&stored),
        "{n} were sent: {stats}"
    );
    Round {
        sample: Sample {
            n,
            seconds,
            cpu: after.1 - before.1,
            client: after.2 - before.2,
        },
        producer: after.0.zip(before.0).map(|(after, before)| after - before),
    }
}

async fn has_wrk() -> bool {
    let ask = Command::new("wrk")
        .arg("-v")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    ask.await.is_ok()
}

/// Returns the number of requests that were answered, all successfully, and the seconds they took.
async fn with_wrk(producer: &Running, kind: Kind, span: Duration) -> (u64, f64) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/relay/post.lua");
    let word = match kind {
        Kind::Single => "single",
        Kind::Batch => "batch",
    };
    let output = Command::new("wrk")
        .args([
            "-t2",
            &format!("-c{CONNECTIONS}"),
            &format!("-d{}s", span.as_secs()),
            "-s",
        ])
        .arg(script)
        .arg(format!("http://127.0.0.1:{}{}", producer.port, kind.path()))
        .args(["--", word, DELAY, &SIZE.to_string(), &BATCH.to_string()])
        .output()
        .await
        .expect("wrk starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = said.lines().find_map(|line| line.strip_prefix("bench "));
    let figures: Vec<u64> = line
        .into_iter()
        .flat_map(|line| line.split(' '))
        .filter_map(|figure| figure.parse().ok())
        .collect();
    let [requests, us, 0] = figures[..] else {
        panic!("wrk: {said}{}", String::from_utf8_lossy(&output.stderr));
    };
    (requests, us as f64 / 1e6)
}

/// The same where there is no wrk.
async fn with_own_client(producer: &Running, kind: Kind, span: Duration) -> (u64, f64) {
    let api = Api::new(producer.port);
    let text = String::from_utf8_lossy(&payload(SIZE)).into_owned();
    let body = match kind {
        Kind::Single => text,
        Kind::Batch => format!("{{\"payload_text\":\"{text}\",\"delay\":\"{DELAY}\"}}\n")
            .repeat(BATCH as usize),
    };
    let began = Instant::now();
    let callers = (0..CONNECTIONS).map(|_| async {
        let mut requests = 0;
        while began.elapsed() < span {
            let request = api.request(reqwest::Method::POST, kind.path());
            let request = match kind {
                Kind::Single => request
                    .header("Content-Type", "text/plain")
                    .header("Lisa-Delay", DELAY),
                Kind::Batch => request.header("Content-Type", "application/x-ndjson"),
            };
            let reply = request.body(body.clone()).send().await.expect("a reply");
            assert!(reply.status().is_success(), "{reply:?}");
            reply.bytes().await.expect("a whole reply");
            requests += 1;
        }
        requests
    });
    let requests = join_all(callers).await.into_iter().sum();
    (requests, began.elapsed().as_secs_f64())
}
