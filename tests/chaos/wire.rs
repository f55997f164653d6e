//! Messages and answers on the wire of the producer's HTTP interface.

use crate::plan::{self, HOPELESS_ATTEMPTS, Message, Topic, id};
use crate::target;
use reqwest::RequestBuilder;
use serde_json::{Value, json};

/// One in this many messages is as large as this: a slow connection takes a while for it.
const LARGE_ONE_IN: u64 = 500;
const LARGE: usize = 100 * 1024;

/// The outcome of a try.
pub(crate) enum Tried {
    Accepted(Option<u64>),
    /// It is part of the message of this number.
    Merged(u64),
    /// Nothing was stored.
    Refused,
    /// The outcome is unknown.
    Unknown,
}

/// Status and body; `None` if no whole answer came.
pub(crate) async fn answer(request: RequestBuilder) -> Option<(u16, String)> {
    let mut response = request.send().await.ok()?;
    let status = response.status().as_u16();
    let mut body = Vec::new();
    // The results of a batch that arrived count, although the rest did not.
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
    }
    Some((status, String::from_utf8_lossy(&body).into_owned()))
}

/// Returns the outcome in a result: a receipt or a problem.
pub(crate) fn judge(result: &Value) -> Tried {
    match &result["error"] {
        Value::Null => match (result["outcome"].as_str(), result["ended"].as_str()) {
            (Some("merged"), _) => {
                let into = result["id"].as_str().and_then(plan::number);
                into.map_or(Tried::Unknown, Tried::Merged)
            }
            // A try whose answer was lost had joined a message; its name is not known.
            (_, Some("merged")) => Tried::Unknown,
            _ => Tried::Accepted(result["due_at"].as_str().and_then(target::instant)),
        },
        problem => judge_problem(problem),
    }
}

pub(crate) fn judge_problem(problem: &Value) -> Tried {
    match problem["code"].as_str() {
        Some("indeterminate" | "internal" | "timeout") | None => Tried::Unknown,
        Some(_) => Tried::Refused,
    }
}

pub(crate) fn payload(message: &Message) -> Value {
    let mut payload = json!({ "number": message.number, "plan": message.plan.to_string() });
    if message.topic == Topic::Plain && message.number.is_multiple_of(LARGE_ONE_IN) {
        payload["pad"] = json!("x".repeat(LARGE));
    }
    payload
}

/// Its own limit on attempts: few for a message that can never succeed.
pub(crate) fn attempts(message: &Message) -> Option<u32> {
    message.plan.is_hopeless().then_some(HOPELESS_ATTEMPTS)
}

pub(crate) fn line(message: &Message) -> Value {
    let mut line = json!({
        "id": id(message.number),
        "delay": format!("{}ms", message.delay),
        "payload": payload(message),
    });
    if let Some(key) = message.key {
        line["key"] = json!(key.to_string());
    }
    if let Some(merge) = message.merge {
        line["merge_key"] = json!(merge.to_string());
    }
    if message.priority != 0 {
        line["priority"] = json!(message.priority);
    }
    if let Some(attempts) = attempts(message) {
        line["max_attempts"] = json!(attempts);
    }
    line
}

pub(crate) fn with_headers(request: RequestBuilder, message: &Message) -> RequestBuilder {
    let mut request = request
        .header("Lisa-Id", id(message.number))
        .header("Lisa-Delay", format!("{}ms", message.delay));
    if let Some(key) = message.key {
        request = request.header("Lisa-Key", key.to_string());
    }
    if let Some(merge) = message.merge {
        request = request.header("Lisa-Merge-Key", merge.to_string());
    }
    if message.priority != 0 {
        request = request.header("Lisa-Priority", message.priority.to_string());
    }
    if let Some(attempts) = attempts(message) {
        request = request.header("Lisa-Max-Attempts", attempts.to_string());
    }
    request
}
