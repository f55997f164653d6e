//! The life of messages against a reference: random steps with random mixes of features on a real Redis, the whole
//! keyspace compared after each.
//!
//! `LISA_MODEL_STEPS` sets the number of steps (8000 by default, over both tests), or `LISA_MODEL_MINUTES` the time,
//! with a line each minute. `LISA_MODEL_SEED` sets the first run's seed (see [`first_seed`]). A violation names the seed
//! of its run and the fewest steps that were found to show it within `LISA_MODEL_SHRINK` seconds (20).

mod calls;
mod check;
mod crashes;
mod expected;
mod hands;
mod mix;
mod reference;
mod removal;
mod run;
mod steps;
mod watch;

use lisa_core::redis::Connection;
use lisa_tests::{Server, relay};
use mix::Mix;
use run::{Run, Stop};
use std::time::{Duration, Instant};
use steps::Step;

const STEPS: u64 = 8000;
const STEPS_A_RUN: usize = 150;
/// The time spent on shrinking a violation, in seconds.
const SHRINK: u64 = 20;

#[tokio::test]
async fn one_shard_keeps_to_the_reference() {
    check(1).await;
}

#[tokio::test]
async fn three_shards_keep_to_the_reference() {
    check(3).await;
}

async fn check(shards: u16) {
    let first = first_seed("LISA_MODEL_SEED");
    let total = number("LISA_MODEL_STEPS").unwrap_or(STEPS) / 2;
    println!("LISA_MODEL_SEED={first}");
    let minute = Duration::from_secs(60);
    let end = number("LISA_MODEL_MINUTES").map(|minutes| Instant::now() + minute * minutes as u32);
    let mut told = Instant::now();
    let server = Server::start();
    let connection = relay::connection(&server).await;
    let (mut done, mut slow) = (0, 0);
    for seed in first.. {
        if end.map_or(done >= total, |end| Instant::now() >= end) {
            break;
        }
        if end.is_some() && told.elapsed() >= minute {
            println!("{done} steps on {shards} shards, at LISA_MODEL_SEED={seed}");
            told = Instant::now();
        }
        let mix = Mix::new(seed, shards);
        let steps = steps::steps(seed, STEPS_A_RUN, &mix);
        match run(&server, &connection, &mix, &steps).await {
            Ok(()) => done += STEPS_A_RUN as u64,
            Err((_, Stop::Slow)) => slow += 1,
            Err((place, Stop::Violation(why))) => {
                let before = done + place as u64 + 1;
                let (steps, why) = shrink(&server, &connection, &mix, &steps[..], why).await;
                let list: Vec<_> = (steps.iter()).map(|step| format!("  {step:?}\n")).collect();
                panic!(
                    "{why}\nafter {before} steps, in the run of LISA_MODEL_SEED={seed}, {shards} shards:\n{mix:?}\n{}",
                    list.concat()
                );
            }
        }
        assert!(
            slow < 20 + done / 1000,
            "{slow} runs were too slow to tell anything"
        );
    }
    println!("{done} steps on {shards} shards, {slow} runs too slow to tell");
}

/// Returns the first seed of a random test. Without one in this variable, it is always the same, so that a test fails for a change
/// and not by chance. A test that runs for `LISA_MODEL_MINUTES` takes a new one.
pub(crate) fn first_seed(variable: &str) -> u64 {
    let default = || match number("LISA_MODEL_MINUTES") {
        Some(_) => fastrand::u64(..1 << 32),
        None => 1,
    };
    number(variable).unwrap_or_else(default)
}

pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
    )
}

/// Runs the steps and drains; a violation is returned with the index of its step.
async fn run(
    server: &Server,
    connection: &Connection,
    mix: &Mix,
    steps: &[Step],
) -> Result<(), (usize, Stop)> {
    let mut run = Run::start(server, connection, mix).await;
    for (place, step) in steps.iter().enumerate() {
        run.step(step).await.map_err(|stop| (place, stop))?;
    }
    run.drain().await.map_err(|stop| (steps.len(), stop))
}

/// Drops steps, halves first, single ones at last, as long as some violation is left.
async fn shrink(
    server: &Server,
    connection: &Connection,
    mix: &Mix,
    steps: &[Step],
    why: String,
) -> (Vec<Step>, String) {
    let (mut steps, mut why) = (steps.to_vec(), why);
    let end = Instant::now() + Duration::from_secs(number("LISA_MODEL_SHRINK").unwrap_or(SHRINK));
    let mut size = steps.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < steps.len() && Instant::now() < end {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + size).min(steps.len()));
            match run(server, connection, mix, &fewer).await {
                Err((_, Stop::Violation(text))) => (steps, why) = (fewer, text),
                Ok(()) | Err((_, Stop::Slow)) => at += size,
            }
        }
        size /= 2;
    }
    (steps, why)
}
