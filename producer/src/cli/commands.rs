//! The verbs for single messages and for all messages of an ordering key. Prints their outcomes.

use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use lisa_core::durability::Durability;
use lisa_core::message::{MessageId, OrderingKey};
use lisa_core::state::{End, Ended, RescheduleOutcome};
use lisa_core::time::When;
use lisa_core::topic::{Group, Topic};
use lisa_service::cli::{Output, remark};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{CliError, Named, SendArgs, Target};
use crate::by_key::KeyOutcome;
use crate::error::SendError;
use crate::message::NewMessage;
use crate::producer::Producer;
use crate::stored::CancelOutcome;

/// The exit code of a valid command that could not be carried out.
const FAILED: u8 = 1;

pub(super) async fn send(
    producer: &Producer,
    args: SendArgs,
    output: &Output,
) -> Result<u8, CliError> {
    let limit = producer.max_payload(&args.topic).await;
    let limit = suggest_topic(producer, limit).await?;
    let payload = match (args.payload.as_deref(), &args.file) {
        (Some("-"), _) => read(tokio::io::stdin(), limit, "standard input").await?,
        (Some(text), _) => Bytes::copy_from_slice(text.as_bytes()),
        (None, Some(path)) => {
            let name = path.display().to_string();
            let file = tokio::fs::File::open(path).await.map_err(io_error(&name))?;
            read(file, limit, &name).await?
        }
        (None, None) => Bytes::new(),
    };
    let mut message = NewMessage::new(payload).options(args.options.0);
    for (name, value) in &args.headers {
        message = message.header(name, value);
    }
    let receipt = producer.send_message(&args.topic, message).await?;
    let is_cancelled = receipt.ended == Some(End::Cancelled);
    let due = receipt.due.map(|due| due.to_string());
    if !output.is_table() {
        let (id, topic) = (receipt.id.as_str(), args.topic.as_str());
        let outcome = receipt.outcome.as_str();
        let mut line = json!({ "id": id, "topic": topic, "due_at": due, "outcome": outcome });
        if let Some(ended) = receipt.ended {
            line["ended"] = json!(ended);
        }
        if receipt.durability != Durability::Memory {
            line["durability"] = json!(receipt.durability);
        }
        output.object(&line)?;
    } else {
        let due = due.map(|due| format!(", due {due}")).unwrap_or_default();
        let ended = match receipt.ended {
            Some(End::Cancelled) => {
                " of a message that was cancelled: nothing will be delivered; --even-if-cancelled sends it again"
                    .to_owned()
            }
            Some(ended) => format!(" of a message that was {ended}: nothing will be delivered"),
            None => String::new(),
        };
        let safe = match receipt.durability {
            Durability::Memory => String::new(),
            reached => format!(", {reached}"),
        };
        print(&format!(
            "{}: {}{ended}{due}{safe}",
            receipt.id, receipt.outcome
        ))?;
    }
    Ok(if is_cancelled { FAILED } else { 0 })
}

pub(super) async fn cancel(
    producer: &Producer,
    target: &Target,
    output: &Output,
) -> Result<u8, CliError> {
    let topic = &target.topic;
    let (id, message) = match target.named() {
        Named::Message(id, message) => (id, message),
        Named::Key(key) => {
            let done = producer.cancel_key(topic, key).await;
            let done = suggest_topic(producer, done).await?;
            return of_key(topic, key, "cancelled", done, output);
        }
    };
    let answer = producer.cancel(topic, message).await;
    let (word, text) = match suggest_topic(producer, answer).await? {
        CancelOutcome::Cancelled { record, in_garbage } => {
            if !output.is_table() {
                let mut line = outcome(topic, id, "cancelled");
                if !in_garbage.is_empty() {
                    line["in_garbage"] = json!(in_garbage);
                }
                if let Some(record) = record {
                    line["headers"] = json!(record.headers);
                    match std::str::from_utf8(&record.payload) {
                        Ok(text) => line["payload"] = json!(text),
                        Err(_) => line["payload_base64"] = json!(STANDARD.encode(&record.payload)),
                    }
                }
                output.object(&line)?;
            } else {
                print(&format!("{id}: cancelled{}", stays(&in_garbage)))?;
            }
            return Ok(0);
        }
        CancelOutcome::InFlight => ("in_flight", "ready or in flight: too late"),
        CancelOutcome::Garbage => ("garbage", "in garbage: purge it instead"),
        CancelOutcome::Unknown { end } => return unknown(topic, id, end, output),
    };
    failed(topic, id, word, text, output)
}

pub(super) async fn reschedule(
    producer: &Producer,
    target: &Target,
    when: When,
    output: &Output,
) -> Result<u8, CliError> {
    let topic = &target.topic;
    let (id, message) = match target.named() {
        Named::Message(id, message) => (id, message),
        Named::Key(key) => {
            let done = producer.reschedule_key(topic, key, when).await;
            let done = suggest_topic(producer, done).await?;
            return of_key(topic, key, "rescheduled", done, output);
        }
    };
    let answer = producer.reschedule(topic, message, when).await;
    let (word, text) = match suggest_topic(producer, answer).await? {
        RescheduleOutcome::Rescheduled { due } => {
            if !output.is_table() {
                let mut line = outcome(topic, id, "rescheduled");
                line["due_at"] = json!(due.to_string());
                output.object(&line)?;
            } else {
                print(&format!("{id}: rescheduled, due {due}"))?;
            }
            return Ok(0);
        }
        RescheduleOutcome::InFlight => ("in_flight", "ready or in flight: too late"),
        RescheduleOutcome::Garbage => ("garbage", "in garbage: requeue it instead"),
        RescheduleOutcome::Unknown { end } => return unknown(topic, id, end, output),
    };
    failed(topic, id, word, text, output)
}

/// Adds the nearest registered topic to an error about an unknown one. Returns anything else as it is.
pub(super) async fn suggest_topic<T>(
    producer: &Producer,
    result: Result<T, SendError>,
) -> Result<T, CliError> {
    let Err(SendError::UnknownTopic(topic)) = result else {
        return Ok(result?);
    };
    // A verb has loaded only the topic that it names. A failure must not hide the error that is being explained.
    if let Err(error) = producer.broker().refresh().await {
        tracing::debug!(%error, "cannot read the registry");
    }
    let suggestion = producer.broker().suggest_topic(&topic);
    Err(CliError::UnknownTopic { topic, suggestion })
}

/// Prints the outcome for the messages of a key. Returns exit code 0 if all could be changed, else 1.
fn of_key(
    topic: &Topic,
    key: &OrderingKey,
    word: &str,
    done: KeyOutcome,
    output: &Output,
) -> Result<u8, CliError> {
    let KeyOutcome {
        changed,
        in_flight,
        garbage,
        in_garbage,
    } = done;
    if !output.is_table() {
        let mut line = json!({ "topic": topic.as_str(), "key": key.as_str(), word: changed, "in_flight": in_flight, "garbage": garbage });
        if !in_garbage.is_empty() {
            line["in_garbage"] = json!(in_garbage);
        }
        output.object(&line)?;
    } else {
        let stays = stays(&in_garbage);
        print(&format!(
            "{key}: {changed} {word}{stays}; {in_flight} ready or in flight, {garbage} in garbage"
        ))?;
    }
    Ok(if in_flight + garbage == 0 { 0 } else { FAILED })
}

/// Returns a note that names the groups in whose garbage copies stay.
fn stays<'a>(in_garbage: impl IntoIterator<Item = &'a Group>) -> String {
    let names: Vec<&str> = in_garbage.into_iter().map(Group::as_str).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(" (stays in garbage of {})", names.join(", ")),
    }
}

fn outcome(topic: &Topic, id: &MessageId, outcome: &str) -> Value {
    json!({ "id": id.as_str(), "topic": topic.as_str(), "outcome": outcome })
}

/// Reports that a message is not stored, with its end if that is remembered.
fn unknown(
    topic: &Topic,
    id: &MessageId,
    end: Option<Ended>,
    output: &Output,
) -> Result<u8, CliError> {
    let Some(end) = end else {
        return failed(topic, id, "unknown", "no such message", output);
    };
    if !output.is_table() {
        let mut line = outcome(topic, id, "unknown");
        line["ended"] = json!(end.how);
        if let Some(into) = &end.into {
            line["into"] = json!(into);
        }
        output.object(&line)?;
    } else {
        remark(format_args!("{id}: has ended: {end}"));
    }
    Ok(FAILED)
}

fn failed(
    topic: &Topic,
    id: &MessageId,
    word: &str,
    text: &str,
    output: &Output,
) -> Result<u8, CliError> {
    if !output.is_table() {
        output.object(&outcome(topic, id, word))?;
    } else {
        remark(format_args!("{id}: {text}"));
    }
    Ok(FAILED)
}

/// Prints one line. A closed pipe is an error, not a panic.
pub(super) fn print(line: &impl std::fmt::Display) -> Result<(), CliError> {
    writeln!(io::stdout(), "{line}").map_err(io_error("standard output"))
}

pub(super) fn io_error(what: &str) -> impl FnOnce(io::Error) -> CliError {
    let what = what.to_owned();
    |source| CliError::Io { what, source }
}

/// Reads a payload of at most `limit` bytes.
async fn read(from: impl AsyncRead + Unpin, limit: u64, name: &str) -> Result<Bytes, CliError> {
    let mut payload = Vec::new();
    let mut from = from.take(limit + 1);
    from.read_to_end(&mut payload)
        .await
        .map_err(io_error(name))?;
    let size = payload.len() as u64;
    if size > limit {
        return Err(SendError::TooLarge { size, limit }.into());
    }
    Ok(payload.into())
}
