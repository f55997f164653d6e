//! `explain`: says where a message is in each group, and why; with `--watch` until it has ended.

use std::time::Duration;

use lisa_core::broker::{MessageInGroup, StoredMessage};
use lisa_service::cli::{Output, escape};
use serde_json::{Value, json};

use super::{find, print};
use crate::cli::args::MessageArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;

/// The interval between two looks at a message.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Formats the state of a message in a group, and the reason.
pub(super) fn why(copy: &MessageInGroup) -> String {
    let says_the_state = copy.why.trim_start_matches("in ").starts_with(&*copy.state);
    if says_the_state {
        copy.why.clone()
    } else {
        format!("{}: {}", copy.state, copy.why)
    }
}

/// Explains a message once.
pub(crate) async fn explain(
    client: &Client,
    of: &MessageArgs,
    output: &Output,
) -> Result<(), CliError> {
    let found = find(client, of).await?;
    match output.is_table() {
        true => print(&said(&found)),
        false => Ok(output.object(&explained(&found))?),
    }
}

/// Explains a message each time its explanation changes, until it has ended.
pub(crate) async fn watch(
    client: &Client,
    of: &MessageArgs,
    output: &Output,
) -> Result<(), CliError> {
    let mut before: Option<String> = None;
    loop {
        match find(client, of).await {
            Ok(found) => {
                let now = match output.is_table() {
                    true => said(&found),
                    false => explained(&found).to_string(),
                };
                if before.as_ref() != Some(&now) {
                    match output.is_table() {
                        true => print(&now)?,
                        false => output.object(&explained(&found))?,
                    }
                }
                before = Some(now);
            }
            Err(CliError::Refused(no)) if no.code() == "not_found" && before.is_some() => {
                let ended = no.to_string();
                return match output.is_table() {
                    true => print(&ended),
                    false => Ok(output.object(&json!({ "id": of.id, "ended": ended }))?),
                };
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Returns an explanation as JSON.
fn explained(message: &StoredMessage) -> Value {
    let listed = &message.listed;
    json!({
        "id": listed.id, "topic": message.topic, "state": listed.state.as_str(), "due_at": listed.due_at.map(|due| due.to_string()),
        "attempt": listed.attempt, "error": listed.error, "groups": message.groups,
    })
}

/// Formats an explanation: one line for each group.
fn said(message: &StoredMessage) -> String {
    let listed = &message.listed;
    let mut lines = vec![format!(
        "{}/{}: {}",
        message.topic,
        listed.id,
        listed.state.as_str()
    )];
    if let Some(due_at) = &listed.due_at {
        lines.push(format!("  due at {due_at}"));
    }
    let groups = message.groups.iter();
    lines.extend(groups.map(|copy| format!("  group {}: {}", copy.group, why(copy))));
    if let Some(error) = &listed.error {
        lines.push(format!("  last error: {error}"));
    }
    let lines: Vec<_> = lines.iter().map(|line| escape(line)).collect();
    lines.join("\n")
}
