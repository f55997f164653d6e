//! The verbs for single messages and for all of a key, and how their outcomes are printed.

use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use lisa_shared::durability::Durability;
use lisa_shared::message::{MessageId, OrderingKey};
use lisa_shared::state::{End, Ended, RescheduleOutcome};
use lisa_shared::time::When;
use lisa_shared::topic::{Group, Topic};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::{CliError, Named, SendArgs, Target};
use crate::by_key::KeyOutcome;
use crate::error::SendError;
use crate::outgoing::Outgoing;
use crate::producer::Producer;
use crate::stored::CancelOutcome;

/// Exit code of a verb that was understood and could not be done.
const FAILED: u8 = 1;

pub(super) async fn send(producer: &Producer, args: SendArgs, json: bool) -> Result<u8, CliError> {
    let limit = producer.max_payload(&args.topic).await?;
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
    let mut outgoing = Outgoing::new(payload)
        .at(args.due.when())
        .priority(args.priority);
    if let Some(id) = args.id {
        outgoing = outgoing.id(id);
    }
    if let Some(max_attempts) = args.max_attempts {
        outgoing = outgoing.max_attempts(max_attempts);
    }
    if let Some(key) = args.key {
        outgoing = outgoing.key(key);
    }
    if let Some(key) = args.merge_key {
        outgoing = outgoing.merge(key);
    }
    if let Some(ttl) = args.ttl {
        outgoing = outgoing.ttl(ttl);
    }
    if let Some(at) = args.expires_at {
        outgoing = outgoing.expires_at(at);
    }
    if let Some(policy) = args.retry {
        outgoing = outgoing.retry(policy);
    }
    if let Some(id) = args.replace {
        outgoing = outgoing.replace(id);
    }
    if args.even_if_cancelled {
        outgoing = outgoing.even_if_cancelled();
    }
    if let Some(durability) = args.durability {
        outgoing = outgoing.durability(durability);
    }
    for (name, value) in &args.headers {
        outgoing = outgoing.header(name, value);
    }
    let receipt = producer.send_message(&args.topic, outgoing).await?;
    let is_cancelled = receipt.ended == Some(End::Cancelled);
    let due = receipt.due.map(|due| due.to_string());
    if json {
        let (id, topic) = (receipt.id.as_str(), args.topic.as_str());
        let outcome = receipt.outcome.as_str();
        let mut line = json!({ "id": id, "topic": topic, "due_at": due, "outcome": outcome });
        if let Some(ended) = receipt.ended {
            line["ended"] = json!(ended);
        }
        if receipt.durability != Durability::Memory {
            line["durability"] = json!(receipt.durability);
        }
        print(&line)?;
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
    json: bool,
) -> Result<u8, CliError> {
    let topic = &target.topic;
    let (id, message) = match target.named() {
        Named::Message(id, message) => (id, message),
        Named::Key(key) => {
            let done = producer.cancel_key(topic, key).await?;
            return of_key(topic, key, "cancelled", done, json);
        }
    };
    let (word, text) = match producer.cancel(topic, message).await? {
        CancelOutcome::Cancelled { record, in_garbage } => {
            if json {
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
                print(&line)?;
            } else {
                print(&format!("{id}: cancelled{}", stays(&in_garbage)))?;
            }
            return Ok(0);
        }
        CancelOutcome::InFlight => ("in_flight", "ready or being handled: too late"),
        CancelOutcome::Garbage => ("garbage", "was given up: purge it instead"),
        CancelOutcome::Unknown { end } => return unknown(topic, id, end, json),
    };
    failed(topic, id, word, text, json)
}

pub(super) async fn reschedule(
    producer: &Producer,
    target: &Target,
    when: When,
    json: bool,
) -> Result<u8, CliError> {
    let topic = &target.topic;
    let (id, message) = match target.named() {
        Named::Message(id, message) => (id, message),
        Named::Key(key) => {
            let done = producer.reschedule_key(topic, key, when).await?;
            return of_key(topic, key, "rescheduled", done, json);
        }
    };
    let (word, text) = match producer.reschedule(topic, message, when).await? {
        RescheduleOutcome::Rescheduled { due } => {
            if json {
                let mut line = outcome(topic, id, "rescheduled");
                line["due_at"] = json!(due.to_string());
                print(&line)?;
            } else {
                print(&format!("{id}: rescheduled, due {due}"))?;
            }
            return Ok(0);
        }
        RescheduleOutcome::InFlight => ("in_flight", "ready or being handled: too late"),
        RescheduleOutcome::Garbage => ("garbage", "was given up: requeue it instead"),
        RescheduleOutcome::Unknown { end } => return unknown(topic, id, end, json),
    };
    failed(topic, id, word, text, json)
}

/// Prints what became of the messages of a key; the code says whether all could be changed.
fn of_key(
    topic: &Topic,
    key: &OrderingKey,
    word: &str,
    done: KeyOutcome,
    json: bool,
) -> Result<u8, CliError> {
    let KeyOutcome {
        changed,
        in_flight,
        garbage,
        in_garbage,
    } = done;
    if json {
        let mut line = json!({ "topic": topic.as_str(), "key": key.as_str(), word: changed, "in_flight": in_flight, "garbage": garbage });
        if !in_garbage.is_empty() {
            line["in_garbage"] = json!(in_garbage);
        }
        print(&line)?;
    } else {
        let stays = stays(&in_garbage);
        print(&format!(
            "{key}: {changed} {word}{stays}; {in_flight} ready or being handled, {garbage} given up"
        ))?;
    }
    Ok(if in_flight + garbage == 0 { 0 } else { FAILED })
}

/// Names the groups in whose garbage copies stay.
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

/// Says that a message is not there, and how it ended if that is remembered.
fn unknown(topic: &Topic, id: &MessageId, end: Option<Ended>, json: bool) -> Result<u8, CliError> {
    let Some(end) = end else {
        return failed(topic, id, "unknown", "no such message", json);
    };
    if json {
        let mut line = outcome(topic, id, "unknown");
        line["ended"] = json!(end.how);
        if let Some(into) = &end.into {
            line["into"] = json!(into);
        }
        print(&line)?;
    } else {
        eprintln!("{id}: has ended: {end}");
    }
    Ok(FAILED)
}

fn failed(
    topic: &Topic,
    id: &MessageId,
    word: &str,
    text: &str,
    json: bool,
) -> Result<u8, CliError> {
    if json {
        print(&outcome(topic, id, word))?;
    } else {
        eprintln!("{id}: {text}");
    }
    Ok(FAILED)
}

/// Prints one line; whoever reads our output may have gone, which is an error and no panic.
pub(super) fn print(line: &impl std::fmt::Display) -> Result<(), CliError> {
    writeln!(io::stdout(), "{line}").map_err(io_error("standard output"))
}

pub(super) fn io_error(what: &str) -> impl FnOnce(io::Error) -> CliError {
    let what = what.to_owned();
    |source| CliError::Io { what, source }
}

/// Reads a payload, and no more of it than the topic takes.
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
