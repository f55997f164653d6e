//! `SendMessage` and `SendMessageBatch`.

use std::time::Duration;

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lisa_core::message::{Headers, MessageId};
use lisa_core::time::UnixMs;
use lisa_producer::{NewMessage, Receipt};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Call;
use super::attributes::{self, Attributes, md5_of, md5_of_attributes};
use super::message_id::message_id;
use super::protocol::{FailedEntry, Kind, SqsError, ok, or_default};
use super::queues::Queue;

/// The header with the ordering key, as the client named it.
pub(super) const GROUP: &str = "sqs-group-id";
/// The header with the deduplication id, as the client named it.
pub(super) const DEDUPLICATION: &str = "sqs-deduplication-id";
/// The header with the time of the send, in ms since the epoch, if the id of the message does not have it.
pub(super) const SENT: &str = "sqs-sent";
/// The header with the trace of AWS X-Ray.
pub(super) const TRACE: &str = "sqs-trace";

/// The name of that trace as an attribute.
pub(super) const TRACE_ATTRIBUTE: &str = "AWSTraceHeader";

/// The most entries of a batch.
pub(super) const MAX_ENTRIES: usize = 10;

/// A message to send: the parameters of `SendMessage`, or an entry of `SendMessageBatch`. A single struct, because flattening
/// one into another would build the unknown fields in memory.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Message {
    /// Not in an entry.
    queue_url: Option<String>,
    /// Only in an entry.
    #[serde(default, deserialize_with = "or_default")]
    id: String,
    message_body: Option<String>,
    delay_seconds: Option<i64>,
    #[serde(default, deserialize_with = "or_default")]
    message_attributes: Attributes,
    #[serde(default, deserialize_with = "or_default")]
    message_system_attributes: Attributes,
    message_group_id: Option<String>,
    message_deduplication_id: Option<String>,
}

/// The parameters of `SendMessageBatch`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SendBatch {
    queue_url: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    entries: Vec<Message>,
}

/// The hashes of a message that was sent. SDKs compare them with their own.
#[derive(Serialize)]
struct Sent<'a> {
    #[serde(rename = "Id", skip_serializing_if = "Option::is_none")]
    entry: Option<&'a str>,
    #[serde(rename = "MessageId")]
    id: String,
    #[serde(rename = "MD5OfMessageBody")]
    body: String,
    #[serde(
        rename = "MD5OfMessageAttributes",
        skip_serializing_if = "Option::is_none"
    )]
    attributes: Option<String>,
    #[serde(
        rename = "MD5OfMessageSystemAttributes",
        skip_serializing_if = "Option::is_none"
    )]
    system_attributes: Option<String>,
}

/// The part of a request that its messages share.
struct Sender<'a> {
    /// The trace of AWS X-Ray in the headers of the request.
    trace: Option<&'a str>,
    now: UnixMs,
}

impl<'a> Sender<'a> {
    fn of(call: &'a Call<'_>) -> Self {
        Self {
            trace: call.trace.as_deref(),
            now: call.gateway().process().broker.now(),
        }
    }
}

/// A message that was checked, and its hashes.
struct Checked {
    message: NewMessage,
    hashes: [Option<String>; 3],
}

impl<'a> Sent<'a> {
    fn new(
        queue: &Queue,
        hashes: [Option<String>; 3],
        receipt: &Receipt,
        entry: Option<&'a str>,
    ) -> Self {
        let [body, attributes, system_attributes] = hashes;
        Self {
            entry,
            id: message_id(queue.topic.name(), &receipt.id).to_string(),
            body: body.unwrap_or_default(),
            attributes,
            system_attributes,
        }
    }
}

#[cfg(feature = "fuzzing")]
impl Message {
    /// Checks a message without sending it.
    pub(super) fn parse(self) -> Result<(), SqsError> {
        let (trace, now) = (None, UnixMs::new(0));
        self.check(true, &Sender { trace, now }).map(drop)
    }
}

#[cfg(feature = "fuzzing")]
impl SendBatch {
    /// Checks messages without sending them.
    pub(super) fn parse(self) -> Result<(), SqsError> {
        check_ids(self.entries.iter().map(|entry| entry.id.as_str()))?;
        self.entries.into_iter().try_for_each(Message::parse)
    }
}

pub(super) async fn send(call: &Call<'_>, request: Message) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    let Checked { message, hashes } = request.check(queue.is_fifo(), &Sender::of(call))?;
    let producer = &call.options().producer;
    let receipt = producer
        .send_message(queue.topic.name().as_str(), message)
        .await?;
    Ok(ok(&Sent::new(&queue, hashes, &receipt, None)))
}

/// The answer to a batch.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Results<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    successful: Vec<Sent<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<FailedEntry<'a>>,
}

pub(super) async fn send_batch(call: &Call<'_>, request: SendBatch) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    check_ids(request.entries.iter().map(|entry| entry.id.as_str()))?;
    // Like SQS, refuse the whole batch.
    let lacks_group = |entry: &Message| entry.message_group_id.is_none();
    if queue.is_fifo() && request.entries.iter().any(lacks_group) {
        return Err(SqsError::missing("MessageGroupId"));
    }
    let (mut ids, mut hashes, mut messages) = (Vec::new(), Vec::new(), Vec::new());
    let mut errors: Vec<(String, SqsError)> = Vec::new();
    let sender = Sender::of(call);
    for mut message in request.entries {
        let id = std::mem::take(&mut message.id);
        match message.check(queue.is_fifo(), &sender) {
            Ok(checked) => {
                ids.push(id);
                hashes.push(checked.hashes);
                messages.push(checked.message);
            }
            Err(error) => errors.push((id, error)),
        }
    }
    let producer = &call.options().producer;
    let results = match messages.is_empty() {
        true => Vec::new(),
        false => {
            producer
                .send_batch(queue.topic.name().as_str(), messages)
                .await?
        }
    };
    let mut successful = Vec::new();
    for ((id, hashes), result) in ids.iter().zip(hashes).zip(results) {
        match result {
            Ok(receipt) => successful.push(Sent::new(&queue, hashes, &receipt, Some(id))),
            Err(error) => errors.push((id.clone(), SqsError::from(error))),
        }
    }
    let failed = errors
        .iter()
        .map(|(id, error)| error.of_entry(id))
        .collect();
    Ok(ok(&Results { successful, failed }))
}

/// Checks the ids of the entries of a batch.
pub(super) fn check_ids<'a>(ids: impl ExactSizeIterator<Item = &'a str>) -> Result<(), SqsError> {
    let count = ids.len();
    if count == 0 {
        let message = "There should be at least one entry in the request.";
        return Err(SqsError::new(Kind::EmptyBatchRequest, message));
    }
    if count > MAX_ENTRIES {
        let message = format!(
            "Maximum number of entries per request are {MAX_ENTRIES}. You have sent {count}."
        );
        return Err(SqsError::new(Kind::TooManyEntriesInBatchRequest, message));
    }
    let mut seen = std::collections::HashSet::new();
    for id in ids {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !(1..=80).contains(&id.len()) || !id.bytes().all(is_allowed) {
            let message = "A batch entry id can only contain alphanumeric characters, hyphens and underscores. \
                It can be at most 80 letters long.";
            return Err(SqsError::new(Kind::InvalidBatchEntryId, message));
        }
        if !seen.insert(id) {
            let message = format!("Id {id} repeated.");
            return Err(SqsError::new(Kind::BatchEntryIdsNotDistinct, message));
        }
    }
    Ok(())
}

impl Message {
    /// Checks a message, and turns it into one of Lisa's.
    fn check(self, is_fifo: bool, sender: &Sender<'_>) -> Result<Checked, SqsError> {
        let body = self.message_body.filter(|body| !body.is_empty());
        let body = body.ok_or_else(|| SqsError::missing("MessageBody"))?;
        if let Some(bad) = attributes::forbidden(&body) {
            let message = format!(
                "Invalid characters found: U+{:04X}. Allowed are #x9, #xA, #xD, #x20 to #xD7FF, #xE000 to #xFFFD, and \
                 #x10000 to #x10FFFF. Encode other data in base64.",
                u32::from(bad)
            );
            return Err(SqsError::new(Kind::InvalidMessageContents, message));
        }
        attributes::check(&self.message_attributes)?;
        let mut headers = Headers::default();
        attributes::to_headers(&self.message_attributes, &mut headers)?;
        for (name, attribute) in &self.message_system_attributes {
            let value = attribute.string().filter(|_| name == TRACE_ATTRIBUTE);
            let value = value.ok_or_else(|| {
                SqsError::parameter(
                    "MessageSystemAttributes",
                    name,
                    "Must be AWSTraceHeader, a String",
                )
            })?;
            set(&mut headers, TRACE, value, "AWSTraceHeader")?;
        }
        if let Some(trace) = sender.trace.filter(|_| headers.get(TRACE).is_none()) {
            // Proxies set it, too: a wrong one must not fail the send.
            let _ = headers.insert(TRACE, trace);
        }
        let hashes = [
            Some(md5_of(&body)),
            md5_of_some(&self.message_attributes),
            md5_of_some(&self.message_system_attributes),
        ];
        let group = self.message_group_id.as_deref();
        let id = self.message_deduplication_id.as_deref();
        let content = (is_fifo && id.is_none()).then(|| hash(body.as_bytes()));
        if is_fifo && group.is_none() {
            return Err(SqsError::missing("MessageGroupId"));
        }
        for (name, header, value) in [
            ("MessageGroupId", GROUP, group),
            ("MessageDeduplicationId", DEDUPLICATION, id),
        ] {
            let Some(value) = value else { continue };
            let is_allowed = (1..=128).contains(&value.len())
                && value.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_allowed {
                let reason = "Must be 1 to 128 letters, digits and punctuation characters";
                return Err(SqsError::parameter(name, value, reason));
            }
            set(&mut headers, header, value, name)?;
        }
        let id = id.map(own_id).or(content);
        if id.is_some() {
            set(&mut headers, SENT, &sender.now.get().to_string(), "time")?;
        }
        let mut message = NewMessage::new(body);
        if let Some(id) = id {
            message = message.id(id);
        }
        if let Some(group) = group.filter(|_| is_fifo) {
            message = message.key(group);
        }
        if let Some(seconds) = self.delay_seconds {
            let whole = u64::try_from(seconds)
                .map_err(|_| SqsError::parameter("DelaySeconds", seconds, "Must be 0 or more"))?;
            message = message.delay(Duration::from_secs(whole));
        }
        let message = message.headers(headers);
        Ok(Checked { message, hashes })
    }
}

fn set(headers: &mut Headers, header: &str, value: &str, parameter: &str) -> Result<(), SqsError> {
    let set = headers.insert(header, value);
    set.map_err(|error| SqsError::parameter(parameter, value, error))
}

fn md5_of_some(attributes: &Attributes) -> Option<String> {
    (!attributes.is_empty()).then(|| md5_of_attributes(attributes))
}

/// Returns the id of a message with a deduplication id: that one, or its hash if it is not an id.
fn own_id(id: &str) -> String {
    match id.parse::<MessageId>() {
        Ok(id) => id.as_str().to_owned(),
        Err(_) => hash(id.as_bytes()),
    }
}

fn hash(bytes: &[u8]) -> String {
    format!("sha256:{}", URL_SAFE_NO_PAD.encode(Sha256::digest(bytes)))
}
