//! `size`: estimates what a load needs.

use std::time::Duration;

use lisa_core::broker::TopicStats;
use lisa_core::durability::Durability;
use lisa_core::topic::{Topic, TopicSettings};
use lisa_service::cli::{Output, Rows};
use serde::{Deserialize, Serialize};

use super::{counted, in_ms};
use crate::cli::args::SizeArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::operations::history::HistoryView;
use crate::size::figures::{FIGURES, Figure};
use crate::size::{AppendOnly, Estimate, Load, estimate};

/// The period whose mean rate of sends is the default.
const PERIOD: Duration = Duration::from_hours(1);

/// The load of a topic today.
#[derive(Debug)]
struct Today {
    settings: TopicSettings,
    stats: TopicStats,
    /// Sends per second, if they were recorded.
    sends: Option<f64>,
}

/// The estimate with the load that it is for.
#[derive(Debug, Serialize)]
struct Sized<'a> {
    load: &'a Load,
    #[serde(flatten)]
    estimate: Estimate,
    remarks: Vec<String>,
}

/// Prints the estimate, or the figures behind it.
pub(crate) async fn size(
    client: Option<&Client>,
    args: &SizeArgs,
    output: &Output,
) -> Result<(), CliError> {
    if args.figures {
        return Ok(output.list(&Figures { figures: FIGURES }, Some("figures"), &figures())?);
    }
    let today = match (client, &args.topic) {
        (Some(client), Some(topic)) => Some(today(client, topic).await?),
        _ => None,
    };
    let load = load(args, today.as_ref());
    let estimate = estimate(&load);
    if estimate.redis.machine == u64::MAX || estimate.redis.disk == u64::MAX {
        let text = "the load is too large to estimate: it needs more than 16 EiB of memory or disk";
        return Err(CliError::Usage(text.to_owned()));
    }
    let mut remarks = remarks(&load, &estimate);
    if let Some(Today { sends: None, .. }) = today
        && args.sends.is_none()
    {
        remarks.push("the sends of the last hour were not recorded: use --sends".to_owned());
    }
    let rows = rows(&load, &estimate);
    let note = remarks.join("\n");
    let sized = Sized {
        load: &load,
        estimate,
        remarks,
    };
    output.list(&sized, None, &rows)?;
    if !note.is_empty() {
        output.note(&note)?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Figures {
    figures: &'static [Figure],
}

fn figures() -> Rows {
    let mut rows = Rows::new(["FIGURE", "VALUE", "UNIT", "MEANING", "ORIGIN"]).numbers(["VALUE"]);
    for figure in FIGURES {
        rows.add_row([
            figure.name.to_lowercase(),
            figure.value.to_string(),
            figure.unit.to_owned(),
            figure.meaning.to_owned(),
            figure.origin.to_owned(),
        ]);
    }
    rows
}

async fn today(client: &Client, topic: &Topic) -> Result<Today, CliError> {
    #[derive(Deserialize)]
    struct View {
        settings: TopicSettings,
        stats: TopicStats,
    }
    let view: View = client.get(&["topics", topic.as_str()]).answer().await?;
    let history = client.get(&["topics", topic.as_str(), "history"]);
    // The history can be off.
    let history: Option<HistoryView> = history
        .query("for", Some(in_ms(PERIOD)))
        .answer()
        .await
        .ok();
    let sends = history.and_then(|history| {
        let step = Duration::from_millis(history.step_ms).as_secs_f64();
        let sent: Vec<u64> = history.steps.iter().filter_map(|step| step.sent).collect();
        let seconds = sent.len() as f64 * step;
        (seconds > 0.0).then(|| sent.iter().sum::<u64>() as f64 / seconds)
    });
    Ok(Today {
        settings: view.settings,
        stats: view.stats,
        sends,
    })
}

/// Returns the load that the options name: else that of the topic, else the default.
fn load(args: &SizeArgs, today: Option<&Today>) -> Load {
    let settings = today.map(|today| &today.settings);
    let stats = today.map(|today| &today.stats);
    let garbage = stats.map(|stats| stats.groups.iter().map(|group| group.garbage).max());
    let groups = stats.map(|stats| stats.groups.len() as u64);
    let groups = args.groups.or(groups).unwrap_or(1);
    let sends = args
        .sends
        .or(today.and_then(|today| today.sends))
        .unwrap_or(100.0);
    let durability = settings.map(|settings| settings.durability);
    Load {
        waiting: args
            .waiting
            .or(stats.map(|stats| stats.waiting))
            .unwrap_or(1_000_000),
        garbage: args.garbage.or(garbage.flatten()).unwrap_or(0),
        payload: args.payload,
        headers: args.headers,
        key: args.key,
        sends,
        deliveries: args.deliveries.unwrap_or(sends * groups as f64),
        outage: args.outage,
        topics: args.topics,
        shards: args
            .shards
            .or(settings.map(|settings| settings.shards.into()))
            .unwrap_or(1),
        groups,
        own_ids: args.own_ids,
        dedup_window: args
            .dedup_window
            .or(settings.map(|settings| settings.dedup_window))
            .unwrap_or(Duration::from_mins(10)),
        batch: args.batch,
        pull: args.pull,
        append_only: args.append_only,
        durability: args.durability.or(durability).unwrap_or(Durability::Memory),
        producers: args.producers,
        managers: args.managers,
        consumers: args.consumers,
        servers: args.servers,
    }
}

fn rows(load: &Load, estimate: &Estimate) -> Rows {
    let Estimate {
        redis,
        cores,
        connections,
    } = estimate;
    let of = &redis.of;
    let mut rows = Rows::new(["NEED", "VALUE", "FOR"]);
    let mut row =
        |need: &str, value: String, reason: String| rows.add_row([need.to_owned(), value, reason]);
    let sends = rounded(load.sends);
    let deliveries = rounded(load.deliveries);
    let outage = lisa_core::time::format_duration(load.outage);
    row(
        "memory of Redis",
        of_bytes(redis.memory),
        "used_memory, the sum of:".to_owned(),
    );
    row(
        "- waiting",
        of_bytes(of.waiting),
        counted(load.waiting, "message"),
    );
    row(
        "- outage",
        of_bytes(of.outage),
        format!("{sends} sends/s for {outage} without consumers"),
    );
    row(
        "- garbage",
        of_bytes(of.garbage),
        format!(
            "{} in each of {}",
            counted(load.garbage, "message"),
            counted(load.groups, "group")
        ),
    );
    row(
        "- ended ids",
        of_bytes(of.ended_ids),
        match load.own_ids {
            true => format!(
                "{sends} sends/s for {}",
                lisa_core::time::format_duration(load.dedup_window)
            ),
            false => "ids that Lisa generates are not remembered".to_owned(),
        },
    );
    row(
        "- topics",
        of_bytes(of.topics),
        format!(
            "{}, each with {} and {}, and the history",
            counted(load.topics, "topic"),
            counted(load.shards, "shard"),
            counted(load.groups, "group")
        ),
    );
    row(
        "- connections",
        of_bytes(of.connections),
        "buffers of Redis".to_owned(),
    );
    row("- server", of_bytes(of.server), "an empty Redis".to_owned());
    row(
        "maxmemory",
        of_bytes(redis.maxmemory),
        "80 % in use".to_owned(),
    );
    row(
        "copy-on-write",
        of_bytes(redis.copy_on_write),
        "changes during a snapshot or a rewrite".to_owned(),
    );
    row(
        "machine",
        of_bytes(redis.machine),
        "maxmemory, copy-on-write and the system".to_owned(),
    );
    row(
        "snapshot",
        of_bytes(redis.snapshot),
        "each backup (RDB)".to_owned(),
    );
    row(
        "disk of Redis",
        of_bytes(redis.disk),
        "its files before a rewrite ends, without backups".to_owned(),
    );
    row(
        "disk writes",
        format!("{}/s", of_bytes(redis.disk_per_second)),
        "the append-only file".to_owned(),
    );
    row(
        "cores of Redis",
        cored(cores.redis),
        format!(
            "{sends} sends/s, {deliveries} deliveries/s; {}",
            servers(cores.redis_servers)
        ),
    );
    row(
        "cores of producers",
        cored(cores.producers),
        format!("{} per request", counted(load.batch, "message")),
    );
    row(
        "cores of managers",
        cored(cores.managers),
        "moves and jobs".to_owned(),
    );
    row(
        "cores of consumers",
        cored(cores.consumers),
        match load.pull {
            true => format!("a gateway, {} per request", counted(load.batch, "message")),
            false => "a sink as fast as redis-stream; handlers and webhooks need more".to_owned(),
        },
    );
    row(
        "connections",
        (connections.producers + connections.managers + connections.consumers).to_string(),
        format!(
            "{} of producers, {} of managers, {} of consumers",
            connections.producers, connections.managers, connections.consumers
        ),
    );
    row(
        "maxclients",
        connections.maxclients.to_string(),
        "at least, and as many open files".to_owned(),
    );
    rows
}

fn servers(number: u64) -> String {
    match number {
        1 => "one Redis, at most 60 % busy".to_owned(),
        number => format!("{number} masters, each at most 60 % busy"),
    }
}

fn remarks(load: &Load, estimate: &Estimate) -> Vec<String> {
    let mut remarks = Vec::new();
    let wanted = estimate.cores.redis_servers;
    if wanted > load.servers {
        remarks.push(format!(
            "one Redis process uses one core: use a cluster of {wanted} masters (--servers), and at least {wanted} shards in all topics \
             together"
        ));
    }
    if load.durability == Durability::Aof && load.append_only != AppendOnly::Always {
        remarks.push("durability aof waits for the next flush of the append-only file, up to a second with everysec".to_owned());
    }
    remarks
}

/// Formats a number of bytes with three digits.
fn of_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    format!("{} {}", rounded(value), UNITS[unit])
}

fn cored(cores: f64) -> String {
    format!("{cores:.2}")
}

/// Formats a number with three digits.
fn rounded(value: f64) -> String {
    let decimals = match value {
        value if value >= 100.0 || value.fract() == 0.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}
