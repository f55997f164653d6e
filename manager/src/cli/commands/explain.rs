//! `explain`: says where a message is in each group, and why; with `--watch` until it has ended.

use std::time::Duration;

use lisa_core::broker::Broker;
use lisa_core::message::{MessageId, OrderingKey};
use lisa_core::topic::Topic;
use lisa_service::cli::Format;
use serde_json::json;

use super::{print, print_json};
use crate::cli::error::CliError;
use crate::operations::messages::{CopyView, FindError, FullMessage, find};

/// The interval between two looks at a message.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Formats the state of a message in a group, and the reason.
pub(super) fn why(copy: &CopyView) -> String {
    let says_the_state = copy.why.trim_start_matches("in ").starts_with(copy.state);
    if says_the_state {
        copy.why.clone()
    } else {
        format!("{}: {}", copy.state, copy.why)
    }
}

/// Explains a message once.
pub(crate) async fn explain(
    broker: &Broker,
    topic: &Topic,
    id: &MessageId,
    key: Option<&OrderingKey>,
    output: Format,
) -> Result<(), CliError> {
    let handle = broker.topic(topic).await?;
    let found = find(broker, &handle, id, key).await.map_err(failed)?;
    print(&said(&found, output))
}

/// Explains a message each time its explanation changes, until it has ended.
pub(crate) async fn watch(
    broker: &Broker,
    topic: &Topic,
    id: &MessageId,
    key: Option<&OrderingKey>,
    output: Format,
) -> Result<(), CliError> {
    let mut before: Option<String> = None;
    loop {
        // Read each time: the topic may be resharded meanwhile.
        let handle = broker.topic(topic).await?;
        match find(broker, &handle, id, key).await {
            Ok(found) => {
                let now = said(&found, output);
                if before.as_ref() != Some(&now) {
                    print(&now)?;
                }
                before = Some(now);
            }
            Err(error @ FindError::Unknown { .. }) if before.is_some() => {
                return match output {
                    Format::Table => print(&error.to_string()),
                    Format::Json => print_json(&json!({ "id": id, "ended": error.to_string() })),
                };
            }
            Err(error) => return Err(failed(error)),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn failed(error: FindError) -> CliError {
    match error {
        FindError::Broker(error) => error.into(),
        error => CliError::Failed(error.to_string()),
    }
}

/// Formats an explanation: one line for each group, or one JSON object.
fn said(message: &FullMessage, output: Format) -> String {
    let view = &message.message;
    if output == Format::Json {
        let explained = json!({
            "id": view.id, "topic": message.topic, "state": view.state.as_str(), "due_at": view.due_at,
            "attempt": view.attempt, "error": view.error, "groups": message.groups,
        });
        return explained.to_string();
    }
    let mut lines = vec![format!(
        "{}/{}: {}",
        message.topic,
        view.id,
        view.state.as_str()
    )];
    if let Some(due_at) = &view.due_at {
        lines.push(format!("  due at {due_at}"));
    }
    let groups = message.groups.iter();
    lines.extend(groups.map(|copy| format!("  group {}: {}", copy.group, why(copy))));
    if let Some(error) = &view.error {
        lines.push(format!("  last error: {error}"));
    }
    lines.join("\n")
}
