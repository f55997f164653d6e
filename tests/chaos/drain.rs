//! The end of a phase: waits until no message is on its way, and checks that everything is as it must be then.

use crate::plan::{self, GROUPS, TICKS, Topic};
use crate::record::Record;
use crate::rest;
use crate::world::World;
use lisa_tests::Stopwatch;
use serde_json::Value;
use std::time::Duration;
use tokio::time::sleep;

/// The time limit of the cleanup jobs.
const TIDY: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(500);

/// Waits at most this long until no message is on its way, then examines what is left. Each fault is a violation;
/// returns whether there was none.
pub(crate) async fn drain(world: &World, call_timeout: Duration) -> bool {
    let before = world.journal.violations().len();
    let is_well = || world.journal.violations().len() == before;
    let violation = |what: String| world.journal.violation(what);
    if let Err(state) = eventually(call_timeout, async || on_its_way(world).await).await {
        violation(format!("not drained within {call_timeout:?}: {state}"));
    }
    // After a violation, waiting is pointless.
    let tidy = || if is_well() { TIDY } else { Duration::ZERO };
    if let Err(state) = eventually(tidy(), async || sums(world).await).await {
        violation(format!("the sums do not hold: {state}"));
    }
    if let Err(why) = note_garbage(world).await {
        violation(format!("garbage cannot be listed: {why}"));
    }
    if let Err(state) = eventually(tidy(), async || resharded(world).await).await {
        violation(format!("a resharding does not end: {state}"));
    }
    if let Err(findings) = eventually(tidy(), async || doctor(world).await).await {
        violation(format!("the doctor finds: {findings}"));
    }
    for (topic, group) in groups() {
        let name = topic.name();
        let arguments = ["garbage", "purge", name, "--group", group, "--all", "--yes"];
        let (code, _, errors) = world.fleet.manager(&arguments).await;
        if code != Some(0) {
            violation(format!("garbage of {name} is not purged: {errors}"));
        }
    }
    if let Err(left) = eventually(tidy(), async || rest::leftovers(world).await).await {
        violation(format!("left in Redis: {left}"));
    }
    is_well()
}

/// Polls until it holds; otherwise returns the last state. A slow machine makes half of the call_timeout longer.
async fn eventually(
    call_timeout: Duration,
    holds: impl AsyncFn() -> Result<(), String>,
) -> Result<(), String> {
    let watch = Stopwatch::start();
    loop {
        match holds().await {
            Err(_) if watch.elapsed() < watch.limit(call_timeout / 2, call_timeout / 2) => {
                sleep(PAUSE).await
            }
            end => return end,
        }
    }
}

async fn stats(world: &World) -> Result<Vec<Value>, String> {
    let (_, output, errors) = world.fleet.manager(&["stats", "--output", "json"]).await;
    let mut stats: Value = serde_json::from_str(&output).map_err(|_| errors)?;
    match stats["topics"].take() {
        Value::Array(topics) if topics.len() == Topic::ALL.len() + 1 => Ok(topics),
        other => Err(format!("not all topics: {other}")),
    }
}

async fn on_its_way(world: &World) -> Result<(), String> {
    let topics = stats(world).await?;
    let count = |value: &Value| value.as_u64().unwrap_or(u64::MAX);
    let is_idle = |topic: &Value| {
        let groups = topic["groups"].as_array().into_iter().flatten();
        let states = ["backlog", "parked", "ready", "in_flight", "retry"];
        count(&topic["waiting"]) == 0
            && topic["migrating"].as_u64().unwrap_or(0) == 0
            && groups
                .into_iter()
                .all(|group| states.iter().all(|state| count(&group[state]) == 0))
    };
    // Its schedule continues.
    let mut topics = topics.iter().filter(|topic| topic["topic"] != TICKS);
    match topics.find(|topic| !is_idle(topic)) {
        None => Ok(()),
        Some(topic) => Err(topic.to_string()),
    }
}

async fn sums(world: &World) -> Result<(), String> {
    let is_well = |topic: &&Value| {
        topic["conservation_error"] == 0 && topic["counters"]["lost"].as_u64().unwrap_or(0) == 0
    };
    match stats(world).await?.iter().find(|topic| !is_well(topic)) {
        None => Ok(()),
        Some(topic) => Err(topic.to_string()),
    }
}

/// The topics that are still resharded: with each, old shards remember what ended.
pub(crate) async fn resharding(world: &World) -> Result<Vec<Topic>, String> {
    let topics = stats(world).await?;
    let names = topics
        .iter()
        .filter(|topic| !topic["migrating"].is_null())
        .filter_map(|topic| topic["topic"].as_str()?.parse().ok());
    Ok(names.collect())
}

/// Waits until no topic is resharded any more, except one that remembers for longer than this waits.
async fn resharded(world: &World) -> Result<(), String> {
    let still = resharding(world).await?;
    let soon = still.iter().filter(|topic| topic.dedup_window() < TIDY);
    match soon.map(|topic| topic.name()).collect::<Vec<_>>() {
        still if still.is_empty() => Ok(()),
        still => Err(still.join(" ")),
    }
}

/// Each topic with each of its groups.
fn groups() -> impl Iterator<Item = (Topic, &'static str)> {
    let of = |topic: Topic| topic.groups().iter().map(move |group| (topic, *group));
    Topic::ALL.into_iter().flat_map(of)
}

async fn note_garbage(world: &World) -> Result<(), String> {
    for (topic, group) in groups() {
        let mut cursor: Option<String> = None;
        loop {
            let mut arguments = vec!["garbage", "list", topic.name(), "--group", group];
            arguments.extend(["--limit", "1000", "--output", "json"]);
            if let Some(cursor) = &cursor {
                arguments.extend(["--cursor", cursor]);
            }
            let (_, output, errors) = world.fleet.manager(&arguments).await;
            let page: Value = serde_json::from_str(&output).map_err(|_| errors)?;
            let listed = page["messages"].as_array().ok_or("no messages")?;
            for message in listed {
                let number = message["id"].as_str().and_then(plan::number);
                let number = number.ok_or_else(|| format!("not of this run: {message}"))?;
                if group == GROUPS[0] {
                    let what = format!("m{number} is in garbage of a group that handles all");
                    world.journal.violation(what);
                }
                world.journal.note(&Record::Garbage { number });
            }
            cursor = page["next"].as_str().map(str::to_owned);
            if cursor.is_none() {
                break;
            }
        }
    }
    Ok(())
}

/// Checks that the doctor finds nothing but killed consumers, and nothing at all once it has repaired these.
async fn doctor(world: &World) -> Result<(), String> {
    let (_, output, errors) = world.fleet.manager(&["doctor", "--output", "json"]).await;
    let seen: Value = serde_json::from_str(&output).map_err(|_| errors)?;
    let topics = seen["topics"].as_array().into_iter().flatten();
    let mut findings = topics.flat_map(|topic| topic["findings"].as_array().into_iter().flatten());
    if let Some(finding) = findings.find(|finding| finding["fault"] != "consumer") {
        return Err(finding.to_string());
    }
    let (_, repaired, _) = world.fleet.manager(&["doctor", "--repair", "--yes"]).await;
    match world.fleet.manager(&["doctor"]).await {
        (Some(0), ..) => Ok(()),
        (_, output, errors) => Err(format!("{repaired}{output}{errors}")),
    }
}
