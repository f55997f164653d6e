//! `topics`: lists topics, shows one, creates one, changes settings of one, and removes one.

use std::time::Duration;

use lisa_core::broker::{Removal, TopicStats};
use lisa_core::fields::{Description, plain};
use lisa_core::time::format_duration;
use lisa_core::topic::{Group, Topic, TopicSettings};
use lisa_service::cli::{Output, Rows, prompt, remark};
use lisa_service::http::auth::Scope;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep};

use super::{again_if_changed, be_sure, counted, print, require_terminal, topic_stats};
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::setting::{Setting, set_all};
use crate::operations::topics::{TopicEntry, TopicList, TopicRemoval, flat};

/// The time to wait for a removal that nothing holds up, and the pause between two looks.
const GONE_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Prints the registered topics whose names begin with `prefix`.
pub(crate) async fn list(
    client: &Client,
    prefix: Option<&Topic>,
    output: &Output,
) -> Result<(), CliError> {
    let list = client.get(&["topics"]).query("prefix", prefix);
    let list: TopicList = list.answer().await?;
    let mut table = Rows::new([
        "TOPIC",
        "TOPIC STATE",
        "GROUPS",
        "SHARDS",
        "LEASE",
        "MAX ATTEMPTS",
        "MAX DELAY",
    ])
    .marks(["TOPIC STATE"]);
    for topic in &list.topics {
        let settings = &topic.settings;
        let groups: Vec<_> = topic.groups.iter().map(Group::as_str).collect();
        table.add_row([
            topic.topic.to_string(),
            match topic.removal {
                Some(Removal::Drain) => "draining",
                Some(Removal::Force) => "being removed",
                None if topic.resharding => "resharding",
                None => "",
            }
            .to_owned(),
            groups.join(", "),
            settings.shards.to_string(),
            format_duration(settings.lease),
            settings.max_attempts.to_string(),
            format_duration(settings.max_delay),
        ]);
    }
    Ok(output.list(&list, Some("topics"), &table)?)
}

/// Prints a topic with all its settings, named as `topics change` reads them.
pub(crate) async fn show(client: &Client, topic: &Topic, output: &Output) -> Result<(), CliError> {
    #[derive(Deserialize)]
    struct View {
        created_at: Option<String>,
        epoch: u64,
        removal: Option<Removal>,
        settings: Map<String, Value>,
        stats: TopicStats,
    }
    let view: Value = client.get(&["topics", topic.as_str()]).answer().await?;
    if !output.is_table() {
        return Ok(output.object(&view)?);
    }
    let view: View = serde_json::from_value(view)
        .map_err(|error| CliError::Failed(format!("cannot read the topic: {error}")))?;
    let mut table = Rows::new(["", ""]);
    let mut row = |name: &str, value: &str| table.add_row([name, value]);
    row("topic", topic.as_str());
    if let Some(at) = &view.created_at {
        row("created at", at);
    }
    row("epoch", &view.epoch.to_string());
    if let Some(how) = view.removal {
        row("being removed", how.as_str());
    }
    if view.stats.paused {
        row("paused", "yes");
    }
    row("stored messages", &view.stats.stored.to_string());
    for (name, value) in flat("", &view.settings) {
        let text = (!value.is_null()).then(|| plain(&value));
        row(&name, text.as_deref().unwrap_or("not set"));
    }
    print(&table.to_string())
}

/// Creates a topic.
pub(crate) async fn create(
    client: &Client,
    topic: &Topic,
    settings: &[Setting],
    output: &Output,
) -> Result<(), CliError> {
    let put = put(client, topic, Map::new(), settings, "If-None-Match", "*");
    let (status, created) = put.await.map_err(CliError::about_creation)?;
    let what = match status {
        StatusCode::CREATED => "created",
        _ => "already exists with these settings",
    };
    report(&created, what, output)
}

/// Changes settings of a topic, and keeps the others, including concurrent changes to them. Warns about each group that the settings no
/// longer name.
pub(crate) async fn change(
    client: &Client,
    topic: &Topic,
    settings: &[Setting],
    output: &Output,
) -> Result<(), CliError> {
    #[derive(Deserialize)]
    struct View {
        epoch: u64,
        settings: Map<String, Value>,
    }
    let read_and_put = async || {
        let before: View = client.get(&["topics", topic.as_str()]).answer().await?;
        let tag = format!("\"{}\"", before.epoch);
        let named = before.settings.get("groups").cloned().unwrap_or_default();
        let named: Vec<Group> = serde_json::from_value(named).unwrap_or_default();
        let put = put(client, topic, before.settings, settings, "If-Match", &tag);
        let (_, changed) = put.await?;
        Ok((before.epoch, named, changed))
    };
    let (before, named_before, changed) = again_if_changed(read_and_put).await?;
    let what = match changed.epoch == before {
        true => "already has these settings",
        false => "changed",
    };
    report(&changed, what, output)?;
    let named_after = &changed.settings.groups;
    if named_before.iter().all(|group| named_after.contains(group)) {
        return Ok(());
    }
    let stats = topic_stats(client, topic).await?;
    for group in stats.groups {
        let name = &group.group;
        if named_before.contains(name) && group.unconfigured && group.retiring.is_none() {
            remark(format_args!(
                "group {name} stays, and still gets messages: remove it with `lisa-manager groups drain {topic} {name}`, or \
                 with `lisa-manager groups drop {topic} {name}` to discard its messages too"
            ));
        }
    }
    Ok(())
}

/// Removes a topic. Waits up to [`GONE_WITHIN`] for a removal by force, or for that of an empty topic.
pub(crate) async fn remove(
    client: &Client,
    topic: &Topic,
    how: Option<Removal>,
    yes: bool,
    output: &Output,
) -> Result<(), CliError> {
    client.require_managers_file()?;
    if how == Some(Removal::Force) && !yes {
        confirm(topic)?;
    }
    let call = client.call(Method::DELETE, &["topics", topic.as_str()], Scope::Operate);
    let begun = call.query("how", how).answer().await;
    let begun: TopicRemoval = begun.map_err(CliError::about_removal)?;
    let until = Instant::now() + GONE_WITHIN;
    let mut is_gone = false;
    while !is_gone
        && (begun.stored == 0 || begun.removal == Removal::Force)
        && Instant::now() < until
    {
        sleep(LOOK_EVERY).await;
        let there: Result<Value, _> = client.get(&["topics", topic.as_str()]).answer().await;
        is_gone = match there {
            Err(CliError::Refused(refusal)) if refusal.code() == "unknown_topic" => true,
            there => there.map(|_| false)?,
        };
    }
    if !output.is_table() {
        return Ok(output.object(&begun)?);
    }
    let left = counted(begun.stored, "message");
    if !is_gone
        && begun.removal == Removal::Drain
        // It may be gone now.
        && let Ok(stats) = topic_stats(client, topic).await
    {
        let groups = stats.groups.into_iter();
        if stats.paused {
            remark(format_args!(
                "{topic} is paused: draining continues when it is resumed"
            ));
        }
        for group in groups.filter(|group| group.consumers == 0) {
            let name = group.group;
            remark(format_args!(
                "no consumer reads {topic}/{name}: start one to drain the topic"
            ));
        }
    }
    print(&match (is_gone, begun.removal) {
        (true, _) => format!("{topic} is removed"),
        (false, Removal::Drain) => {
            format!("{topic} is draining: {left} stored; removed once none is left")
        }
        (false, Removal::Force) => {
            format!("{topic} is being removed; this requires a running manager")
        }
    })
}

/// Asks for confirmation before messages are removed.
fn confirm(topic: &Topic) -> Result<(), CliError> {
    require_terminal("--force")?;
    prompt(format_args!(
        "permanently remove topic {topic} with its messages? [y/N] "
    ));
    be_sure()
}

async fn put(
    client: &Client,
    topic: &Topic,
    settings: Map<String, Value>,
    changes: &[Setting],
    condition: &'static str,
    value: &str,
) -> Result<(StatusCode, TopicEntry), CliError> {
    client.require_managers_file()?;
    let settings = set_all(settings, changes, &Description::all::<TopicSettings>());
    let call = client.call(Method::PUT, &["topics", topic.as_str()], Scope::Operate);
    let call = call.header(condition, Some(value));
    call.json(&settings.into())
        .answer_with_status()
        .await
        .map_err(CliError::about_settings)
}

fn report(topic: &TopicEntry, what: &str, output: &Output) -> Result<(), CliError> {
    if !output.is_table() {
        return Ok(output.object(topic)?);
    }
    print(&format!("{} {what}", topic.topic))
}
