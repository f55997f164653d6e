//! Each page and each call of operators on a topic with millions of waiting messages and much garbage.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lisa_consumer::{Context, Delivery, Outcome, delivery_fn};
use lisa_core::broker::{Resolution, Sample};
use lisa_core::time::UnixMs;
use lisa_core::topic::{OnGarbage, TopicSettings};
use lisa_producer::NewMessage;
use lisa_tests::{Aof, eventually};
use redis::cmd;
use reqwest::{Client, Method};

use super::MANAGER;
use crate::binaries::{Role, Running, Site};
use crate::lab::{self, Lab, Spread};
use crate::lisa::{Lisa, TOPIC, payload};
use crate::report::{Reach, Report, Section, number};
use crate::slowlog;

/// The ordering keys that a message in garbage blocks, each with one parked message.
const KEYS: u64 = 1000;
/// The messages that are due, of which some are in flight.
const READY: u64 = 20_000;
const IN_FLIGHT: u64 = 500;
/// The first of the waiting messages is due after this time, the last after [`SPREAD`] more.
const BEGIN: Duration = Duration::from_secs(2 * 3600);
const SPREAD: Duration = Duration::from_secs(24 * 3600);
/// The longest time for which an answer is kept.
const FRESH: Duration = Duration::from_secs(31);
/// The time limit to become ready.
const PATIENCE: Duration = Duration::from_secs(120);

const NOTE: &str = "Answers of the real manager, whose jobs run only when asked, over HTTP, not compressed. The topic also has \
20,000 ready messages, 500 of them in flight, 1,000 ordering keys with a parked message each, and a full history. Calls are the \
commands and scripts in the slow log that the manager sent until the answer was there, what it did by itself included: the \
most of the rounds. The longest call is that of the quietest round, by the server's clock; the time is the median.";

/// The cost of one answer.
struct Answer {
    calls: usize,
    longest_us: u64,
    longest: String,
    server_us: u64,
    ms: f64,
    bytes: usize,
}

pub(super) async fn run(lab: &Lab, report: &mut Report) {
    let lab = lab.beside(lab::settings(Aof::Off).start()).await;
    let (waiting, garbage) = (
        lab.options.pick(5_000_000, 20_000),
        lab.options.pick(100_000, 6_000),
    );
    let jobs = ["reclaim", "clean", "statistics", "sweep", "doctor"];
    let jobs = jobs
        .map(|job| format!("{job} = \"0 0 0 1 1 *\"\n"))
        .concat();
    let site = Site::with(&lab, Vec::new()).more(&format!("[manager.jobs]\n{jobs}"));
    fill(&lab, &site, waiting, garbage).await;
    let manager = site.start(Role::Manager).await;
    let far = in_states(&lab, &site, &manager).await;
    lab.log_calls_from(0).await;
    let requests = requests(&far);
    let rounds = lab.options.pick(3, 1);
    let mut answers: Vec<Vec<Answer>> = requests.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        lab.turn_to("pages", round as usize + 1, rounds as usize);
        if round > 0 {
            tokio::time::sleep(FRESH).await;
        }
        for (request, answers) in requests.iter().zip(&mut answers) {
            answers.push(ask(&lab, &manager, request).await);
        }
    }
    manager.end().await;
    tell(report, (waiting, garbage), &requests, &answers);
}

/// Fills a topic: garbage with several errors, parked messages, a history, and messages that wait.
async fn fill(lab: &Lab, site: &Site, waiting: u64, garbage: u64) {
    eprintln!("  filling {} garbage", number(garbage as f64));
    let settings = TopicSettings {
        on_garbage: OnGarbage::Block,
        ..TopicSettings::default()
    };
    let lisa = Lisa::within(lab, site.namespace(), settings).await;
    let consumer = lisa.consumer_of(100, || {
        delivery_fn(|delivery: Delivery, _: Context| {
            let number: u64 = delivery.id.as_str()[1..].parse().unwrap_or_default();
            let error = match number % 4 {
                0 => format!("HTTP 503 from shop after {number} ms"),
                1 => format!("connect to 10.0.{}.7:443 timed out", number % 256),
                2 => format!("order \"A-{number}\" is unknown"),
                _ => "payload is no JSON".to_owned(),
            };
            std::future::ready(Outcome::Reject { error })
        })
    });
    lisa.start_manager();
    consumer.start(&lisa.runtime.supervisor, &lisa.runtime.shutdown);
    // Of each key, the first message goes to garbage, and the second one waits for it.
    lisa.send_batches(garbage + KEYS, |number| {
        let message = NewMessage::new(payload(100)).id(format!("g{number}"));
        match number < 2 * KEYS {
            true => message.key(format!("key-{}", number % KEYS)),
            false => message,
        }
    })
    .await;
    eventually(PATIENCE, async || match consumer.report().garbage {
        done if done >= garbage => Ok(()),
        done => Err(done),
    })
    .await;
    let topic = lisa.broker().topic(&TOPIC.parse().expect("a topic")).await;
    let topic = topic.expect("declared");
    let now = lisa.broker().now().get();
    for (resolution, keep) in [(Resolution::Minute, 360), (Resolution::Quarter, 672)] {
        let step = resolution.step_ms();
        for back in (1..=keep).rev() {
            let time = UnixMs::new((now / step - back) * step);
            let sample = Sample {
                sent: 1_000_000 - back * 900,
                acked: 900_000 - back * 800,
                waiting,
                ..Sample::default()
            };
            let at = (&*topic, topic.first_shard());
            let noted = lisa
                .broker()
                .note_sample(at, (resolution, keep), time, &sample.pack(), false)
                .await;
            noted.expect("a sample");
        }
    }
    lisa.end().await;
    eprintln!("  filling {} waiting", number(waiting as f64));
    let lisa = Lisa::within(lab, site.namespace(), topic.settings().clone()).await;
    lisa.send_batches(waiting, |number| {
        let after = BEGIN + SPREAD.mul_f64(fastrand::f64());
        NewMessage::new(payload(100))
            .id(format!("w{number}"))
            .delay(after)
    })
    .await;
    lisa.send_batches(READY, |number| {
        NewMessage::new(payload(100)).id(format!("r{number}"))
    })
    .await;
    lisa.end().await;
}

/// Waits until the manager has moved what is due, and reads some of it. Returns a message that is far behind.
async fn in_states(lab: &Lab, site: &Site, manager: &Running) -> String {
    let key = format!("{}:v1:{{{TOPIC}:0}}:ready:default", site.namespace());
    eventually(PATIENCE, async || {
        match lab.ask::<u64>(cmd("XLEN").arg(&key)).await {
            READY => Ok(()),
            moved => Err(moved),
        }
    })
    .await;
    let mut read = cmd("XREADGROUP");
    read.arg(&["GROUP", "default", "reader", "COUNT"]);
    let read = read.arg(IN_FLIGHT).arg("STREAMS").arg(&key).arg(">");
    let _: redis::Value = lab.ask(read).await;
    let path = format!("http://127.0.0.1:{}/v1/jobs/statistics/run", manager.port);
    let ran = Client::new().post(path).send().await.expect("an answer");
    assert!(ran.status().is_success(), "{ran:?}");
    let last = cmd("XREVRANGE")
        .arg(&[&key, "+", "-", "COUNT", "1"])
        .to_owned();
    let [(_, fields)]: [(String, Vec<String>); 1] = lab.ask(&last).await;
    fields[1].clone()
}

/// Returns the requests: the method and path, and what is asked. `far` is a message far behind in the stream.
fn requests(far: &str) -> Vec<(Method, String, &'static str)> {
    let middle = (SystemTime::now() + BEGIN + SPREAD / 2).duration_since(UNIX_EPOCH);
    let middle = middle.expect("it is after 1970").as_millis();
    let topic = format!("/topics/{TOPIC}");
    let group = format!("/v1{topic}/groups/default");
    let page = |path: String, what| (Method::GET, path, what);
    let mut all = vec![
        page("/".to_owned(), "overview"),
        page(topic.clone(), "topic"),
        page(
            format!("{topic}?history=604800"),
            "topic, history of 7 days",
        ),
        page(format!("{topic}/messages"), "waiting"),
        page(
            format!("{topic}/messages?cursor=0:{middle}:w"),
            "waiting, from the middle",
        ),
    ];
    for (state, what) in [
        ("ready", "ready"),
        ("in_flight", "in flight"),
        ("retry", "in retry"),
        ("parked", "parked"),
    ] {
        all.push(page(format!("{topic}/messages?state={state}"), what));
    }
    for (id, what) in [
        ("w5000", "a message that waits"),
        (far, "a ready message behind 19,500"),
        ("g10", "a message in garbage"),
        ("g1010", "a parked message"),
        ("gone", "a message that is not there"),
    ] {
        all.push(page(format!("{topic}/messages/{id}"), what));
    }
    for (path, what) in [
        (format!("{topic}/garbage"), "garbage of a group"),
        (format!("{topic}/keys"), "keys"),
        (format!("{topic}/send"), "send"),
        ("/garbage".to_owned(), "garbage"),
        ("/forecast".to_owned(), "forecast"),
        (
            format!("/forecast?topic={TOPIC}&for=604800"),
            "forecast of a topic, 7 days",
        ),
        ("/schedules".to_owned(), "schedules"),
        ("/workers".to_owned(), "workers"),
        ("/system".to_owned(), "system"),
        ("/find?q=w77".to_owned(), "find"),
        ("/v1/stats".to_owned(), "stats"),
        ("/v1/stats/snapshot".to_owned(), "snapshot"),
        (format!("/v1{topic}"), "counts of a topic"),
        (
            format!("/v1{topic}/messages?limit=1000"),
            "list of 1,000 waiting",
        ),
        (
            format!("/v1{topic}/messages?limit=1000&order=newest&cursor=0:{middle}:w"),
            "list of 1,000 waiting, newest first, from the middle",
        ),
        (
            format!("/v1{topic}/messages?state=garbage&limit=1000"),
            "list of 1,000 in garbage",
        ),
        (
            format!("/v1{topic}/messages?state=in_flight&limit=500"),
            "list of 500 in flight",
        ),
        (
            format!("/v1{topic}/messages?state=ready&limit=1000"),
            "list of 1,000 ready",
        ),
        (format!("/v1{topic}/messages/{far}"), "message look-up"),
        (format!("/v1{topic}/forecast?for=7d"), "forecast"),
        (format!("/v1{topic}/history?for=7d"), "history of 7 days"),
        (format!("{group}/garbage/errors"), "error groups"),
        (format!("{group}/keys?limit=50"), "parked keys"),
        ("/v1/workers".to_owned(), "workers"),
        ("/v1/jobs".to_owned(), "jobs"),
        ("/v1/garbage/jobs".to_owned(), "garbage jobs"),
        ("/v1/audit".to_owned(), "audit log"),
        ("/v1/schedules".to_owned(), "schedules"),
    ] {
        all.push(page(path, what));
    }
    all.push((
        Method::POST,
        "/v1/jobs/statistics/run".to_owned(),
        "count, and write snapshot and history",
    ));
    all
}

async fn ask(lab: &Lab, manager: &Running, request: &(Method, String, &str)) -> Answer {
    let (method, path, _) = request;
    let url = format!("http://127.0.0.1:{}{path}", manager.port);
    lab.ask::<()>(cmd("SLOWLOG").arg("RESET")).await;
    let begun = Instant::now();
    let client = Client::builder().redirect(reqwest::redirect::Policy::none());
    let client = client.no_proxy().build().expect("a client");
    let answer = client.request(method.clone(), url).send().await;
    let answer = answer.expect("an answer");
    let status = answer.status();
    let bytes = answer.bytes().await.expect("a body");
    let ms = begun.elapsed().as_secs_f64() * 1e3;
    assert!(
        !status.is_server_error() && status != 422,
        "{path}: {status} {}",
        String::from_utf8_lossy(&bytes)
    );
    let calls = slowlog::calls_of(&mut lab.connection(), MANAGER).await;
    let longest = calls.iter().max_by_key(|call| call.us);
    Answer {
        calls: calls.len(),
        longest_us: longest.map_or(0, |call| call.us),
        longest: longest.map_or(String::new(), |call| call.script.clone()),
        server_us: calls.iter().map(|call| call.us).sum(),
        ms,
        bytes: bytes.len(),
    }
}

fn tell(
    report: &mut Report,
    (waiting, garbage): (u64, u64),
    requests: &[(Method, String, &str)],
    answers: &[Vec<Answer>],
) {
    let name = format!(
        "Dashboard, {} waiting and {} in garbage",
        number(waiting as f64),
        number(garbage as f64)
    );
    let header = [
        "page or call",
        "path",
        "calls",
        "longest call, µs",
        "which",
        "server µs",
        "ms",
        "KB",
    ];
    let mut section = Section::new(&name, NOTE, &header);
    let (mut most_calls, mut longest, mut slowest, mut group) = (0, 0, 0.0, 0.0);
    for ((_, path, what), answers) in requests.iter().zip(answers) {
        let quietest = answers.iter().min_by_key(|answer| answer.longest_us);
        let quietest = quietest.expect("a round");
        let calls = answers.iter().map(|answer| answer.calls).max().unwrap_or(0);
        let ms = Spread::of(answers.iter().map(|answer| answer.ms)).median;
        let is_page = !path.starts_with("/v1");
        if *what == "garbage of a group" {
            group = ms;
        } else if is_page {
            slowest = f64::max(slowest, ms);
        }
        if is_page {
            most_calls = most_calls.max(calls);
        }
        longest = longest.max(quietest.longest_us);
        let server = answers.iter().map(|answer| answer.server_us as f64);
        section.row([
            (*what).to_owned(),
            format!("`{path}`"),
            calls.to_string(),
            quietest.longest_us.to_string(),
            format!("`{}`", quietest.longest),
            number(Spread::of(server).median),
            number(ms),
            number(quietest.bytes as f64 / 1e3),
        ]);
    }
    for (figure, bound, unit, measured) in [
        ("most calls of a page", 64.0, "", most_calls as f64),
        (
            "longest call of pages and calls of operators",
            1.0,
            " ms",
            longest as f64 / 1e3,
        ),
        ("slowest page", 300.0, " ms", slowest),
        ("page of a group's garbage", 500.0, " ms", group),
    ] {
        report.reach(Reach::at_most(figure, (bound, bound), unit, measured));
    }
    report.section(section);
}
