//! `groups`: lists, drains, drops and keeps groups.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use lisa_core::broker::{Broker, BrokerError, GroupStats, Retirement, TopicHandle};
use lisa_core::topic::{Group, Topic};
use lisa_service::cli::{Output, Rows};
use serde_json::json;

use super::{be_sure, counted, failed, print};
use crate::cli::args::GroupArgs;
use crate::cli::error::CliError;
use crate::operations::audit::Action;
use crate::operations::choose_group;
use crate::operations::groups::{
    GroupRetired, GroupView, counts_of, drop_all, is_configured, left_of, retire,
};

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
    broker: &Broker,
    topic: Option<&Topic>,
    output: &Output,
) -> Result<(), CliError> {
    let topics = match topic {
        Some(topic) => vec![broker.topic(topic).await?],
        None => broker.refresh().await?,
    };
    let mut groups = Vec::new();
    for topic in topics {
        groups.extend(GroupView::all(&topic, &broker.stats(&topic).await?));
    }
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
    Ok(output.list(&document, Some("groups"), &table)?)
}

/// Drains a group, and prints its remaining messages.
pub(crate) async fn drain(
    broker: &Broker,
    of: &GroupArgs,
    output: &Output,
) -> Result<(), CliError> {
    let topic = broker.topic(&of.topic).await?;
    let group = chosen(&topic, of)?;
    let retired = recorded(broker, &topic, group, Some(Retirement::Drain)).await?;
    warn_if_configured(&topic, group);
    warn_if_last(&topic, &retired);
    if !output.is_table() {
        return Ok(output.object(&retired)?);
    }
    let (name, already) = (name_of(&topic, group), already(retired.changed));
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
    broker: &Broker,
    of: &GroupArgs,
    yes: bool,
    output: &Output,
) -> Result<(), CliError> {
    let topic = broker.topic(&of.topic).await?;
    let group = chosen(&topic, of)?;
    let name = name_of(&topic, group);
    if !yes {
        confirm(broker, &topic, group).await?;
    }
    let retired = recorded(broker, &topic, group, Some(Retirement::Drop)).await?;
    let left = retired.left;
    warn_if_configured(&topic, group);
    warn_if_last(&topic, &retired);
    let mut reported = Instant::now();
    let dropped = drop_all(broker, &topic, group, |messages| {
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            eprintln!("dropped {messages} of {left}");
        }
    })
    .await?;
    if !dropped.gone {
        return Err(CliError::Failed(format!(
            "{name} was kept by another operator, after {} had been dropped",
            counted(dropped.messages, "message")
        )));
    }
    match output.is_table() {
        false => Ok(output.object(
            &json!({ "topic": topic.name(), "group": group, "dropped": dropped.messages }),
        )?),
        true => print(&format!(
            "{name} is removed, dropped {}",
            counted(dropped.messages, "message")
        )),
    }
}

/// Cancels the drain or drop of a group.
pub(crate) async fn keep(broker: &Broker, of: &GroupArgs, output: &Output) -> Result<(), CliError> {
    let topic = broker.topic(&of.topic).await?;
    let group = chosen(&topic, of)?;
    let retired = recorded(broker, &topic, group, None).await?;
    if !output.is_table() {
        return Ok(output.object(&retired)?);
    }
    let already = already(retired.changed);
    print(&format!("{} is{already} kept", name_of(&topic, group)))
}

/// Retires or keeps a group, and records it in the audit log.
async fn recorded(
    broker: &Broker,
    topic: &TopicHandle,
    group: &Group,
    how: Option<Retirement>,
) -> Result<GroupRetired, BrokerError> {
    let action = Action::on_command_line(broker, how.map_or("keep", Retirement::as_str))
        .topic(topic.name())
        .group(group);
    let retire = retire(broker, topic, group, how);
    action.run(retire, GroupRetired::outcome).await
}

/// Asks for confirmation before messages are dropped.
async fn confirm(broker: &Broker, topic: &TopicHandle, group: &Group) -> Result<(), CliError> {
    if !io::stdin().is_terminal() {
        let text = "drop requires --yes when there is no terminal".to_owned();
        return Err(CliError::Usage(text));
    }
    let stats = broker.stats(topic).await?;
    let of_group = stats.groups.iter().find(|counts| counts.group == *group);
    eprint!(
        "permanently drop {} of {}? [y/N] ",
        counted(of_group.map_or(0, left_of), "message"),
        name_of(topic, group)
    );
    be_sure()
}

/// Warns that a group comes back with the next start of a manager whose configuration names it.
fn warn_if_configured(topic: &TopicHandle, group: &Group) {
    if is_configured(topic, group) {
        eprintln!(
            "{} is still in the topic's settings: remove it from the managers' configuration, or their next start creates it again",
            name_of(topic, group)
        );
    }
}

/// Warns that no group gets the messages that become due from now on.
fn warn_if_last(topic: &TopicHandle, retired: &GroupRetired) {
    if retired.messages_wait {
        eprintln!(
            "{} has no other group that gets messages: due messages wait until a group is added or kept",
            topic.name()
        );
    }
}

fn chosen<'a>(topic: &'a TopicHandle, of: &GroupArgs) -> Result<&'a Group, CliError> {
    choose_group::choose(topic, Some(of.group.as_str())).map_err(failed)
}

fn name_of(topic: &TopicHandle, group: &Group) -> String {
    format!("{}/{group}", topic.name())
}

fn already(changed: bool) -> &'static str {
    if changed { "" } else { " already" }
}
