//! Many open tabs over many topics: what they cost Redis and the manager, and whether messages come later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lisa_core::topic::TopicSettings;
use lisa_producer::NewMessage;
use lisa_tests::Aof;
use reqwest::header::{ACCEPT_ENCODING, ETAG, IF_NONE_MATCH};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::binaries::{Role, Running, Site};
use crate::lab::{self, Lab, Spread};
use crate::lateness::{percentile, send_at_rate, watch};
use crate::lisa::{HOUR, Lisa, payload};
use crate::report::{Reach, Report, Section, number};

const TABS: usize = 20;
/// The time between two refreshes of a tab.
const REFRESH: Duration = Duration::from_secs(2);
/// Messages a second, whose lateness is measured.
const RATE: u64 = 500;
/// The time after which the cost of the start is over.
const SETTLE: Duration = Duration::from_secs(10);

/// One round with or without tabs.
struct Round {
    late: Vec<f64>,
    /// Shares of a core, in percent.
    server: f64,
    manager: f64,
    /// Answers a second, the slowest of them, and their bytes.
    answers: f64,
    slowest_ms: f64,
    bytes: f64,
}

pub(super) async fn run(lab: &Lab, report: &mut Report) {
    let lab = lab.beside(lab::settings(Aof::Off).start()).await;
    let topics = lab.options.pick(1000, 50) as usize;
    let (rounds, seconds) = (lab.options.pick(5, 1), lab.options.pick(12, 6));
    let site = Site::new(&lab, topics);
    let manager = site.start(Role::Manager).await;
    let lisa = Lisa::within(&lab, site.namespace(), TopicSettings::default()).await;
    let mut late = watch(&lisa).await;
    for topic in 0..topics {
        let message = NewMessage::new(payload(100)).delay(HOUR);
        let topic = format!("t{topic}");
        let sent = lisa.producer.send_message(&topic, message).await;
        sent.expect("accepted");
    }
    tokio::time::sleep(SETTLE).await;
    let mut all: [Vec<Round>; 2] = Default::default();
    for round in 0..rounds {
        // Each comes first in half of the rounds.
        let order = [round % 2 == 0, round % 2 != 0];
        for has_tabs in order {
            let name = if has_tabs { "tabs" } else { "no tabs" };
            lab.turn_to(name, round as usize + 1, rounds as usize);
            let tabs = if has_tabs { TABS } else { 0 };
            let one = self::round(&lab, &lisa, &mut late, &manager, (topics, tabs), seconds);
            all[usize::from(has_tabs)].push(one.await);
        }
    }
    lisa.end().await;
    manager.end().await;
    tell(report, topics, &all);
}

/// Sends for some seconds while tabs are open.
async fn round(
    lab: &Lab,
    lisa: &Lisa,
    late: &mut UnboundedReceiver<i64>,
    manager: &Running,
    (topics, tabs): (usize, usize),
    seconds: u64,
) -> Round {
    let tallies = Arc::new(Tallies::default());
    let open: Vec<_> = (0..tabs)
        .map(|tab| {
            let url = format!("http://127.0.0.1:{}{}", manager.port, path(tab, topics));
            tokio::spawn(browse(
                url,
                REFRESH.mul_f64(tab as f64 / tabs as f64),
                tallies.clone(),
            ))
        })
        .collect();
    let (server, cpu, begun) = (lab.cpu().await, manager.cpu(), Instant::now());
    let mut late = send_at_rate(lisa, late, RATE, RATE * seconds).await;
    let spent = begun.elapsed().as_secs_f64();
    let share = |seconds: f64| seconds * 100.0 / spent;
    let server = share(lab.cpu().await - server);
    let cpu = manager
        .cpu()
        .zip(cpu)
        .map_or(f64::NAN, |(now, then)| share(now - then));
    tallies.is_over.store(true, Ordering::Relaxed);
    for tab in open {
        tab.await.expect("a tab that ends well");
    }
    late.sort_by(f64::total_cmp);
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed) as f64;
    Round {
        late,
        server,
        manager: cpu,
        answers: count(&tallies.answers) / spent,
        slowest_ms: count(&tallies.slowest_us) / 1e3,
        bytes: count(&tallies.bytes) / count(&tallies.answers),
    }
}

/// Returns the page of a tab: each kind that refreshes, and several topics.
fn path(tab: usize, topics: usize) -> String {
    const PAGES: [&str; 10] = [
        "/",
        "/",
        "/",
        "/?filter=t1",
        "/?page=3",
        "/garbage",
        "/forecast",
        "/forecast?for=3600",
        "/workers",
        "/system",
    ];
    match PAGES.get(tab) {
        Some(path) => (*path).to_owned(),
        None => format!("/topics/t{}", tab * 37 % topics),
    }
}

#[derive(Default)]
struct Tallies {
    is_over: AtomicBool,
    answers: AtomicU64,
    bytes: AtomicU64,
    slowest_us: AtomicU64,
}

/// Refreshes a page as the script of the dashboard does.
async fn browse(url: String, after: Duration, tallies: Arc<Tallies>) {
    let client = reqwest::Client::builder()
        .no_proxy()
        .build()
        .expect("a client");
    let mut tag = None;
    tokio::time::sleep(after).await;
    while !tallies.is_over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let mut request = client
            .get(&url)
            .header(ACCEPT_ENCODING, "gzip")
            .header("Lisa-Refresh", "1");
        if let Some(tag) = &tag {
            request = request.header(IF_NONE_MATCH, tag);
        }
        let answer = request.send().await.expect("an answer");
        assert!(
            matches!(answer.status().as_u16(), 200 | 304),
            "{url}: {}",
            answer.status()
        );
        tag = answer.headers().get(ETAG).cloned();
        let bytes = answer.bytes().await.expect("a body").len();
        let us = begun.elapsed().as_micros() as u64;
        tallies.slowest_us.fetch_max(us, Ordering::Relaxed);
        tallies.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        tallies.answers.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(REFRESH.saturating_sub(begun.elapsed())).await;
    }
}

fn tell(report: &mut Report, topics: usize, [without, with]: &[Vec<Round>; 2]) {
    let note = format!(
        "The real manager with {} topics, and {TABS} tabs that refresh every 2 s: five of the overview, five of other pages, ten of \
         topics. Meanwhile, {RATE} messages a second go through another topic of the same manager. Server and manager in percent of \
         a core, the server's main thread with its network; medians of rounds that take turns. A row of the difference is the \
         median of the differences round by round.",
        number(topics as f64)
    );
    let header = [
        "tabs",
        "server, %",
        "manager, %",
        "lateness p50, ms",
        "p99, ms",
        "answers/s",
        "slowest, ms",
        "KB an answer",
    ];
    let mut section = Section::new("Dashboard, many tabs", &note, &header);
    let median = |rounds: &[Round], of: fn(&Round) -> f64| Spread::of(rounds.iter().map(of)).median;
    for (name, rounds) in [("0", without), ("20", with)] {
        section.row([
            name.to_owned(),
            number(median(rounds, |round| round.server)),
            number(median(rounds, |round| round.manager)),
            number(median(rounds, |round| percentile(&round.late, 0.5))),
            number(median(rounds, |round| percentile(&round.late, 0.99))),
            number(median(rounds, |round| round.answers)),
            number(median(rounds, |round| round.slowest_ms)),
            number(median(rounds, |round| round.bytes) / 1e3),
        ]);
    }
    let more = |of: fn(&Round) -> f64| {
        let pairs = with.iter().zip(without);
        Spread::of(pairs.map(|(with, without)| of(with) - of(without))).median
    };
    let (server, manager) = (more(|round| round.server), more(|round| round.manager));
    let late = Spread::of_ratios(with, without, |round| percentile(&round.late, 0.99)).median;
    for (figure, bound, unit, measured) in [
        ("20 tabs: more of a Redis core", 1.0, " %", server),
        (
            "20 tabs: more of a core for the manager",
            5.0,
            " %",
            manager,
        ),
        (
            "20 tabs: p99 of the lateness, of that without",
            1.2,
            "×",
            late,
        ),
    ] {
        report.reach(Reach::at_most(figure, (bound, bound), unit, measured));
    }
    report.section(section);
}
