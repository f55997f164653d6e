//! `ReceiveMessage`.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lisa_core::message::{Headers, ORIGIN};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::Call;
use super::attributes::{self, Attribute, Attributes, md5_of, md5_of_attributes};
use super::message_id::message_id;
use super::protocol::{MEDIA_TYPE, SqsError, ok, or_default};
use super::queue_attributes::MAX_TIMEOUT;
use super::send::{DEDUPLICATION, GROUP, SENT, TRACE, TRACE_ATTRIBUTE};
use crate::answer::Answer;
use crate::handed::Pulled;
use crate::pull::{MIN_LEASE, PullOptions, Taken, take};

/// The attribute of a message whose body is in base64, because its payload is not UTF-8.
const ENCODING: &str = "lisa-encoding";
/// The attribute with the id of a message that Lisa's other interfaces use. Only a request that names it gets it.
const ID: &str = "lisa-id";

/// The header with the attempts that a message had before it was forwarded from garbage.
const GARBAGE_ATTEMPTS: &str = "lisa-garbage-attempts";

/// The parameters of `ReceiveMessage`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Receive {
    queue_url: Option<String>,
    max_number_of_messages: Option<i64>,
    wait_time_seconds: Option<i64>,
    visibility_timeout: Option<i64>,
    #[serde(default, deserialize_with = "or_default")]
    attribute_names: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    message_system_attribute_names: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    message_attribute_names: Vec<String>,
}

/// A received message.
#[derive(Serialize)]
struct Message<'a> {
    #[serde(rename = "MessageId")]
    id: String,
    #[serde(rename = "ReceiptHandle")]
    handle: &'a str,
    #[serde(rename = "Body")]
    body: &'a str,
    #[serde(rename = "MD5OfBody")]
    md5: String,
    #[serde(rename = "Attributes", skip_serializing_if = "BTreeMap::is_empty")]
    system: BTreeMap<&'static str, String>,
    #[serde(
        rename = "MessageAttributes",
        skip_serializing_if = "Attributes::is_empty"
    )]
    attributes: Attributes,
    #[serde(
        rename = "MD5OfMessageAttributes",
        skip_serializing_if = "Option::is_none"
    )]
    md5_of_attributes: Option<String>,
}

/// The answer.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Messages<'a> {
    messages: Vec<Message<'a>>,
}

/// Checks a number against its bounds.
pub(super) fn within(name: &str, given: i64, least: i64, most: i64) -> Result<u64, SqsError> {
    let inside = (least..=most).contains(&given).then_some(given);
    let number = inside.and_then(|given| u64::try_from(given).ok());
    number.ok_or_else(|| {
        let reason = format!("Must be between {least} and {most}, if provided");
        SqsError::parameter(name, given, reason)
    })
}

pub(super) async fn receive(call: &Call<'_>, request: Receive) -> Result<Response, SqsError> {
    let max = request.max_number_of_messages.unwrap_or(1);
    let max = within("MaxNumberOfMessages", max, 1, 10)?;
    let wait = request.wait_time_seconds.unwrap_or(0);
    let wait = within("WaitTimeSeconds", wait, 0, 20)?;
    let timeout = request.visibility_timeout;
    let timeout = timeout.map(|given| within("VisibilityTimeout", given, 0, MAX_TIMEOUT));
    let lease = timeout.transpose()?;
    let queue = call.queue(request.queue_url.as_deref()).await?;
    let max = usize::try_from(max).unwrap_or(1);
    let options = PullOptions {
        max,
        wait: Duration::from_secs(wait),
        lease: lease.map(|given| Duration::from_secs(given).max(MIN_LEASE)),
        max_per_key: if queue.is_fifo() { max } else { 1 },
        consumer: None,
    };
    let taken = take(
        call.gateway(),
        &queue.topic,
        &call.options().group,
        &options,
    )
    .await?;
    let Some(Taken { pulled, handed }) = taken else {
        return Ok(ok(&json!({})));
    };
    let bodies: Vec<_> = pulled.iter().map(body).collect();
    let messages = pulled.iter().zip(&bodies);
    let is_fifo = queue.is_fifo();
    let messages = messages.map(|(pulled, body)| message(&request, pulled, body, is_fifo));
    let messages = messages.collect();
    Ok(Answer::json(&Messages { messages }, MEDIA_TYPE, handed)?)
}

/// A payload as a text, and whether that text is its base64.
struct Body<'a> {
    text: std::borrow::Cow<'a, str>,
    is_base64: bool,
}

fn body(pulled: &Pulled) -> Body<'_> {
    match str::from_utf8(&pulled.delivery.payload) {
        Ok(text) => Body {
            text: text.into(),
            is_base64: false,
        },
        Err(_) => Body {
            text: STANDARD.encode(&pulled.delivery.payload).into(),
            is_base64: true,
        },
    }
}

fn message<'a>(
    request: &Receive,
    pulled: &'a Pulled,
    body: &'a Body<'_>,
    is_fifo: bool,
) -> Message<'a> {
    let delivery = &pulled.delivery;
    let names = request.attribute_names.iter();
    let names: Vec<&String> = names
        .chain(&request.message_system_attribute_names)
        .collect();
    let mut system = system_attributes(pulled, is_fifo);
    system.retain(|name, _| names.iter().any(|given| *given == "All" || given == name));
    let attributes = attributes::from_headers(&delivery.headers);
    let mut attributes = attributes::select(attributes, &request.message_attribute_names);
    if body.is_base64 {
        // Whether it was asked for or not, the body cannot be understood without it.
        attributes.insert(ENCODING.to_owned(), Attribute::text("base64"));
    }
    if request
        .message_attribute_names
        .iter()
        .any(|name| name == ID)
    {
        attributes.insert(ID.to_owned(), Attribute::text(delivery.id.as_str()));
    }
    let md5_of_attributes = (!attributes.is_empty()).then(|| md5_of_attributes(&attributes));
    Message {
        id: origin(&delivery.headers)
            .unwrap_or_else(|| message_id(&delivery.topic, &delivery.id))
            .to_string(),
        handle: &pulled.token,
        body: &body.text,
        md5: md5_of(&body.text),
        system,
        attributes,
        md5_of_attributes,
    }
}

/// Returns the `MessageId` that a message had before it was forwarded from garbage.
fn origin(headers: &Headers) -> Option<Uuid> {
    let (topic, id) = headers.get(ORIGIN)?.split_once('/')?;
    Some(message_id(&topic.parse().ok()?, &id.parse().ok()?))
}

fn system_attributes(pulled: &Pulled, is_fifo: bool) -> BTreeMap<&'static str, String> {
    let delivery = &pulled.delivery;
    let header = |name: &str| delivery.headers.get(name).map(str::to_owned);
    let generated = || delivery.id.generated_at().map(|at| at.get().to_string());
    // Only a message of another client, with an id of its own, has no time of the send.
    let sent = header(SENT).or_else(generated);
    let sent = sent.unwrap_or_else(|| delivery.due_at.get().to_string());
    // A message of another client has a key, but not that header.
    let key = pulled.key.as_ref().filter(|_| is_fifo);
    let key = key.map(|key| key.as_str().to_owned());
    // Those of the queue from which it was forwarded count, too.
    let before = header(GARBAGE_ATTEMPTS).and_then(|attempts| attempts.parse().ok());
    let receives = delivery.attempt + before.unwrap_or(0);
    let mut attributes = BTreeMap::from([
        ("ApproximateReceiveCount", receives.to_string()),
        (
            "ApproximateFirstReceiveTimestamp",
            delivery.delivered_at.get().to_string(),
        ),
        ("SentTimestamp", sent),
    ]);
    for (name, value) in [
        ("MessageGroupId", header(GROUP).or(key)),
        ("MessageDeduplicationId", header(DEDUPLICATION)),
        (TRACE_ATTRIBUTE, header(TRACE)),
    ] {
        attributes.extend(value.map(|value| (name, value)));
    }
    attributes
}
