//! The one-shot verbs: each asks Redis (`jobs` a running manager), prints the result and exits.

pub(crate) mod audit;
pub(crate) mod check;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod forecast;
pub(crate) mod garbage_jobs;
pub(crate) mod groups;
pub(crate) mod history;
pub(crate) mod jobs;
pub(crate) mod reshard;
pub(crate) mod stats;
pub(crate) mod tail;
pub(crate) mod top;
pub(crate) mod workers;

use std::io::{self, BufRead, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::{Broker, BrokerError, InvalidCursor, TimeRange, TopicHandle};
use lisa_core::message::{MessageId, OrderingKey};
use lisa_core::misspelling;
use lisa_core::state::{GarbageReason, State};
use lisa_core::time::format_duration;
use lisa_core::topic::{Group, Topic};
use lisa_service::cli::{Output, Rows, escape_lines};
use lisa_service::config::Loaded;
use lisa_service::role::StartError;
use serde_json::json;

use crate::cli::args::{PageArgs, SweepArgs};
use crate::cli::error::CliError;
use crate::operations::audit::{self as audit_of, Action};
use crate::operations::garbage::{self, Selection, Verb};
use crate::operations::messages::{FindError, MessagePage, UNTIMED, find};
use crate::operations::topics::Missing;
use crate::operations::{self, choose_group, error_groups, parked_keys};
use crate::recurring;

/// Prints text, with control characters escaped. A closed pipe is not an error.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    Ok(lisa_service::cli::print(&escape_lines(text))?)
}

/// The time limit for reading all topics. Each call has its own limit as well.
const ALL_WITHIN: Duration = Duration::from_secs(60);

/// Formats a count with its noun: `1 message`, `2 messages`.
fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// Returns an error that names the topics missing from a result about all topics. Print the result first.
fn complete(missing: &Missing) -> Result<(), CliError> {
    match &missing.sentences()[..] {
        [] => Ok(()),
        missing => Err(CliError::Failed(missing.join("\n"))),
    }
}

/// Prints the registered topics.
pub(crate) async fn topics(broker: &Broker, output: &Output) -> Result<(), CliError> {
    let topics = broker.refresh().await?;
    let document = {
        let entry = |topic: &Arc<TopicHandle>| json!({ "topic": topic.name(), "epoch": topic.epoch(), "settings": topic.settings() });
        let topics: Vec<_> = topics.iter().map(entry).collect();
        json!({ "topics": topics })
    };
    let mut table = Rows::new([
        "TOPIC",
        "GROUPS",
        "SHARDS",
        "LEASE",
        "MAX ATTEMPTS",
        "MAX DELAY",
    ]);
    for topic in topics {
        let settings = topic.settings();
        let groups: Vec<_> = topic.groups().iter().map(Group::as_str).collect();
        table.add_row([
            topic.name().to_string(),
            groups.join(", "),
            match topic.is_resharding() {
                true => format!("{} (resharding)", settings.shards),
                false => settings.shards.to_string(),
            },
            format_duration(settings.lease),
            settings.max_attempts.to_string(),
            format_duration(settings.max_delay),
        ]);
    }
    Ok(output.list(&document, Some("topics"), &table)?)
}

/// Prints the configured schedules.
pub(crate) async fn schedules(
    broker: &Broker,
    loaded: &Loaded,
    output: &Output,
) -> Result<(), CliError> {
    let schedules = &loaded.config.schedules;
    match &loaded.file {
        _ if !schedules.is_empty() => {}
        Some(file) => eprintln!(
            "{} has no schedules: use the managers' configuration file",
            file.display()
        ),
        None => {
            eprintln!(
                "no schedules configured: name the managers' configuration file with --config"
            );
        }
    }
    let list = recurring::view(broker, schedules).await?;
    let mut table = Rows::new([
        "SCHEDULE",
        "TOPIC",
        "CRON",
        "TIME ZONE",
        "SENT UNTIL",
        "NEXT",
    ]);
    for schedule in &list.schedules {
        table.add_row([
            schedule.schedule.as_str(),
            schedule.topic.as_str(),
            &schedule.cron,
            &schedule.time_zone,
            schedule.sent_until.as_deref().unwrap_or_default(),
            schedule.next.as_deref().unwrap_or_default(),
        ]);
    }
    Ok(output.list(&list, Some("schedules"), &table)?)
}

/// Prints a page of messages.
pub(crate) async fn list(
    broker: &Broker,
    topic: &Topic,
    group: Option<&Group>,
    state: State,
    times: TimeRange,
    page: &PageArgs,
    output: &Output,
) -> Result<(), CliError> {
    let topic = broker.topic(topic).await?;
    let group =
        choose_group::choose_for(&topic, state, group.map(Group::as_str)).map_err(failed)?;
    if !times.fits(state) {
        return Err(CliError::Usage(UNTIMED.to_owned()));
    }
    let limit = usize::from(page.limit);
    let found = broker
        .list_within(&topic, group, state, times, page.cursor.as_deref(), limit)
        .await?;
    show_page(&MessagePage::new(&topic, group, found), output)
}

/// Prints a page of the messages of an ordering key.
pub(crate) async fn list_of_key(
    broker: &Broker,
    topic: &Topic,
    key: &OrderingKey,
    page: &PageArgs,
    output: &Output,
) -> Result<(), CliError> {
    let topic = broker.topic(topic).await?;
    let cursor = page.cursor.as_deref().map(str::parse).transpose();
    let cursor = cursor.map_err(|error: InvalidCursor| CliError::Usage(error.to_string()))?;
    let limit = usize::from(page.limit);
    match broker.list_of_key(&topic, key, cursor, limit).await {
        Ok(found) => show_page(&MessagePage::of_key(&topic, found), output),
        Err(error @ BrokerError::NoKeyIndex(_)) => Err(CliError::Failed(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

fn show_page(page: &MessagePage, output: &Output) -> Result<(), CliError> {
    let mut table = Rows::new([
        "ID", "STATE", "TIME", "ATTEMPT", "CONSUMER", "REASON", "ERROR",
    ]);
    for message in &page.messages {
        let time = message.due_at.as_deref().or(message.garbage_at.as_deref());
        table.add_row([
            message.id.as_str(),
            message.state.as_str(),
            time.unwrap_or_default(),
            &message.attempt.to_string(),
            message.consumer.as_deref().unwrap_or_default(),
            message.reason.map_or("", GarbageReason::as_str),
            message.error.as_deref().unwrap_or_default(),
        ]);
    }
    output.list(page, Some("messages"), &table)?;
    match &page.next {
        Some(next) => Ok(output.note(&format!("more: --cursor {next}"))?),
        None => Ok(()),
    }
}

/// Prints one message.
pub(crate) async fn show(
    broker: &Broker,
    topic: &Topic,
    id: &MessageId,
    key: Option<&OrderingKey>,
    output: &Output,
) -> Result<(), CliError> {
    let topic = broker.topic(topic).await?;
    let message = find(broker, &topic, id, key)
        .await
        .map_err(|error| match error {
            FindError::Broker(error) => error.into(),
            error => CliError::Failed(error.to_string()),
        })?;
    if !output.is_table() {
        return Ok(output.object(&message)?);
    }
    let view = &message.message;
    let mut table = Rows::new(["", ""]);
    let mut row = |name: &str, value: &str| {
        if !value.is_empty() {
            table.add_row([name, value]);
        }
    };
    row("id", view.id.as_str());
    row("topic", message.topic.as_str());
    row("state", view.state.as_str());
    row("due at", view.due_at.as_deref().unwrap_or_default());
    row("garbage at", view.garbage_at.as_deref().unwrap_or_default());
    row("attempt", &view.attempt.to_string());
    row("consumer", view.consumer.as_deref().unwrap_or_default());
    row("reason", view.reason.map_or("", GarbageReason::as_str));
    row("error", view.error.as_deref().unwrap_or_default());
    row("max attempts", &message.max_attempts.to_string());
    let retry = message.retry.as_ref().map(|retry| json!(retry).to_string());
    row("retry", &retry.unwrap_or_default());
    row("key", message.key.as_deref().unwrap_or_default());
    row(
        "merge key",
        message.merge_key.as_deref().unwrap_or_default(),
    );
    row(
        "priority",
        &message.priority.map_or(String::new(), |n| n.to_string()),
    );
    row(
        "expires at",
        message.expires_at.as_deref().unwrap_or_default(),
    );
    for copy in &message.groups {
        row(&format!("group {}", copy.group), &explain::why(copy));
        for attempt in &copy.attempts {
            let by = attempt.consumer.as_ref();
            let by = by.map_or(String::new(), |consumer| format!(" on {consumer}"));
            let outcome = attempt.outcome;
            let what = format!("{} {outcome}{by}: {}", attempt.at, attempt.error);
            row(&format!("attempt in {}", copy.group), &what);
        }
    }
    for (name, value) in message.headers.iter() {
        row(&format!("header {name}"), value);
    }
    row("payload", message.payload.as_deref().unwrap_or_default());
    row(
        "payload (base64)",
        message.payload_base64.as_deref().unwrap_or_default(),
    );
    print(&table.to_string())
}

/// Prints the groups of errors in garbage.
pub(crate) async fn errors(
    broker: &Broker,
    topic: &Topic,
    group: Option<&Group>,
    output: &Output,
) -> Result<(), CliError> {
    let topic = broker.topic(topic).await?;
    let group = choose_group::choose(&topic, group.map(Group::as_str)).map_err(failed)?;
    let groups = error_groups::error_groups(broker, &topic, group).await?;
    let mut table = Rows::new(["MESSAGES", "REASON", "FIRST", "LAST", "EXAMPLE", "ERROR"]);
    for group in &groups.errors {
        table.add_row([
            &group.count.to_string(),
            group.reason.as_str(),
            &group.first,
            &group.last,
            group.example.id.as_str(),
            &group.error,
        ]);
    }
    output.list(&groups, Some("errors"), &table)?;
    if groups.other_errors > 0 {
        let errors = counted(groups.other_errors as u64, "error");
        let messages = counted(groups.other_messages, "message");
        output.note(&format!("and {errors} more of {messages}"))?;
    }
    if groups.newest < groups.total {
        let total = counted(groups.total, "message");
        output.note(&format!("of the newest {} of {total}", groups.newest))?;
    }
    Ok(())
}

/// Prints a page of the ordering keys that have parked messages.
pub(crate) async fn keys(
    broker: &Broker,
    topic: &Topic,
    group: Option<&Group>,
    (limit, cursor): (usize, Option<&str>),
    output: &Output,
) -> Result<(), CliError> {
    let topic = broker.topic(topic).await?;
    let group = choose_group::choose(&topic, group.map(Group::as_str)).map_err(failed)?;
    let cursor = cursor.map(str::parse).transpose();
    let cursor = cursor.map_err(|error: InvalidCursor| CliError::Usage(error.to_string()))?;
    let page = parked_keys::list(broker, &topic, group, cursor, limit).await?;
    let mut table = Rows::new(["KEY", "PARKED", "OLDEST DUE", "HOLDER", "STATE", "TIME"]);
    for key in &page.keys {
        let (id, state, time) = match &key.holder {
            Some(holder) => (
                holder.id.as_str(),
                holder.state.map_or("ready or in flight", State::as_str),
                holder.due_at.as_deref().or(holder.garbage_at.as_deref()),
            ),
            None => ("none", "", None),
        };
        table.add_row([
            &key.key,
            &key.parked.to_string(),
            &key.oldest_due_at,
            id,
            state,
            time.unwrap_or_default(),
        ]);
    }
    output.list(&page, Some("keys"), &table)?;
    match &page.next {
        Some(next) => Ok(output.note(&format!("more: --cursor {next:?}"))?),
        None => Ok(()),
    }
}

/// Requeues or purges garbage.
pub(crate) async fn sweep(
    broker: &Broker,
    verb: Verb,
    args: SweepArgs,
    output: &Output,
) -> Result<(), CliError> {
    if args.job.is_job() {
        return garbage_jobs::start(broker, verb, args, output).await;
    }
    let topic = broker.topic(&args.topic).await?;
    let named = args.group.as_ref().map(Group::as_str);
    let group = choose_group::choose(&topic, named).map_err(failed)?;
    let asked = args.ids.len();
    let selection = match (args.all, args.ids) {
        (true, _) => Selection::All,
        (false, ids) if ids.is_empty() => {
            let verb = verb.as_str();
            return Err(CliError::Usage(format!(
                "name the messages to {verb}, or use --all for all that are in garbage now"
            )));
        }
        (false, ids) => Selection::Ids(ids),
    };
    if args.all && !args.dry_run && !args.yes {
        confirm(broker, &topic, group, verb).await?;
    }
    let sweep = garbage::sweep(broker, &topic, group, verb, &selection, args.dry_run);
    let swept = if args.dry_run {
        sweep.await?
    } else {
        let action = Action::on_command_line(broker, verb.as_str())
            .topic(topic.name())
            .group(group)
            .details(audit_of::extent(&selection));
        action.run(sweep, audit_of::swept).await?
    };
    match output.is_table() {
        false => output.object(&swept)?,
        true if args.dry_run => {
            let messages = counted(swept.found, "message");
            print(&format!("would {} {messages}", verb.as_str()))?
        }
        true => {
            let messages = counted(swept.done, "message");
            print(&format!("{}d {messages}", verb.as_str()))?
        }
    }
    let missing: Vec<&str> = swept.missing.iter().map(MessageId::as_str).collect();
    match missing.len() {
        0 => Ok(()),
        count => Err(CliError::Failed(format!(
            "{count} of {} {} not in garbage: {}",
            counted(asked as u64, "message"),
            if count == 1 { "is" } else { "are" },
            missing.join(", ")
        ))),
    }
}

/// Asks for confirmation before all garbage of a group is requeued or purged.
async fn confirm(
    broker: &Broker,
    topic: &TopicHandle,
    group: &Group,
    verb: Verb,
) -> Result<(), CliError> {
    let verb_word = verb.as_str();
    if !io::stdin().is_terminal() {
        return Err(CliError::Usage(format!(
            "{verb_word} --all requires --yes when there is no terminal"
        )));
    }
    let count = garbage::sweep(broker, topic, group, verb, &Selection::All, true)
        .await?
        .found;
    if count == 0 {
        return Ok(());
    }
    eprint!(
        "{verb_word} {} of {}/{group}? [y/N] ",
        counted(count, "message"),
        topic.name()
    );
    be_sure()
}

/// Reads the answer to a question printed on stderr. Returns an error unless it is yes.
fn be_sure() -> Result<(), CliError> {
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(CliError::Failed(
            "not confirmed: nothing was done".to_owned(),
        )),
    }
}

/// Pauses or resumes a topic or one of its groups.
pub(crate) async fn pause(
    broker: &Broker,
    topic: &Topic,
    group: Option<&Group>,
    paused: bool,
    output: &Output,
) -> Result<(), CliError> {
    let topic = broker.topic(topic).await?;
    let action = if paused { "pause" } else { "resume" };
    let action = Action::on_command_line(broker, action).topic(topic.name());
    let (what, changed) = match group {
        Some(group) => {
            let group = choose_group::choose(&topic, Some(group.as_str())).map_err(failed)?;
            let pause = operations::groups::pause(broker, &topic, group, paused);
            let done = action
                .group(group)
                .run(pause, |done| audit_of::changed(done.changed))
                .await?;
            if !output.is_table() {
                return Ok(output.object(&done)?);
            }
            (format!("{}/{group}", topic.name()), done.changed)
        }
        None => {
            let changed = action
                .run(broker.pause(&topic, paused), |done| {
                    audit_of::changed(*done)
                })
                .await?;
            if !output.is_table() {
                let done = json!({ "topic": topic.name(), "paused": paused, "changed": changed });
                return Ok(output.object(&done)?);
            }
            (topic.name().to_string(), changed)
        }
    };
    let state = if paused { "paused" } else { "running" };
    let already = if changed { "" } else { " already" };
    print(&format!("{what} is{already} {state}"))
}

/// Adds the nearest registered topic to an error about an unknown one. Returns any other error as it is.
pub(crate) async fn suggest_topic(broker: &Broker, error: CliError) -> CliError {
    match &error {
        CliError::Start(StartError::Broker(unknown @ BrokerError::UnknownTopic(topic))) => {
            let suggestion = nearest_topic(broker, topic).await;
            CliError::Failed(format!("{unknown}{suggestion}"))
        }
        _ => error,
    }
}

/// Returns `; did you mean "orders"?`, or nothing if no registered topic has a similar name.
async fn nearest_topic(broker: &Broker, unknown: &Topic) -> String {
    // A verb has loaded only the topics that it names. A failure must not hide the error that is being explained.
    if let Err(error) = broker.refresh().await {
        tracing::debug!(%error, "cannot read the registry");
    }
    misspelling::suggest_topic(broker, unknown)
}

fn failed(error: choose_group::GroupError) -> CliError {
    CliError::Failed(error.to_string())
}
