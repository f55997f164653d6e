//! The commands that idle roles send to Redis.

use super::SOON;
use super::ledger::Ledger;
use crate::faults::log::Log;
use crate::faults::role::{Role, config};
use lisa_tests::{Server, eventually};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time after which the commands of a start are over: `statistics`, which runs every 5 s, has counted each topic once, and
/// once more because of its consumers.
const SETTLE: Duration = Duration::from_secs(11);
/// The safety nets run every half minute and every minute: their cost would be counted in one span and not in another.
const NO_SWEEP: [(&str, &str); 3] = [
    ("manager.jobs.sweep", "0 0 0 1 1 *"),
    ("manager.jobs.doctor", "0 0 0 1 1 *"),
    ("manager.jobs.clean", "0 0 0 1 1 *"),
];

/// Returns the requests per second, at most `most`. On a slow machine a start lasts longer than [`SETTLE`], and its cost is in
/// the first span; at rest, each span costs the same.
async fn at_rest(ledger: &Ledger, most: f64) -> f64 {
    // No more than two runs of `statistics`, and four looks of a mover.
    const SPAN: Duration = Duration::from_millis(9900);
    tokio::time::sleep(SETTLE).await;
    let mut rates = Vec::new();
    for _ in 0..4 {
        ledger.page().await;
        let begun = Instant::now();
        tokio::time::sleep(SPAN).await;
        let page = ledger.page().await;
        println!("in {SPAN:?}: {page}");
        let rate = page.requests() as f64 / begun.elapsed().as_secs_f64();
        if rate <= most {
            return rate;
        }
        rates.push(rate);
    }
    panic!("expected at most {most} requests a second, measured {rates:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_at_rest_ask_redis_for_little() {
    let server = Server::start();
    let url = server.socket_url();
    let keys = [[("topics.t.shards", "1")].as_slice(), &NO_SWEEP].concat();
    let config = config(&url, "rest", &keys);
    let ledger = Ledger::open(&server).await;
    let mut managers = vec![Role::manager(&config).await];
    let alone = at_rest(&ledger, 3.0).await;
    let (producer, _sends) = Role::producer(&config).await;
    let consumer = Role::consumer(&config, &["t"], &Arc::new(Log::default())).await;
    // Per second: 0.4 for the mover, nearly none for the reclaim, 0.8 for the manager's heartbeat, 0.4 reads, 0.2 for the
    // report of each process, and the rest; a consumer reports to its shard every 10 s.
    let all = at_rest(&ledger, 4.6).await;
    for _ in 1..5 {
        managers.push(Role::manager(&config).await);
    }
    eventually(SOON, async || match consumer.managers().await {
        5 => Ok(()),
        alive => Err(alive),
    })
    .await;
    // Each asks for itself: 0.4 for the mover, 0.8 for its heartbeat, 0.4 for stored schedules, 0.2 for its report, and the rest.
    let five = at_rest(&ledger, all + 13.2).await;
    println!(
        "requests a second: one manager {alone}, one of each role {all}, five managers {five}"
    );
    for role in managers.into_iter().chain([producer, consumer]) {
        role.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_topics_at_rest_cost_less_than_a_request_a_second_each() {
    let server = Server::start();
    let names: Vec<_> = (0..20).map(|n| format!("topics.t{n}.shards")).collect();
    let topics = names.iter().map(|name| (name.as_str(), "1"));
    let keys: Vec<_> = topics.chain(NO_SWEEP).collect();
    let config = config(&server.socket_url(), "twenty", &keys);
    let ledger = Ledger::open(&server).await;
    let manager = Role::manager(&config).await;
    let rate = at_rest(&ledger, 20.0).await;
    println!("{rate} requests a second for 20 topics");
    manager.stop().await;
}
