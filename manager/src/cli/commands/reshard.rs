//! `topics reshard`: changes the number of shards of a topic.

use std::time::Duration;

use lisa_core::broker::Resharded;
use lisa_core::topic::Topic;
use lisa_service::cli::{Output, remark};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{counted, failed, print};
use crate::cli::args::ReshardArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::operations::audit::{self, Action};

/// The pause between two looks at the progress.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The time between two progress reports.
const REPORT_EVERY: Duration = Duration::from_secs(2);
/// The time without progress after which a report names the likely cause.
const STALLS_AFTER: Duration = Duration::from_secs(15);

/// Creates new shards, and waits until the messages of the old ones have migrated.
pub(crate) async fn reshard(
    client: &Client,
    args: &ReshardArgs,
    output: &Output,
) -> Result<(), CliError> {
    let broker = client.require_broker("topics reshard")?;
    let (topic, shards) = (&args.topic, args.shards);
    let action = Action::on_command_line(broker, "reshard")
        .topic(topic)
        .details(counted(shards.into(), "shard"));
    let started = action.run(broker.reshard(topic, shards), |started| {
        audit::changed(matches!(started, Resharded::UnderWay(_)))
    });
    match started.await {
        Ok(Resharded::UnderWay(_)) => {}
        Ok(_) => return report(topic, shards, 0, output),
        Err(error) => return Err(failed(broker, error).await),
    }
    let (mut reported, mut moved) = (Instant::now(), Instant::now());
    let mut before = u64::MAX;
    loop {
        let handle = broker.topic(topic).await?;
        let left = broker.stats(&handle).await?.migrating.unwrap_or(0);
        if left == 0 || args.no_wait {
            return report(topic, shards, left, output);
        }
        if left != before {
            (before, moved) = (left, Instant::now());
        }
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            remark(format_args!("{} left to migrate", counted(left, "message")));
            if moved.elapsed() >= STALLS_AFTER {
                remark(format_args!(
                    "no progress: a manager must be running, and deliveries in flight must end"
                ));
            }
        }
        sleep(LOOK_EVERY).await;
        // Managers report the end through the registry.
        broker.refresh().await?;
    }
}

fn report(topic: &Topic, shards: u16, left: u64, output: &Output) -> Result<(), CliError> {
    if !output.is_table() {
        return Ok(output.object(&json!({ "topic": topic, "shards": shards, "in_transit": left }))?);
    }
    let shards = counted(shards.into(), "shard");
    match left {
        0 => print(&format!("{topic} has {shards}")),
        left => print(&format!(
            "{topic} gets {shards}: managers are migrating {}",
            counted(left, "message")
        )),
    }
}
