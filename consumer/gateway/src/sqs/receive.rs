//! `ReceiveMessage`.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lisa_consumer_core::Outcome;
use lisa_core::message::{OrderingKey, forwarded};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Call;
use super::attributes::{self, Attribute, Attributes, md5_of, md5_of_attributes};
use super::message_id::message_id;
use super::protocol::{Protocol, SqsError, ok, or_default};
use super::queue_attributes::{FIFO, MAX_TIMEOUT};
use super::send::{
    DEDUPLICATION, GROUP, HASHED, SENDER, SENT, TRACE, TRACE_ATTRIBUTE, check_choice,
    sequence_numbers,
};
use super::settle::RELEASED;
use crate::answer::Answer;
use crate::handed::Pulled;
use crate::pull::{MIN_LEASE, PullOptions, Taken, take};
use crate::settle::settle_all;

const ACTION: &str = "ReceiveMessage";
/// The sender of a message that was sent without a token, or not by an SQS client.
const ANONYMOUS: &str = "anonymous";
/// The attribute with the position of a message in its group.
const SEQUENCE: &str = "SequenceNumber";
/// The attribute of a message whose body is in base64, because its payload is not UTF-8.
const ENCODING: &str = "lisa-encoding";
/// The attribute with the id of a message that Lisa's other interfaces use. Only a request that names it gets it.
const ID: &str = "lisa-id";

/// The system attribute with the queue from which a message was forwarded to its dead-letter queue.
const SOURCE: &str = "DeadLetterQueueSourceArn";

/// The parameters of `ReceiveMessage`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Receive {
    queue_url: Option<String>,
    max_number_of_messages: Option<i64>,
    wait_time_seconds: Option<i64>,
    visibility_timeout: Option<i64>,
    receive_request_attempt_id: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    attribute_names: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    message_system_attribute_names: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    message_attribute_names: Vec<String>,
}

impl Receive {
    /// Returns true if the client wants a system attribute.
    fn wants(&self, name: &str) -> bool {
        let names = self.attribute_names.iter();
        let mut names = names.chain(&self.message_system_attribute_names);
        names.any(|given| given == "All" || given == name)
    }
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
        let reason = match least {
            0 => format!("Must be >= {least} and <= {most}, if provided"),
            _ => format!("Must be between {least} and {most}, if provided"),
        };
        SqsError::parameter(name, given, reason)
    })
}

pub(super) async fn receive(call: &Call<'_>, request: Receive) -> Result<Response, SqsError> {
    let max = request.max_number_of_messages.unwrap_or(1);
    let max = within("MaxNumberOfMessages", max, 1, 10)?;
    let wait = request.wait_time_seconds;
    let wait = wait.map(|given| within("WaitTimeSeconds", given, 0, 20));
    let wait = wait.transpose()?.map(Duration::from_secs);
    let timeout = request.visibility_timeout;
    let timeout = timeout.map(|given| within("VisibilityTimeout", given, 0, MAX_TIMEOUT));
    let lease = timeout.transpose()?.map(Duration::from_secs);
    if let Some(attempt) = &request.receive_request_attempt_id {
        check_choice("ReceiveRequestAttemptId", attempt)?;
    }
    let queue = call.queue(request.queue_url.as_deref()).await?;
    let sqs = &queue.topic.settings().sqs;
    let lease = lease.or(sqs.stays_visible.then_some(Duration::ZERO));
    let max = usize::try_from(max).unwrap_or(1);
    let options = PullOptions {
        max,
        max_per_key: if queue.is_fifo() { max } else { 1 },
        max_keys: None,
        wait: wait.unwrap_or(sqs.wait),
        lease: lease.map(|lease| lease.max(MIN_LEASE)),
        consumer: None,
    };
    let taken = take(
        call.gateway(),
        &queue.topic,
        &call.options().group,
        &options,
    )
    .await?;
    let is_xml = call.protocol == Protocol::Query;
    let Some(Taken { mut pulled, handed }) = taken else {
        let protocol = call.protocol;
        return protocol.translate(ACTION, ok(&json!({})), call.id).await;
    };
    if queue.is_fifo() {
        gather(&mut pulled);
    }
    if lease.is_some_and(|lease| lease.is_zero()) {
        // The messages stay visible.
        let claims = pulled
            .iter()
            .flat_map(|pulled| call.gateway().open(&pulled.token));
        let again =
            claims.map(|claims| Ok((claims, Outcome::retry_after(Duration::ZERO, RELEASED))));
        settle_all(call.gateway(), again.collect()).await;
    }
    let bodies: Vec<_> = pulled.iter().map(|pulled| body(pulled, is_xml)).collect();
    let is_fifo = queue.is_fifo();
    let sequences = match is_fifo && request.wants(SEQUENCE) {
        true => {
            let messages = pulled.iter().map(|pulled| {
                let key = pulled.key.as_ref().map(ToString::to_string);
                (&pulled.delivery.id, key)
            });
            sequence_numbers(call, &queue, &messages.collect::<Vec<_>>()).await
        }
        false => Vec::new(),
    };
    let mut sequences = sequences.into_iter();
    let messages = pulled.iter().zip(&bodies);
    let messages = messages.map(|(pulled, body)| {
        let mut message = message(&request, pulled, body, is_fifo);
        let sequence = sequences.next().flatten();
        let source = source(call, pulled, is_fifo).filter(|_| request.wants(SOURCE));
        let more = [
            sequence.map(|number| (SEQUENCE, number)),
            source.map(|arn| (SOURCE, arn)),
        ];
        message.system.extend(more.into_iter().flatten());
        message
    });
    let messages = messages.collect();
    let messages = Messages { messages };
    let media_type = call.protocol.media_type();
    match call.protocol.is_query() {
        true => {
            let render = |result: &Value| call.protocol.render(ACTION, result, call.id);
            Ok(Answer::text(&messages, render, media_type, handed)?)
        }
        false => Ok(Answer::json(&messages, media_type, handed)?),
    }
}

/// Puts the messages of a group one behind the other, as in SQS.
fn gather(pulled: &mut [Pulled]) {
    let mut groups: Vec<Option<OrderingKey>> = Vec::new();
    for one in pulled.iter() {
        if !groups.contains(&one.key) {
            groups.push(one.key.clone());
        }
    }
    pulled.sort_by_key(|one| groups.iter().position(|group| *group == one.key));
}

/// A payload as a text, and whether that text is its base64.
struct Body<'a> {
    text: std::borrow::Cow<'a, str>,
    is_base64: bool,
}

/// Returns the body of a message. Only other clients send what XML cannot contain.
fn body(pulled: &Pulled, is_xml: bool) -> Body<'_> {
    let text = str::from_utf8(&pulled.delivery.payload).ok();
    match text.filter(|text| !is_xml || attributes::forbidden(text).is_none()) {
        Some(text) => Body {
            text: text.into(),
            is_base64: false,
        },
        None => Body {
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
    let mut system = system_attributes(pulled, is_fifo);
    system.retain(|name, _| request.wants(name));
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
        id: match forwarded::origin(&delivery.headers) {
            Some((topic, id)) => message_id(&topic, &id).to_string(),
            None => message_id(&delivery.topic, &delivery.id).to_string(),
        },
        handle: &pulled.token,
        body: &body.text,
        md5: md5_of(&body.text),
        system,
        attributes,
        md5_of_attributes,
    }
}

/// Returns the ARN of the queue from which a message was forwarded to its dead-letter queue.
fn source(call: &Call<'_>, pulled: &Pulled, is_fifo: bool) -> Option<String> {
    let topic = pulled.delivery.headers.get(forwarded::TOPIC)?;
    let suffix = if is_fifo { FIFO } else { "" };
    Some(call.arn(&format!("{topic}{suffix}")))
}

fn system_attributes(pulled: &Pulled, is_fifo: bool) -> BTreeMap<&'static str, String> {
    let delivery = &pulled.delivery;
    let header = |name: &str| delivery.headers.get(name).map(str::to_owned);
    let generated = || {
        let origin = forwarded::origin(&delivery.headers).map(|(_, id)| id);
        let at = origin.unwrap_or_else(|| delivery.id.clone()).generated_at();
        at.map(|at| at.get().to_string())
    };
    // Only a message of another client, with an id of its own, has no time of the send.
    let sent = header(SENT).or_else(generated);
    let sent = sent.unwrap_or_else(|| delivery.due_at.get().to_string());
    // A message of another client has a key, but not that header.
    let key = pulled.key.as_ref().filter(|_| is_fifo);
    let key = key.map(|key| key.as_str().to_owned());
    // Those of the queue from which it was forwarded count, too.
    let before = header(forwarded::ATTEMPTS).and_then(|attempts| attempts.parse().ok());
    let receives = delivery.attempt + before.unwrap_or(0);
    // Unless the header has it, a deduplication id is the id of the message.
    let own = || {
        let id = delivery.id.as_str();
        let is_own = is_fifo && delivery.id.generated_at().is_none() && !id.starts_with(HASHED);
        is_own.then(|| id.to_owned())
    };
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
        ("MessageDeduplicationId", header(DEDUPLICATION).or_else(own)),
        (
            "SenderId",
            header(SENDER).or_else(|| Some(ANONYMOUS.to_owned())),
        ),
        (TRACE_ATTRIBUTE, header(TRACE)),
    ] {
        attributes.extend(value.map(|value| (name, value)));
    }
    attributes
}
