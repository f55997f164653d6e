//! The one-shot verbs: each asks the relay (`jobs` a running manager), prints the result and exits.

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

use std::fmt::Display;
use std::io::{self, BufRead, IsTerminal};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lisa_core::broker::{Broker, BrokerError, TimeRange};
use lisa_core::message::{MessageId, OrderingKey};
use lisa_core::misspelling;
use lisa_core::state::{GarbageReason, State};
use lisa_core::time::format_duration;
use lisa_core::topic::{Group, Topic};
use lisa_service::cli::{Output, Rows, escape_lines, prompt, remark};
use lisa_service::role::StartError;
use serde_json::json;

use crate::cli::args::{FilterArgs, PageArgs, SweepArgs, TimeArgs};
use crate::cli::error::CliError;
use crate::cli::relay::{PageQuery, Relay};
use crate::operations::choose_group;
use crate::operations::counted;
use crate::operations::garbage::{Selection, Verb};
use crate::operations::messages::{MessagePage, UNTIMED};
use crate::operations::topics::Missing;

/// Prints text, with control characters escaped. A closed pipe is not an error.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    Ok(lisa_service::cli::print(&escape_lines(text))?)
}

/// The time limit for reading all topics. Each call has its own limit as well.
pub(crate) const ALL_WITHIN: Duration = Duration::from_secs(60);

/// Returns an error that names the topics missing from a result about all topics. Print the result first.
fn complete(missing: &Missing) -> Result<(), CliError> {
    match &missing.sentences()[..] {
        [] => Ok(()),
        missing => Err(CliError::Failed(missing.join("\n"))),
    }
}

/// Prints the registered topics.
pub(crate) async fn topics(relay: &Relay, output: &Output) -> Result<(), CliError> {
    let list = relay.topics().await?;
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
            if topic.resharding { "resharding" } else { "" }.to_owned(),
            groups.join(", "),
            settings.shards.to_string(),
            format_duration(settings.lease),
            settings.max_attempts.to_string(),
            format_duration(settings.max_delay),
        ]);
    }
    Ok(output.list(&list, Some("topics"), &table)?)
}

/// Prints the configured schedules.
pub(crate) async fn schedules(relay: &Relay, output: &Output) -> Result<(), CliError> {
    if let Relay::Redis { loaded, .. } = relay
        && loaded.config.schedules.is_empty()
    {
        match &loaded.file {
            Some(file) => remark(format_args!(
                "{} has no schedules: use the managers' configuration file",
                file.display()
            )),
            None => remark(format_args!(
                "no schedules configured: name the managers' configuration file with --config"
            )),
        }
    }
    let list = relay.schedules().await?;
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
    relay: &Relay,
    topic: &Topic,
    group: Option<&Group>,
    state: State,
    times: TimeRange,
    page: &PageArgs,
    output: &Output,
) -> Result<(), CliError> {
    if !times.fits(state) {
        return Err(CliError::Usage(UNTIMED.to_owned()));
    }
    let page = page.into();
    let found = relay.messages(topic, group, state, times, &page).await?;
    show_page(&found, output)
}

/// Prints a page of the messages of an ordering key.
pub(crate) async fn list_of_key(
    relay: &Relay,
    topic: &Topic,
    key: &OrderingKey,
    page: &PageArgs,
    output: &Output,
) -> Result<(), CliError> {
    let found = relay.messages_of_key(topic, key, &page.into()).await?;
    show_page(&found, output)
}

/// Prints a page of messages in garbage, of those that match if there is a filter.
pub(crate) async fn list_garbage(
    relay: &Relay,
    topic: &Topic,
    group: Option<&Group>,
    filter: &FilterArgs,
    times: TimeArgs,
    page: &PageArgs,
    output: &Output,
) -> Result<(), CliError> {
    if filter.is_empty() {
        let times = times.into();
        return list(relay, topic, group, State::Garbage, times, page, output).await;
    }
    let filter = filter.within(times.from, times.to);
    let page = page.into();
    let found = relay.search_garbage(topic, group, &filter, times.newest, &page);
    show_page(&found.await?, output)
}

impl<'a> From<&'a PageArgs> for PageQuery<'a> {
    fn from(page: &'a PageArgs) -> Self {
        Self {
            limit: page.limit.into(),
            cursor: page.cursor.as_deref(),
        }
    }
}

fn show_page(page: &MessagePage, output: &Output) -> Result<(), CliError> {
    let mut table = Rows::new([
        "ID", "KEY", "STATE", "TIME", "ATTEMPT", "CONSUMER", "REASON", "ERROR",
    ]);
    for message in &page.messages {
        let time = message
            .time()
            .map_or(String::new(), |time| time.to_string());
        table.add_row([
            message.id.as_str(),
            message.key.as_ref().map_or("", OrderingKey::as_str),
            message.state.as_str(),
            &time,
            &message.attempt.to_string(),
            message.consumer.as_deref().unwrap_or_default(),
            message.reason.map_or("", GarbageReason::as_str),
            message.error.as_deref().unwrap_or_default(),
        ]);
    }
    output.list(page, Some("messages"), &table)?;
    if let Some(looked_at) = page.looked_at {
        let examined = counted(looked_at as u64, "message");
        output.note(&format!("examined {examined}"))?;
    }
    match &page.next {
        Some(next) => Ok(output.note(&format!("more: --cursor {next}"))?),
        None => Ok(()),
    }
}

/// Prints one message.
pub(crate) async fn show(
    relay: &Relay,
    topic: &Topic,
    id: &MessageId,
    key: Option<&OrderingKey>,
    output: &Output,
) -> Result<(), CliError> {
    let found = relay.find(topic, id, key).await?;
    let message = found.map_err(|error| CliError::Failed(error.to_string()))?;
    if !output.is_table() {
        return Ok(output.object(&message)?);
    }
    let listed = &message.listed;
    let mut table = Rows::new(["", ""]);
    fn text(value: Option<impl Display>) -> String {
        value.map_or(String::new(), |value| value.to_string())
    }
    let mut row = |name: &str, value: &str| {
        if !value.is_empty() {
            table.add_row([name, value]);
        }
    };
    row("id", listed.id.as_str());
    row("topic", message.topic.as_str());
    row("state", listed.state.as_str());
    row("due at", &text(listed.due_at));
    row("garbage at", &text(listed.garbage_at));
    row("attempt", &listed.attempt.to_string());
    row("consumer", listed.consumer.as_deref().unwrap_or_default());
    row("reason", listed.reason.map_or("", GarbageReason::as_str));
    row("error", listed.error.as_deref().unwrap_or_default());
    row("max attempts", &message.max_attempts.to_string());
    let retry = message.retry.as_ref().map(|retry| json!(retry).to_string());
    row("retry", &retry.unwrap_or_default());
    row("key", listed.key.as_ref().map_or("", OrderingKey::as_str));
    row(
        "merge key",
        message.merge_key.as_deref().unwrap_or_default(),
    );
    let priority = Some(message.priority).filter(|priority| *priority != 0);
    row("priority", &text(priority));
    row("expires at", &text(message.expires_at));
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
    match message.payload.text() {
        Some(text) => row("payload", text),
        None => row("payload (base64)", &STANDARD.encode(&message.payload.0)),
    }
    print(&table.to_string())
}

/// Prints the groups of errors in garbage.
pub(crate) async fn errors(
    relay: &Relay,
    topic: &Topic,
    group: Option<&Group>,
    output: &Output,
) -> Result<(), CliError> {
    let group = relay.group(topic, group).await?;
    let groups = relay.errors(topic, &group).await?;
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
    relay: &Relay,
    topic: &Topic,
    group: Option<&Group>,
    page: &PageQuery<'_>,
    output: &Output,
) -> Result<(), CliError> {
    let group = relay.group(topic, group).await?;
    let page = relay.keys(topic, &group, page).await?;
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
    relay: &Relay,
    verb: Verb,
    args: SweepArgs,
    output: &Output,
) -> Result<(), CliError> {
    if args.job.is_job() {
        return garbage_jobs::start(relay, verb, args, output).await;
    }
    let topic = &args.topic;
    let group = relay.group(topic, args.group.as_ref()).await?;
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
        confirm(relay, topic, &group, verb).await?;
    }
    let swept = relay.sweep(topic, &group, verb, &selection, args.dry_run);
    let swept = swept.await?;
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
async fn confirm(relay: &Relay, topic: &Topic, group: &Group, verb: Verb) -> Result<(), CliError> {
    let verb_word = verb.as_str();
    if !io::stdin().is_terminal() {
        return Err(CliError::Usage(format!(
            "{verb_word} --all requires --yes when there is no terminal"
        )));
    }
    let all = relay.sweep(topic, group, verb, &Selection::All, true);
    let count = all.await?.found;
    if count == 0 {
        return Ok(());
    }
    prompt(format_args!(
        "{verb_word} {} of {topic}/{group}? [y/N] ",
        counted(count, "message")
    ));
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
    relay: &Relay,
    topic: &Topic,
    group: Option<&Group>,
    paused: bool,
    output: &Output,
) -> Result<(), CliError> {
    let (what, changed) = match group {
        Some(group) => {
            let group = relay.group(topic, Some(group)).await?;
            let done = relay.pause_group(topic, &group, paused).await?;
            if !output.is_table() {
                return Ok(output.object(&done)?);
            }
            (format!("{topic}/{group}"), done.changed)
        }
        None => {
            let done = relay.pause(topic, paused).await?;
            if !output.is_table() {
                return Ok(output.object(&done)?);
            }
            (topic.to_string(), done.changed)
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
pub(crate) async fn nearest_topic(broker: &Broker, unknown: &Topic) -> String {
    // A verb has loaded only the topics that it names. A failure must not hide the error that is being explained.
    if let Err(error) = broker.refresh().await {
        tracing::debug!(%error, "cannot read the registry");
    }
    misspelling::suggest_topic(broker, unknown)
}

pub(crate) fn failed(error: choose_group::GroupError) -> CliError {
    CliError::Failed(error.to_string())
}
