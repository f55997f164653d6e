//! `doctor`: examines topics, explains what is wrong, and repairs it.

use std::collections::BTreeMap;

use axum::http::Method;
use lisa_core::broker::{Checkup, Fault, Hint, Outcome};
use lisa_core::topic::Topic;
use lisa_service::cli::{Output, Rows, escape, prompt, remark};
use lisa_service::http::auth::Scope;
use serde_json::json;

use super::{be_sure, counted, print, require_terminal};
use crate::cli::args::DoctorArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::operations::topics::{DamagedTopic, TopicList};

/// The most rows of one fault in a table. The others are counted; JSON output has up to 1000.
const ROWS: usize = 20;

/// Examines topics, and repairs their faults if asked to and confirmed.
pub(crate) async fn examine(
    client: &Client,
    args: DoctorArgs,
    output: &Output,
) -> Result<(), CliError> {
    let mut topics = args.topics;
    let mut unexamined = Vec::new();
    if topics.is_empty() {
        let known: TopicList = client.get(&["topics"]).answer().await?;
        topics.extend(known.topics.into_iter().map(|entry| entry.topic));
        // Topics that cannot be read need an examination most.
        for DamagedTopic { topic, error } in known.damaged {
            match topic.parse() {
                Ok(topic) => topics.push(topic),
                Err(_) => {
                    unexamined.push(format!("registry entry {topic:?} is not a topic: {error}"));
                }
            }
        }
        topics.sort_unstable();
        topics.dedup();
    }
    if args.repair && !args.yes {
        require_terminal("--repair")?;
        let mut unexamined = unexamined.clone();
        let mut found = examine_all(client, &topics, false, &mut unexamined).await?;
        if found.iter().all(Checkup::is_healthy) {
            let hints = common_hints(client, &mut found).await;
            return show(&found, &hints, &unexamined, args.repair, output);
        }
        remark(explain(&found, true));
        prompt(format_args!("repair these faults? [y/N] "));
        be_sure()?;
    }
    let mut checkups = examine_all(client, &topics, args.repair, &mut unexamined).await?;
    let hints = common_hints(client, &mut checkups).await;
    show(&checkups, &hints, &unexamined, args.repair, output)
}

/// Examines topics. An error of one topic does not stop the examination of the others.
async fn examine_all(
    client: &Client,
    topics: &[Topic],
    repair: bool,
    unexamined: &mut Vec<String>,
) -> Result<Vec<Checkup>, CliError> {
    let mut checkups = Vec::with_capacity(topics.len());
    for topic in topics {
        let name = topic.as_str();
        let call = match repair {
            true => client.post(&["topics", name, "doctor", "repair"]),
            false => client.call(Method::GET, &["topics", name, "doctor"], Scope::Operate),
        };
        match call.long().answer().await {
            Ok(checkup) => checkups.push(checkup),
            Err(CliError::Refused(no)) => match no.code() {
                "unknown_topic" => unexamined.push(no.to_string()),
                "internal" => unexamined.push(format!("{topic}: {no}")),
                _ => return Err(CliError::Refused(no)),
            },
            Err(error) => return Err(error),
        }
    }
    Ok(checkups)
}

/// Takes the hints that concern all topics. Each checkup has them; without one, reads them from Redis.
async fn common_hints(client: &Client, checkups: &mut [Checkup]) -> Vec<Hint> {
    if checkups.is_empty()
        && let Some(broker) = client.broker()
    {
        return broker.common_hints().await;
    }
    let mut common = Vec::new();
    for checkup in checkups {
        let hints = std::mem::take(&mut checkup.hints).into_iter();
        (common, checkup.hints) = hints.partition(|hint| hint.is_common);
    }
    common
}

/// Prints the result. Fails if a fault is left, or a topic or message could not be examined.
fn show(
    checkups: &[Checkup],
    hints: &[Hint],
    unexamined: &[String],
    repair: bool,
    output: &Output,
) -> Result<(), CliError> {
    let is_healthy = unexamined.is_empty() && checkups.iter().all(Checkup::is_healthy);
    match output.is_table() {
        false => {
            let mut result = json!({ "healthy": is_healthy, "topics": checkups });
            if !hints.is_empty() {
                result["hints"] = json!(hints);
            }
            output.object(&result)?;
        }
        true => {
            let mut text = explain(checkups, !repair);
            for hint in hints {
                text += &format!("hint: {}\n", escape(&hint.seen));
            }
            if !text.is_empty() {
                print(&text)?;
            }
        }
    }
    if is_healthy {
        return Ok(());
    }
    let found: u64 = checkups.iter().map(|c| c.count(Outcome::Found)).sum();
    let unclear: u64 = checkups.iter().map(|c| c.unclear).sum();
    let mut problems = unexamined.to_vec();
    if found > 0 {
        let are = if found == 1 { "is" } else { "are" };
        problems.push(format!("{} {are} left", counted(found, "fault")));
    }
    if unclear > 0 {
        let unclear = counted(unclear, "message");
        problems.push(format!("{unclear} could not be examined"));
    }
    Err(CliError::Failed(problems.join("; ")))
}

/// Returns a table of the findings, and the meaning of each kind.
fn explain(checkups: &[Checkup], with_remedy: bool) -> String {
    let mut rows = Rows::new(["TOPIC", "SHARD", "FAULT", "GROUP", "ID", "SEEN", ""]);
    let mut kinds: BTreeMap<Fault, u64> = BTreeMap::new();
    let mut text = String::new();
    let mut hidden = 0;
    for checkup in checkups {
        let mut shown: BTreeMap<Fault, usize> = BTreeMap::new();
        for finding in &checkup.findings {
            let rows_of_fault = shown.entry(finding.fault).or_default();
            *rows_of_fault += 1;
            if *rows_of_fault > ROWS {
                continue;
            }
            rows.add_row([
                checkup.topic.as_str(),
                &finding.shard.to_string(),
                finding.fault.as_str(),
                &finding.group,
                &finding.id,
                &finding.seen,
                finding.outcome.as_str(),
            ]);
        }
        for (fault, outcomes) in &checkup.counts {
            let count: u64 = outcomes.values().sum();
            *kinds.entry(*fault).or_default() += count;
            let shown = shown.get(fault).copied().unwrap_or(0).min(ROWS);
            hidden += count - shown as u64;
        }
    }
    if !kinds.is_empty() {
        text += &format!("{rows}\n");
        if hidden > 0 {
            text += &format!("and {hidden} more\n");
        }
        text += "\n";
    }
    for (fault, count) in &kinds {
        text += &format!("{}: {count}: {}", fault.as_str(), fault.meaning());
        if with_remedy {
            text += &format!("; --repair {}", fault.remedy());
        }
        text += "\n";
    }
    for checkup in checkups {
        let (topic, messages) = (&checkup.topic, checkup.messages);
        let sum = |outcome| checkup.count(outcome);
        let verdict = match (sum(Outcome::Found), sum(Outcome::Repaired)) {
            (0, 0) => "healthy".to_owned(),
            (0, repaired) => format!("{} repaired", counted(repaired, "fault")),
            (found, 0) => counted(found, "fault"),
            (found, repaired) => format!("{} repaired, {found} left", counted(repaired, "fault")),
        };
        let messages = counted(messages, "message");
        text += &format!("{topic}: {messages}, {verdict}\n");
        for hint in &checkup.hints {
            text += &format!("{topic}: hint: {}\n", hint.seen);
        }
    }
    text
}
