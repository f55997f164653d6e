//! The one-shot verbs: each asks the relay (`jobs` a running manager), prints the result and exits.

pub(crate) mod audit;
pub(crate) mod check;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod forecast;
pub(crate) mod garbage_jobs;
pub(crate) mod groups;
pub(crate) mod healthcheck;
pub(crate) mod history;
pub(crate) mod jobs;
pub(crate) mod reshard;
pub(crate) mod schedules;
pub(crate) mod size;
pub(crate) mod stats;
pub(crate) mod tail;
pub(crate) mod tokens;
pub(crate) mod top;
pub(crate) mod topics;
pub(crate) mod workers;

use std::fmt::Display;
use std::io::{self, BufRead, IsTerminal};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lisa_core::broker::{Broker, BrokerError, StoredMessage, TopicStats};
use lisa_core::message::{MessageId, OrderingKey};
use lisa_core::state::{GarbageReason, State};
use lisa_core::time::millis;
use lisa_core::topic::{Group, Topic};
use lisa_service::cli::{Output, Rows, escape_lines, prompt};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::cli::args::SweepArgs;
use crate::cli::args::{GarbageListArgs, KeysArgs, ListArgs, MessageArgs, PageArgs, PauseArgs};
use crate::cli::client::{Call, Client};
use crate::cli::error::CliError;
use crate::operations::choose_group::among;
use crate::operations::counted;
use crate::operations::error_groups::ErrorGroups;
use crate::operations::garbage::{Swept, Verb, without_repetitions};
use crate::operations::groups::GroupPaused;
use crate::operations::messages::MessagePage;
use crate::operations::parked_keys::KeyList;
use crate::operations::topics::{Missing, TopicPaused};

/// The ids of messages in one request. A body has a maximum size.
const IDS_AT_A_TIME: usize = 1000;

/// The most ids that an error names.
const SHOWN_IDS: usize = 20;

/// The maximum number of tries of a change that conflicts with concurrent ones, and the pause after the first, which grows by as much
/// each time.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// Runs `change`, which reads something and changes it. Runs it again if that was changed by others in between.
pub(crate) async fn again_if_changed<T>(
    change: impl AsyncFn() -> Result<T, CliError>,
) -> Result<T, CliError> {
    for attempt in 1..TRIES {
        match change().await {
            Err(CliError::Refused(refusal)) if refusal.code() == "precondition_failed" => {}
            done => return done,
        }
        sleep(PAUSE * attempt).await;
    }
    change().await
}

/// Prints text, with control characters escaped. A closed pipe is not an error.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    Ok(lisa_service::cli::print(&escape_lines(text))?)
}

/// Converts a failure of Redis, for a verb that uses Redis directly. For an unknown topic, suggests the nearest registered one.
async fn failed(broker: &Broker, error: BrokerError) -> CliError {
    let BrokerError::UnknownTopic(topic) = &error else {
        return error.into();
    };
    // A verb has read only the topic that it names. A failure must not hide the error that is being explained.
    if let Err(error) = broker.refresh().await {
        tracing::debug!(%error, "cannot read the registry");
    }
    let suggestion = broker.suggest_topic(topic);
    CliError::Failed(format!("{error}{suggestion}"))
}

/// Formats a duration for a query.
fn in_ms(duration: Duration) -> String {
    format!("{}ms", millis(duration))
}

/// Returns the path of a route of a group.
fn of_group<'a>(topic: &'a Topic, group: &'a Group, route: &[&'a str]) -> Vec<&'a str> {
    let path = ["topics", topic.as_str(), "groups", group.as_str()];
    path.into_iter().chain(route.iter().copied()).collect()
}

/// Counts the messages of a topic.
async fn topic_stats(client: &Client, topic: &Topic) -> Result<TopicStats, CliError> {
    #[derive(Deserialize)]
    struct WithStats {
        stats: TopicStats,
    }
    let view: WithStats = client.get(&["topics", topic.as_str()]).answer().await?;
    Ok(view.stats)
}

/// Returns the named group, which the route checks; without a name, the only group of the topic.
async fn choose_group(
    client: &Client,
    topic: &Topic,
    named: Option<&Group>,
) -> Result<Group, CliError> {
    if let Some(named) = named {
        return Ok(named.clone());
    }
    let groups = topic_stats(client, topic).await?.groups.into_iter();
    let groups: Vec<Group> = groups.map(|stats| stats.group).collect();
    let group = among(topic, &groups, None);
    let group = group.map_err(|error| CliError::Failed(error.to_string()))?;
    Ok(group.clone())
}

/// Finds a message.
async fn find(client: &Client, of: &MessageArgs) -> Result<StoredMessage, CliError> {
    let path = ["topics", of.topic.as_str(), "messages", of.id.as_str()];
    let key = of.key.as_ref().map(OrderingKey::as_str);
    client.get(&path).header("lisa-key", key).answer().await
}

/// Returns an error that names the topics missing from a result about all topics. Print the result first.
fn complete(missing: &Missing) -> Result<(), CliError> {
    match &missing.sentences()[..] {
        [] => Ok(()),
        missing => Err(CliError::Failed(missing.join("\n"))),
    }
}

/// Prints a page of messages of a state, or of an ordering key.
pub(crate) async fn list(
    client: &Client,
    args: &ListArgs,
    output: &Output,
) -> Result<(), CliError> {
    let call = client.get(&["topics", args.topic.as_str(), "messages"]);
    let call = call.query("state", args.state);
    let call = call.query("group", args.group.as_ref());
    let call = call.query("key", args.key.as_ref());
    let call = call.query("from", args.from).query("to", args.to);
    let call = call.query("order", args.newest.then_some("newest"));
    show_page(&args.page.of(call).answer().await?, output)?;
    match (args.state, &args.key) {
        (None, None) => {
            Ok(output.note("only waiting messages; --state lists those of another state")?)
        }
        _ => Ok(()),
    }
}

/// Prints a page of messages in garbage, of those that match if there is a filter.
pub(crate) async fn list_garbage(
    client: &Client,
    args: &GarbageListArgs,
    output: &Output,
) -> Result<(), CliError> {
    let call = client.get(&["topics", args.topic.as_str(), "messages"]);
    let call = call.query("state", Some(State::Garbage));
    let call = call.query("group", args.group.as_ref());
    let call = call.query("order", args.newest.then_some("newest"));
    let conditions = args.filter.0.texts();
    let call = conditions.fold(call, |call, (name, text)| call.query(name, Some(text)));
    show_page(&args.page.of(call).answer().await?, output)
}

impl PageArgs {
    fn of<'c>(&self, call: Call<'c>) -> Call<'c> {
        let call = call.query("limit", Some(self.limit));
        call.query("cursor", self.cursor.as_ref())
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
    client: &Client,
    of: &MessageArgs,
    output: &Output,
) -> Result<(), CliError> {
    let message = find(client, of).await?;
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
    row("sent at", &text(message.sent_at));
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
    client: &Client,
    topic: &Topic,
    group: Option<Group>,
    output: &Output,
) -> Result<(), CliError> {
    let group = choose_group(client, topic, group.as_ref()).await?;
    let call = client.get(&of_group(topic, &group, &["garbage", "errors"]));
    let groups: ErrorGroups = call.answer().await?;
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
    client: &Client,
    args: &KeysArgs,
    output: &Output,
) -> Result<(), CliError> {
    let group = choose_group(client, &args.topic, args.group.as_ref()).await?;
    let call = client.get(&of_group(&args.topic, &group, &["keys"]));
    let call = call.query("limit", Some(args.limit));
    let page: KeyList = call.query("cursor", args.cursor.as_ref()).answer().await?;
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
    client: &Client,
    verb: Verb,
    args: SweepArgs,
    output: &Output,
) -> Result<(), CliError> {
    if args.job.is_job() {
        return garbage_jobs::start(client, verb, args, output).await;
    }
    let topic = &args.topic;
    let group = choose_group(client, topic, args.group.as_ref()).await?;
    if !args.all && args.ids.is_empty() {
        let verb = verb.as_str();
        return Err(CliError::Usage(format!(
            "name the messages to {verb}, or use --all for all that are in garbage now"
        )));
    }
    let path = of_group(topic, &group, &["garbage", verb.as_str()]);
    let ids = without_repetitions(args.ids);
    let post = async |body: Value| {
        let call = client.post(&path).json(&body).long();
        call.answer::<Swept>().await
    };
    let sweep = async |dry_run: bool| {
        if args.all {
            return post(json!({ "all": true, "dry_run": dry_run })).await;
        }
        let mut swept = Swept::default();
        for ids in ids.chunks(IDS_AT_A_TIME) {
            swept.add(post(json!({ "ids": ids, "dry_run": dry_run })).await?);
        }
        Ok(swept)
    };
    if args.all && !args.dry_run && !args.yes {
        require_terminal(format_args!("{} --all", verb.as_str()))?;
        let count = sweep(true).await?.found;
        if count > 0 {
            prompt(format_args!(
                "{} {} of {topic}/{group}? [y/N] ",
                verb.as_str(),
                counted(count, "message")
            ));
            be_sure()?;
        }
    }
    let swept = sweep(args.dry_run).await?;
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
    let count = swept.missing.len();
    if count == 0 {
        return Ok(());
    }
    let shown: Vec<&str> = { swept.missing.iter().take(SHOWN_IDS) }
        .map(MessageId::as_str)
        .collect();
    let more = match count.saturating_sub(SHOWN_IDS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (asked, shown) = (counted(ids.len() as u64, "message"), shown.join(", "));
    Err(CliError::Failed(format!(
        "not in garbage: {count} of {asked}: {shown}{more}"
    )))
}

/// Checks that stdin is a terminal, so that the user can confirm an action.
fn require_terminal(action: impl Display) -> Result<(), CliError> {
    if io::stdin().is_terminal() {
        return Ok(());
    }
    let text = format!("{action} requires --yes when there is no terminal");
    Err(CliError::Usage(text))
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
    client: &Client,
    verb: &str,
    args: &PauseArgs,
    output: &Output,
) -> Result<(), CliError> {
    let topic = &args.topic;
    let (what, changed) = match &args.group {
        Some(group) => {
            let call = client.post(&of_group(topic, group, &[verb]));
            let done: GroupPaused = call.answer().await?;
            if !output.is_table() {
                return Ok(output.object(&done)?);
            }
            (format!("{topic}/{group}"), done.changed)
        }
        None => {
            let call = client.post(&["topics", topic.as_str(), verb]);
            let done: TopicPaused = call.answer().await?;
            if !output.is_table() {
                return Ok(output.object(&done)?);
            }
            (topic.to_string(), done.changed)
        }
    };
    let state = if verb == "pause" { "paused" } else { "running" };
    let already = if changed { "" } else { " already" };
    print(&format!("{what} is{already} {state}"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use reqwest::StatusCode;

    use crate::cli::error::Refusal;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_change_that_others_overtake_is_repeated_and_no_other_failure() {
        let refused = |code| {
            let status = StatusCode::PRECONDITION_FAILED;
            CliError::Refused(Refusal::new(status, json!({ "code": code })))
        };
        let tries = Cell::new(0);
        let tried = || tries.replace(tries.get() + 1);
        let overtaken_twice = async || match tried() {
            0 | 1 => Err(refused("precondition_failed")),
            _ => Ok(()),
        };
        again_if_changed(overtaken_twice).await.unwrap();
        assert_eq!(tries.take(), 3);
        let always = async || {
            tried();
            Err::<(), _>(refused("precondition_failed"))
        };
        again_if_changed(always).await.unwrap_err();
        assert_eq!(tries.take(), TRIES);
        let busy = async || {
            tried();
            Err::<(), _>(refused("busy"))
        };
        again_if_changed(busy).await.unwrap_err();
        assert_eq!(tries.take(), 1);
    }
}
