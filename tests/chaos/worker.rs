//! The program as its own child: a consumer with handlers in Rust, and the handler of the `command` sink.
//!
//! Both report their work on standard output or in a file, with one write per line, before they continue. A line
//! therefore survives its process.

use crate::plan::{self, Plan, READERS};
use crate::record::{Record, now};
use crate::target;
use lisa_consumer::{Consumer, Context, Delivery, Outcome, delivery_fn};
use lisa_service::role::{self, Flags, Runtime};
use lisa_service::shutdown::Shutdown;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Handlers that run at once.
const CONCURRENCY: usize = 48;

/// Consumes a topic until SIGTERM: `worker NAME TOPIC CONFIG`.
pub(crate) fn consume(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let mut next = || arguments.next().unwrap_or_default();
    let (name, topic, file) = (next(), next(), next());
    match role::block_on(run(name, topic, PathBuf::from(file))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(name: String, topic: String, file: PathBuf) -> Result<(), Box<dyn std::error::Error>> {
    let loaded = role::prepare(&Flags {
        config: Some(file),
        overrides: BTreeMap::new(),
        ..Flags::default()
    })?;
    let config = loaded.config;
    let shutdown = Shutdown::on_signals(config.shutdown.grace)?;
    let runtime = Runtime::with_shutdown("worker", config, shutdown)?;
    // The topic with several groups names the group in the name of the process.
    let group = name.strip_prefix("twice-").unwrap_or("default");
    let group = group.to_owned();
    let handler = delivery_fn(move |delivery: Delivery, _: Context| handle(name.clone(), delivery));
    let consumer = Consumer::builder(runtime.broker.clone())
        .concurrency(CONCURRENCY)
        .group(group)
        .topic(&*topic, handler)
        .build()?;
    let run = runtime.run(async move |runtime| {
        consumer.start(&runtime.supervisor, &runtime.shutdown);
        Ok(())
    });
    Ok(run.await?)
}

async fn handle(process: String, delivery: Delivery) -> Outcome {
    let (number, plan) = match (
        plan::number(delivery.id.as_str()),
        target::planned(&delivery.payload),
    ) {
        (Some(number), Some(plan)) => (number, plan),
        _ => return Outcome::reject("not of this run"),
    };
    let attempt = delivery.attempt;
    tell(&Record::Begin {
        number,
        attempt,
        due: delivery.due_at.get(),
        process: process.clone(),
    });
    let done = match plan {
        Plan::Work(ms) => {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            true
        }
        Plan::Flaky(times) => attempt > times,
        Plan::Hang if attempt == 1 => std::future::pending().await,
        Plan::Panic if attempt == 1 => panic!("as planned"),
        Plan::Hang | Plan::Panic => true,
        Plan::Poison => std::process::abort(),
        Plan::Fail => process == READERS[0],
        Plan::Reject => false,
    };
    tell(&Record::End {
        number,
        attempt,
        process,
        done,
    });
    if done {
        Outcome::Ack
    } else {
        Outcome::retry("as planned")
    }
}

/// Prints a line, whole.
fn tell(record: &Record) {
    let line = format!("{} {record}\n", now());
    let mut output = std::io::stdout().lock();
    let told = output
        .write_all(line.as_bytes())
        .and_then(|()| output.flush());
    told.expect("the harness reads");
}

/// Handles one delivery of the `command` sink: `handler NAME FILE`, the payload on standard input.
pub(crate) fn command(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let process = arguments.next().unwrap_or_default();
    let file = arguments.next().unwrap_or_default();
    match run_command(process, &file) {
        Some(true) => ExitCode::SUCCESS,
        Some(false) => ExitCode::FAILURE,
        None => ExitCode::from(65),
    }
}

/// Returns whether the work was done; `None` for input that cannot be understood.
fn run_command(process: String, file: &str) -> Option<bool> {
    let variable = |name: &str| std::env::var(name).ok();
    let number = plan::number(&variable("LISA_ID")?)?;
    let attempt = variable("LISA_ATTEMPT")?.parse().ok()?;
    let due = target::instant(&variable("LISA_DUE_AT")?)?;
    let payload = std::io::read_to_string(std::io::stdin()).ok()?;
    let done = match target::planned(payload.as_bytes())? {
        Plan::Flaky(times) => attempt > times,
        _ => true,
    };
    let begin = Record::Begin {
        number,
        attempt,
        due,
        process: process.clone(),
    };
    let end = Record::End {
        number,
        attempt,
        process,
        done,
    };
    let lines = format!("{at} {begin}\n{at} {end}\n", at = now());
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .ok()?;
    file.write_all(lines.as_bytes()).ok()?;
    Some(done)
}
