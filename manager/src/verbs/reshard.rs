//! The verb that gives a topic another number of shards.

use std::time::Duration;

use lisa_shared::broker::{Broker, Resharded};
use lisa_shared::topic::Topic;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{print, print_json};
use crate::cli::{CliError, Output};

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a long one says how far it is.
const TELL_EVERY: Duration = Duration::from_secs(2);
/// After so long without progress it says what may be missing.
const STALLS_AFTER: Duration = Duration::from_secs(15);

/// Opens new shards, and waits until the old ones have handed over all messages.
pub(crate) async fn reshard(
    broker: &Broker,
    topic: &Topic,
    shards: u16,
    wait: bool,
    output: Output,
) -> Result<(), CliError> {
    let Resharded::UnderWay(_) = broker.reshard(topic, shards).await? else {
        return tell(topic, shards, 0, output);
    };
    let (mut told, mut moved) = (Instant::now(), Instant::now());
    let mut before = u64::MAX;
    loop {
        let handle = broker.topic(topic).await?;
        let left = broker.stats(&handle).await?.leaving.unwrap_or(0);
        if left == 0 || !wait {
            return tell(topic, shards, left, output);
        }
        if left != before {
            (before, moved) = (left, Instant::now());
        }
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            eprintln!("{left} messages left on the old shards");
            if moved.elapsed() >= STALLS_AFTER {
                eprintln!("nothing moves: a manager must run, and what is in flight must end");
            }
        }
        sleep(LOOK_EVERY).await;
        // Managers tell of the end by the registry.
        broker.refresh().await?;
    }
}

fn tell(topic: &Topic, shards: u16, left: u64, output: Output) -> Result<(), CliError> {
    if output == Output::Json {
        return print_json(&json!({ "topic": topic, "shards": shards, "leaving": left }));
    }
    match left {
        0 => print(&format!("{topic} has {shards} shards")),
        left => print(&format!(
            "{topic} gets {shards} shards: managers hand over {left} messages"
        )),
    }
}
