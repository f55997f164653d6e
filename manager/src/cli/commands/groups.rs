//! `groups`: lists, drains, drops and keeps groups.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use lisa_core::broker::{GroupStats, Retirement};
use lisa_core::topic::{Group, Topic};
use lisa_service::cli::{Output, Rows, prompt, remark};
use serde_json::json;

use super::{be_sure, complete, counted, print};
use crate::cli::args::GroupArgs;
use crate::cli::error::CliError;
use crate::cli::relay::Relay;
use crate::operations::groups::{GroupRetired, GroupView, counts_of, left_of};
use crate::operations::topics::Missing;

/// The time between two progress reports of a drop.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Returns the special states of a group, in words.
pub(super) fn marks(stats: &GroupStats) -> Vec<&'static str> {
    let marks = [
        stats.paused.then_some("paused"),
        stats.retiring.map(Retirement::as_str),
        stats.instance.then_some("instance"),
    ];
    marks.into_iter().flatten().collect()
}

/// Prints groups.
pub(crate) async fn list(
    relay: &Relay,
    topic: Option<&Topic>,
    output: &Output,
) -> Result<(), CliError> {
    let (topics, missing) = match topic {
        Some(topic) => (vec![relay.topic_stats(topic).await?], Missing::default()),
        None => {
            let stats = relay.stats().await?;
            (stats.topics, stats.missing)
        }
    };
    let ended = complete(&missing);
    let groups: Vec<_> = topics.iter().flat_map(GroupView::all).collect();
    let mut table = Rows::new([
        "TOPIC",
        "GROUP",
        "CONFIGURED",
        "STATE",
        "BACKLOG",
        "PARKED",
        "READY",
        "IN FLIGHT",
        "RETRY",
        "GARBAGE",
        "CONSUMERS",
        "OLDEST READY",
        "OVERDUE",
    ])
    .ages(["OLDEST READY", "OVERDUE"]);
    for group in &groups {
        let configured = match group.configured {
            Some(true) => "yes",
            Some(false) => "no",
            None => "",
        };
        let marks = marks(&group.stats).join(", ");
        let state = if marks.is_empty() { "running" } else { &marks };
        let mut row = vec![
            group.topic.to_string(),
            group.stats.group.to_string(),
            configured.to_owned(),
            state.to_owned(),
        ];
        row.extend(counts_of(&group.stats).map(|(_, count)| count.to_string()));
        row.extend([
            group.stats.consumers.to_string(),
            group.stats.oldest_ready_age_ms.to_string(),
            group.stats.oldest_due_age_ms.to_string(),
        ]);
        table.add_row(row);
    }
    let document = json!({ "groups": groups });
    output.list(&document, Some("groups"), &table)?;
    ended
}

/// Drains a group, and prints its remaining messages.
pub(crate) async fn drain(relay: &Relay, of: &GroupArgs, output: &Output) -> Result<(), CliError> {
    let group = chosen(relay, of).await?;
    let drain = relay.retire(&of.topic, &group, Some(Retirement::Drain));
    let retired = drain.await?;
    warn(of, &retired);
    if !output.is_table() {
        return Ok(output.object(&retired)?);
    }
    let (name, already) = (name_of(of), already(retired.changed));
    let Some(stats) = retired.stats.filter(|stats| left_of(stats) > 0) else {
        return print(&format!("{name} is{already} draining, and empty"));
    };
    let left: Vec<String> = counts_of(&stats)
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(state, count)| format!("{count} {}", state.replace('_', " ")))
        .collect();
    print(&format!("{name} is{already} draining: {}", left.join(", ")))?;
    if stats.paused {
        print("it is paused: draining continues when it is resumed")?;
    }
    if stats.garbage > 0 {
        print("it cannot be removed before its garbage is requeued or purged")?;
    }
    Ok(())
}

/// Drops the messages of a group and removes it. Returns when it is gone.
pub(crate) async fn drop_group(
    relay: &Relay,
    of: &GroupArgs,
    yes: bool,
    output: &Output,
) -> Result<(), CliError> {
    let (topic, name) = (&of.topic, name_of(of));
    let group = chosen(relay, of).await?;
    if !yes {
        confirm(relay, of).await?;
    }
    let drop = relay.retire(topic, &group, Some(Retirement::Drop));
    let retired = drop.await?;
    let left = retired.left;
    warn(of, &retired);
    let mut reported = Instant::now();
    let progress = |messages| {
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            remark(format_args!("dropped {messages} of {left}"));
        }
    };
    let dropped = relay.drop_all(topic, &group, left, progress).await?;
    if !dropped.gone {
        return Err(CliError::Failed(format!(
            "{name} was kept by another operator, after {} had been dropped",
            counted(dropped.messages, "message")
        )));
    }
    match output.is_table() {
        false => Ok(output
            .object(&json!({ "topic": topic, "group": group, "dropped": dropped.messages }))?),
        true => print(&format!(
            "{name} is removed, dropped {}",
            counted(dropped.messages, "message")
        )),
    }
}

/// Cancels the drain or drop of a group.
pub(crate) async fn keep(relay: &Relay, of: &GroupArgs, output: &Output) -> Result<(), CliError> {
    let group = chosen(relay, of).await?;
    let retired = relay.retire(&of.topic, &group, None).await?;
    if !output.is_table() {
        return Ok(output.object(&retired)?);
    }
    let already = already(retired.changed);
    print(&format!("{} is{already} kept", name_of(of)))
}

/// Asks for confirmation before messages are dropped.
async fn confirm(relay: &Relay, of: &GroupArgs) -> Result<(), CliError> {
    if !io::stdin().is_terminal() {
        let text = "drop requires --yes when there is no terminal".to_owned();
        return Err(CliError::Usage(text));
    }
    let stats = relay.group_stats(&of.topic, &of.group).await?;
    prompt(format_args!(
        "permanently drop {} of {}? [y/N] ",
        counted(stats.as_ref().map_or(0, left_of), "message"),
        name_of(of)
    ));
    be_sure()
}

/// Warns that a group comes back with the next start of a manager whose configuration names it, and that no group gets the
/// messages that become due from now on.
fn warn(of: &GroupArgs, retired: &GroupRetired) {
    let is_configured = |stats: &GroupStats| !stats.instance && !stats.unconfigured;
    if retired.stats.as_ref().is_some_and(is_configured) {
        remark(format_args!(
            "{} is still in the topic's settings: remove it from the managers' configuration, or their next start creates it again",
            name_of(of)
        ));
    }
    if retired.messages_wait {
        remark(format_args!(
            "{} has no other group that gets messages: due messages wait until a group is added or kept",
            of.topic
        ));
    }
}

async fn chosen(relay: &Relay, of: &GroupArgs) -> Result<Group, CliError> {
    relay.group(&of.topic, Some(&of.group)).await
}

fn name_of(of: &GroupArgs) -> String {
    format!("{}/{}", of.topic, of.group)
}

fn already(changed: bool) -> &'static str {
    if changed { "" } else { " already" }
}
