//! Pulls and acks over HTTP through a gateway, and the time from the due time to the answer of a long poll.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use lisa_core::time::UnixMs;
use lisa_tests::Api;
use reqwest::Method;
use serde_json::{Value, json};

use crate::binaries::{Role, Running, Site};
use crate::lab::{self, Lab, Sample, Spread, Variant};
use crate::lisa::{BATCH, payload};
use crate::report::{Reach, Report, Section, number, thousands};

const SIZE: usize = 100;
const CONNECTIONS: u64 = 50;
/// Messages of a pull in the rows with batches.
const MANY: u64 = 100;
/// Messages a second while the lateness is measured.
const RATE: u64 = 1_000;
const TICK: Duration = Duration::from_millis(10);
const PULL: &str = "/v1/topics/t0/groups/default/pull";

const NOTE: &str = "One `lisa-manager run --with-producer` and one `lisa-consumer` with a gateway and no subscription, \
shipped settings, payloads of 100 B. Drain: all messages are due before the first pull; each connection has one request at \
a time. A row without batches needs two requests a message. The client is that of the harness (reqwest), so its time is \
measured, too. All share the machine.";
const NOTE_LATE: &str = "50 connections, each with a long poll for one message and its ack; 1,000 messages a second, sent \
over HTTP, each due 1 s after its send. From the due time to the answer at the client, by the clock of this machine.";

#[derive(Clone, Copy)]
struct Load {
    connections: u64,
    batch: u64,
}

struct Round {
    sample: Sample,
    gateway: Option<f64>,
}

/// Measures the drains in turn, then the lateness.
pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let few = lab.options.pick(10_000, 2_000);
    let many = lab.options.pick(40_000, 8_000);
    let lots = lab.options.pick(200_000, 40_000);
    let loads = [
        ("1 connection, one a pull", 1, 1, few),
        ("50 connections, one a pull", CONNECTIONS, 1, many),
        ("1 connection, batches of 100", 1, MANY, lots),
        ("50 connections, batches of 100", CONNECTIONS, MANY, lots),
    ];
    let site = &Site::new(lab, 1);
    let variants = loads.map(|(name, connections, batch, n)| {
        Variant::new(name, move || {
            drain(lab, site, Load { connections, batch }, n)
        })
    });
    let rounds = lab.alternate(&variants).await;
    let header = [
        "pulls",
        "messages/s",
        "server CPU, µs/message",
        "gateway CPU, µs/message",
        "client CPU, µs/message",
    ];
    let mut section = Section::new("Pulls over HTTP", NOTE, &header);
    for ((name, ..), rounds) in loads.iter().zip(&rounds) {
        let median =
            |figure: fn(&Round) -> f64| number(Spread::of(rounds.iter().map(figure)).median);
        let gateway = rounds
            .iter()
            .filter_map(|round| Some(round.gateway? * 1e6 / round.sample.n as f64));
        let gateway: Vec<f64> = gateway.collect();
        section.row([
            (*name).to_owned(),
            median(|round| round.sample.rate()),
            median(|round| round.sample.cpu_us()),
            if gateway.is_empty() {
                "–".to_owned()
            } else {
                number(Spread::of(gateway).median)
            },
            median(|round| round.sample.client * 1e6 / round.sample.n as f64),
        ]);
    }
    report.section(section);

    let seconds = lab.options.pick(10, 3);
    let at_rate = Variant::new(
        format!("long polls at {} messages/s", thousands(RATE as i64)),
        move || late(site, seconds),
    );
    let rounds = lab.alternate(&[at_rate]).await.remove(0);
    let header = ["p50, ms", "p99, ms", "max, ms"];
    let mut section = Section::new("Lateness of long polls", NOTE_LATE, &header);
    let at = |share: f64| {
        let of_round = |late: &Vec<f64>| {
            let rank = (late.len() as f64 * share).ceil() as usize;
            late[rank.clamp(1, late.len()) - 1]
        };
        Spread::of(rounds.iter().map(of_round))
    };
    section.row([at(0.5).median, at(0.99).median, at(1.0).max].map(number));
    for (name, share, bounds) in [("p50", 0.5, (5.0, 2.0)), ("p99", 0.99, (15.0, 5.0))] {
        let figure = format!("long poll, {name} from due to its answer at 1,000 messages/s");
        report.reach(Reach::at_most(figure, bounds, " ms", at(share).median));
    }
    report.section(section);
}

async fn drain(lab: &Lab, site: &Site, load: Load, n: u64) -> Round {
    let combined = site.start(Role::Combined).await;
    let gateway = site.start(Role::Gateway).await;
    fill(&Api::new(combined.port), n).await;
    let before = (gateway.cpu(), lab.cpu().await, lab::client_cpu());
    let begun = Instant::now();
    let share = n / load.connections;
    let pullers = (0..load.connections).map(|_| pull(&gateway, load.batch, share));
    let pulled: u64 = join_all(pullers).await.into_iter().sum();
    let seconds = begun.elapsed().as_secs_f64();
    let after = (gateway.cpu(), lab.cpu().await, lab::client_cpu());
    assert!(pulled >= share * load.connections, "{pulled} of {n}");
    gateway.end().await;
    combined.end().await;
    let used = after.0.zip(before.0).map(|(after, before)| after - before);
    Round {
        sample: Sample {
            n: pulled,
            seconds,
            cpu: after.1 - before.1,
            client: after.2 - before.2,
        },
        gateway: used,
    }
}

/// Sends messages that are due at once, and waits until all are ready.
async fn fill(api: &Api, n: u64) {
    let text = String::from_utf8_lossy(&payload(SIZE)).into_owned();
    let line = format!("{{\"payload_text\":\"{text}\"}}\n");
    let mut left = n;
    while left > 0 {
        let batch = left.min(BATCH);
        let request = api
            .request(Method::POST, "/v1/topics/t0/messages:batch")
            .header("Content-Type", "application/x-ndjson")
            .body(line.repeat(batch as usize));
        let reply = request.send().await.expect("an answer");
        assert!(reply.status().is_success(), "{reply:?}");
        reply.bytes().await.expect("a whole answer");
        left -= batch;
    }
}

/// Pulls and acks at least `share` messages over one connection. Returns their number.
async fn pull(gateway: &Running, batch: u64, share: u64) -> u64 {
    let api = Api::new(gateway.port);
    let mut pulled = 0;
    while pulled < share {
        let max = batch.min(share - pulled);
        let deliveries = take(&api, json!({"max": max, "wait": "5s"})).await;
        let tokens = deliveries.iter().map(token);
        if let [one] = &deliveries[..] {
            ack(&api, one).await;
        } else if !deliveries.is_empty() {
            let lines: String = tokens
                .map(|token| format!("{{\"token\":\"{token}\",\"ack\":true}}\n"))
                .collect();
            let request = api.request(Method::POST, "/v1/deliveries:settle");
            let request = request.header("Content-Type", "application/x-ndjson");
            let reply = request.body(lines).send().await.expect("an answer");
            let body = reply.text().await.expect("a whole answer");
            let acked = body.matches("\"outcome\":\"acked\"").count();
            assert_eq!(acked, deliveries.len(), "{body}");
        }
        pulled += deliveries.len() as u64;
    }
    pulled
}

async fn take(api: &Api, body: Value) -> Vec<Value> {
    let reply = api.call(Method::POST, PULL, &body).await.expect(200).json();
    let deliveries = reply["deliveries"].as_array().expect("deliveries");
    deliveries.clone()
}

fn token(delivery: &Value) -> &str {
    delivery["token"].as_str().expect("a token")
}

async fn ack(api: &Api, delivery: &Value) {
    let path = format!("/v1/deliveries/{}/ack", token(delivery));
    api.call(Method::POST, &path, &json!({})).await.expect(200);
}

/// Returns how late each message was at its client in ms, sorted.
async fn late(site: &Site, seconds: u64) -> Vec<f64> {
    let combined = site.start(Role::Combined).await;
    let gateway = site.start(Role::Gateway).await;
    let n = RATE * seconds;
    let api = Api::new(combined.port);
    let send = async {
        let mut tick = tokio::time::interval(TICK);
        let each = RATE * TICK.as_millis() as u64 / 1_000;
        for _ in 0..n / each {
            tick.tick().await;
            join_all((0..each).map(|_| async {
                let request = api.request(Method::POST, "/v1/topics/t0/messages");
                let request = request.header("Lisa-Delay", "1s").body(payload(SIZE));
                let reply = request.send().await.expect("an answer");
                assert!(reply.status().is_success(), "{reply:?}");
                reply.bytes().await.expect("a whole answer");
            }))
            .await;
        }
    };
    let share = n / CONNECTIONS;
    let polls = (0..CONNECTIONS).map(|_| async {
        let (api, mut late) = (Api::new(gateway.port), Vec::new());
        while (late.len() as u64) < share {
            for delivery in take(&api, json!({"wait": "20s"})).await {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                let now = now.expect("it is after 1970").as_secs_f64() * 1e3;
                let due = delivery["due_at"].as_str().expect("a due time");
                let due: UnixMs = due.parse().expect("a due time");
                late.push(now - due.get() as f64);
                ack(&api, &delivery).await;
            }
        }
        late
    });
    let ((), all) = tokio::join!(send, join_all(polls));
    gateway.end().await;
    combined.end().await;
    let mut all: Vec<f64> = all.into_iter().flatten().collect();
    all.sort_by(f64::total_cmp);
    all
}
