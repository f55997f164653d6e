//! `groups`: lists, drains, drops and keeps groups.

use std::time::{Duration, Instant};

use lisa_core::broker::{GroupStats, Retirement};
use lisa_core::topic::Topic;
use lisa_service::cli::{Output, Rows, prompt, remark};
use serde_json::json;
use tokio::time::sleep;

use super::{be_sure, complete, counted, of_group, print, require_terminal, topic_stats};
use crate::cli::args::GroupArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::operations::groups::{self, Dropped, GroupRetired, GroupView};
use crate::operations::topics::{Missing, StatsList};

/// The pause between two looks at a group that a manager drops.
const LOOK_EVERY: Duration = Duration::from_millis(500);
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
    client: &Client,
    topic: Option<&Topic>,
    output: &Output,
) -> Result<(), CliError> {
    let (topics, missing) = match topic {
        Some(topic) => (vec![topic_stats(client, topic).await?], Missing::default()),
        None => {
            let stats: StatsList = client.get(&["stats"]).answer().await?;
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
        row.extend(group.stats.by_state().map(|(_, count)| count.to_string()));
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
pub(crate) async fn drain(
    client: &Client,
    of: &GroupArgs,
    output: &Output,
) -> Result<(), CliError> {
    let retired: GroupRetired = client.post(&of.route("drain")).answer().await?;
    let stats = group_stats(client, of).await?;
    warn(client, of, &retired);
    if !output.is_table() {
        return Ok(output.object(&retired)?);
    }
    let (name, already) = (name_of(of), already(retired.changed));
    let Some(stats) = stats.filter(|stats| stats.messages() > 0) else {
        return print(&format!("{name} is{already} draining, and empty"));
    };
    let left = stats.by_state().into_iter().filter(|(_, count)| *count > 0);
    let left = left.map(|(state, count)| format!("{count} {}", state.as_str().replace('_', " ")));
    let left: Vec<_> = left.collect();
    print(&format!("{name} is{already} draining: {}", left.join(", ")))?;
    if stats.paused {
        print("it is paused: draining continues when it is resumed")?;
    }
    if stats.consumers == 0 && stats.messages() > stats.garbage {
        print("no consumer reads it: start one to drain it")?;
    }
    if stats.garbage > 0 {
        print("it cannot be removed before its garbage is requeued or purged")?;
    }
    Ok(())
}

/// Drops the messages of a group and removes it. Returns when it is gone.
pub(crate) async fn drop_group(
    client: &Client,
    of: &GroupArgs,
    yes: bool,
    output: &Output,
) -> Result<(), CliError> {
    let (topic, name) = (&of.topic, name_of(of));
    if !yes {
        confirm(client, of).await?;
    }
    let retired: GroupRetired = client.post(&of.route("drop")).answer().await?;
    let left = retired.left;
    warn(client, of, &retired);
    let (mut reported, mut before) = (Instant::now(), 0);
    let progress = |messages| {
        if messages != before && reported.elapsed() >= REPORT_EVERY {
            (reported, before) = (Instant::now(), messages);
            remark(format_args!("dropped {messages} of {left}"));
        }
    };
    let dropped = drop_all(client, of, left, progress).await?;
    if !dropped.gone {
        return Err(CliError::Failed(format!(
            "{name} was kept by another operator, after {} had been dropped",
            counted(dropped.messages, "message")
        )));
    }
    match output.is_table() {
        false => Ok(output
            .object(&json!({ "topic": topic, "group": of.group, "dropped": dropped.messages }))?),
        true => print(&format!(
            "{name} is removed, dropped {}",
            counted(dropped.messages, "message")
        )),
    }
}

/// Cancels the drain or drop of a group.
pub(crate) async fn keep(client: &Client, of: &GroupArgs, output: &Output) -> Result<(), CliError> {
    let retired: GroupRetired = client.post(&of.route("keep")).answer().await?;
    if !output.is_table() {
        return Ok(output.object(&retired)?);
    }
    let already = already(retired.changed);
    print(&format!("{} is{already} kept", name_of(of)))
}

/// Asks for confirmation before messages are dropped.
async fn confirm(client: &Client, of: &GroupArgs) -> Result<(), CliError> {
    require_terminal("drop")?;
    let Some(stats) = group_stats(client, of).await? else {
        // The route explains that there is no such group.
        return Ok(());
    };
    prompt(format_args!(
        "permanently drop {} of {}? [y/N] ",
        counted(stats.messages(), "message"),
        name_of(of)
    ));
    be_sure()
}

/// Warns if a group will come back because the settings still name it, and if no group gets the messages that become due from now
/// on.
fn warn(client: &Client, of: &GroupArgs, retired: &GroupRetired) {
    let (name, topic) = (name_of(of), &of.topic);
    if retired.configured {
        // Without the managers' configuration, this process does not know what it declares.
        let remedy = match client.require_managers_file() {
            Ok(()) => String::new(),
            Err(_) => format!(
                "; if the configuration does not declare {topic}, use `topics change {topic} groups=...` instead"
            ),
        };
        remark(format_args!(
            "{name} is still in the topic's settings: remove it from the managers' configuration, or their next start creates it again{remedy}"
        ));
    }
    if retired.messages_wait {
        remark(format_args!(
            "{} has no other group that gets messages: due messages wait until a group is added or kept",
            of.topic
        ));
    }
}

/// Counts the messages of a group; `None` if the topic has no such group any more.
async fn group_stats(client: &Client, of: &GroupArgs) -> Result<Option<GroupStats>, CliError> {
    let mut groups = topic_stats(client, &of.topic).await?.groups.into_iter();
    Ok(groups.find(|stats| stats.group == of.group))
}

/// Drops the messages of a group marked to be dropped, and removes it. With `--url`, the managers do that, and this function
/// waits for them.
async fn drop_all(
    client: &Client,
    of: &GroupArgs,
    left: u64,
    mut progress: impl FnMut(u64),
) -> Result<Dropped, CliError> {
    if let Some(broker) = client.broker() {
        let topic = broker.topic(&of.topic).await?;
        return Ok(groups::drop_all(broker, &topic, &of.group, progress).await?);
    }
    loop {
        let Some(stats) = group_stats(client, of).await? else {
            return Ok(Dropped {
                messages: left,
                gone: true,
            });
        };
        let messages = left.saturating_sub(stats.messages());
        if stats.retiring != Some(Retirement::Drop) {
            return Ok(Dropped {
                messages,
                gone: false,
            });
        }
        progress(messages);
        sleep(LOOK_EVERY).await;
    }
}

impl GroupArgs {
    fn route<'a>(&'a self, verb: &'a str) -> Vec<&'a str> {
        of_group(&self.topic, &self.group, &[verb])
    }
}

fn name_of(of: &GroupArgs) -> String {
    format!("{}/{}", of.topic, of.group)
}

fn already(changed: bool) -> &'static str {
    if changed { "" } else { " already" }
}
