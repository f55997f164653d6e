//! `SendMessage` and `SendMessageBatch`.

use std::time::Duration;

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lisa_core::message::{Headers, MessageId, OrderingKey};
use lisa_core::time::UnixMs;
use lisa_core::topic::TopicSettings;
use lisa_producer::{NewMessage, Receipt};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Call;
use super::attributes::{self, Attributes, md5_of, md5_of_attributes};
use super::message_id::message_id;
use super::protocol::{FailedEntry, Kind, SqsError, ok, or_default};
use super::queue_attributes::MAX_MESSAGE;
use super::queues::Queue;
use super::sigv4::hex;

/// The header with the ordering key, as the client named it.
pub(super) const GROUP: &str = "sqs-group-id";
/// The header with the deduplication id, as the client named it.
pub(super) const DEDUPLICATION: &str = "sqs-deduplication-id";
/// The header with the time of the send, in ms since the epoch, if the id of the message does not have it.
pub(super) const SENT: &str = "sqs-sent";
/// The header with the trace of AWS X-Ray.
pub(super) const TRACE: &str = "sqs-trace";

/// The header with the token of the sender.
pub(super) const SENDER: &str = "sqs-sender";

/// The name of that trace as an attribute.
pub(super) const TRACE_ATTRIBUTE: &str = "AWSTraceHeader";

/// The type of an entry of `SendMessageBatch`.
const ENTRY: &str = "SendMessageBatchRequestEntry";
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
    #[serde(rename = "SequenceNumber", skip_serializing_if = "Option::is_none")]
    sequence: Option<String>,
}

/// The part of a request that its messages share.
struct Sender<'a> {
    /// The trace of AWS X-Ray in the headers of the request.
    trace: Option<&'a str>,
    /// The token of the client.
    token: Option<&'a str>,
    now: UnixMs,
    /// True for a queue whose name ends with `.fifo`.
    is_fifo: bool,
    /// True if its messages are the entries of a batch.
    is_batch: bool,
    settings: &'a TopicSettings,
}

impl<'a> Sender<'a> {
    fn of(call: &'a Call<'_>, queue: &'a Queue, is_batch: bool) -> Self {
        Self {
            trace: call.trace.as_deref(),
            token: call.token.as_deref(),
            now: call.gateway().process().broker.now(),
            is_fifo: queue.is_fifo(),
            is_batch,
            settings: queue.topic.settings(),
        }
    }

    /// Returns the delay of a message. In a FIFO queue, all messages have that of the queue.
    fn delay(&self, seconds: Option<i64>) -> Result<Duration, SqsError> {
        let sqs = &self.settings.sqs;
        let is_strict = sqs.fifo == Some(true);
        match seconds {
            None => Ok(sqs.delay),
            Some(0) if is_strict => Ok(sqs.delay),
            Some(seconds) if is_strict => {
                let reason = "The request include parameter that is not valid for this queue type";
                Err(SqsError::parameter("DelaySeconds", seconds, reason))
            }
            Some(seconds) => {
                let whole = u64::try_from(seconds).map_err(|_| {
                    SqsError::parameter("DelaySeconds", seconds, "Must be 0 or more")
                })?;
                Ok(Duration::from_secs(whole))
            }
        }
    }

    /// Returns the id of a message, by which repeated sends are recognized: its deduplication id, or the hash of the body in a FIFO queue. If
    /// messages of different groups may have the same one, the group is a part of it.
    fn id(&self, message: &Message, body: &str) -> Result<Option<String>, SqsError> {
        let sqs = &self.settings.sqs;
        let given = message.message_deduplication_id.as_deref();
        let content =
            (self.is_fifo && given.is_none()).then(|| hex(&Sha256::digest(body.as_bytes())));
        if content.is_some() && !sqs.content_based_deduplication {
            return Err(SqsError::no_deduplication_id());
        }
        let Some(id) = given.or(content.as_deref()) else {
            return Ok(None);
        };
        let scope = sqs.attributes.get("DeduplicationScope");
        let group = message.message_group_id.as_deref();
        match group.filter(|_| self.is_fifo && scope.is_some_and(|it| it == "messageGroup")) {
            // No part contains a NUL.
            Some(group) => Ok(Some(hash([group, id].join("\0").as_bytes()))),
            None => Ok(Some(own_id(id))),
        }
    }
}

/// A message that was checked, and its hashes.
struct Checked {
    message: NewMessage,
    /// Its message group, in a FIFO queue.
    group: Option<String>,
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
            sequence: None,
        }
    }
}

#[cfg(feature = "fuzzing")]
impl Message {
    /// Checks a message without sending it.
    pub(super) fn parse(self) -> Result<(), SqsError> {
        let settings = TopicSettings::default();
        let sender = Sender {
            trace: None,
            token: None,
            now: UnixMs::new(0),
            is_fifo: true,
            is_batch: false,
            settings: &settings,
        };
        self.check(&sender).map(drop)
    }
}

#[cfg(feature = "fuzzing")]
impl SendBatch {
    /// Checks messages without sending them.
    pub(super) fn parse(self) -> Result<(), SqsError> {
        check_ids(ENTRY, self.entries.iter().map(|entry| entry.id.as_str()))?;
        self.entries.into_iter().try_for_each(Message::parse)
    }
}

pub(super) async fn send(call: &Call<'_>, request: Message) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    let Checked {
        message,
        group,
        hashes,
    } = request.check(&Sender::of(call, &queue, false))?;
    let producer = &call.options().producer;
    let receipt = producer
        .send_message(queue.topic.name().as_str(), message)
        .await?;
    let sent = [(&receipt.id, group)];
    let sequence = sequence_numbers(call, &queue, &sent).await.pop().flatten();
    let sent = Sent::new(&queue, hashes, &receipt, None);
    Ok(ok(&Sent { sequence, ..sent }))
}

/// Returns the sequence numbers of messages with their groups, as far as they are still stored.
pub(super) async fn sequence_numbers(
    call: &Call<'_>,
    queue: &Queue,
    messages: &[(&MessageId, Option<String>)],
) -> Vec<Option<String>> {
    let parsed = messages.iter().map(|(id, group)| {
        let key: OrderingKey = group.as_ref()?.parse().ok()?;
        Some((*id, key))
    });
    let parsed: Vec<_> = parsed.collect();
    let keyed = parsed.iter().flatten().map(|(id, key)| (*id, key));
    let keyed: Vec<_> = keyed.collect();
    let broker = &call.gateway().process().broker;
    let found = match keyed.is_empty() {
        true => Vec::new(),
        false => {
            let found = broker.sequence_numbers(&queue.topic, &keyed).await;
            found.unwrap_or_else(|error| {
                // The messages are stored.
                tracing::debug!(%error, "cannot read sequence numbers");
                Vec::new()
            })
        }
    };
    let mut found = found.into_iter();
    let parsed = parsed.iter();
    let numbers = parsed.map(|message| message.as_ref().and_then(|_| found.next().flatten()));
    numbers
        .map(|number| Some(format!("{:020}", number?)))
        .collect()
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
    check_ids(ENTRY, request.entries.iter().map(|entry| entry.id.as_str()))?;
    let sender = Sender::of(call, &queue, true);
    check_batch(&sender, &request.entries)?;
    let (mut ids, mut hashes, mut messages) = (Vec::new(), Vec::new(), Vec::new());
    let mut groups = Vec::new();
    let mut errors: Vec<(String, SqsError)> = Vec::new();
    for mut message in request.entries {
        let id = std::mem::take(&mut message.id);
        match message.check(&sender) {
            Ok(checked) => {
                ids.push(id);
                hashes.push(checked.hashes);
                groups.push(checked.group);
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
    let stored = results.iter().zip(groups);
    let stored = stored.filter_map(|(result, group)| Some((&result.as_ref().ok()?.id, group)));
    let stored: Vec<_> = stored.collect();
    let mut sequences = sequence_numbers(call, &queue, &stored).await.into_iter();
    let mut successful = Vec::new();
    for ((id, hashes), result) in ids.iter().zip(hashes).zip(results) {
        match result {
            Ok(receipt) => {
                let sent = Sent::new(&queue, hashes, &receipt, Some(id));
                let sequence = sequences.next().flatten();
                successful.push(Sent { sequence, ..sent });
            }
            Err(error) => errors.push((id.clone(), SqsError::from(error))),
        }
    }
    let failed = errors
        .iter()
        .map(|(id, error)| error.of_entry(id))
        .collect();
    Ok(ok(&Results { successful, failed }))
}

/// Refuses a batch for which SQS stores none of its messages.
fn check_batch(sender: &Sender<'_>, entries: &[Message]) -> Result<(), SqsError> {
    let size: u64 = entries.iter().map(Message::size).sum();
    // A single message may be larger than all messages of a batch in SQS.
    let most = sender.settings.max_payload.get().max(MAX_MESSAGE);
    if size > most {
        let message = format!(
            "Batch requests cannot be longer than {most} bytes. You have sent {size} bytes."
        );
        return Err(SqsError::new(Kind::BatchRequestTooLong, message));
    }
    if !sender.is_fifo {
        return Ok(());
    }
    if entries.iter().any(|entry| entry.message_group_id.is_none()) {
        // As SQS, which has another code for a single message.
        let message = SqsError::missing("MessageGroupId").message;
        return Err(SqsError::new(Kind::InvalidParameterValue, message));
    }
    let mut ids = entries.iter().map(|entry| &entry.message_deduplication_id);
    match ids.any(Option::is_none) && !sender.settings.sqs.content_based_deduplication {
        true => Err(SqsError::no_deduplication_id()),
        false => Ok(()),
    }
}

/// Returns true for a name of letters, digits, hyphens and underscores: the id of an entry, or the label of a permission.
pub(super) fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=80).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// Checks a deduplication id, or another id that a client chooses.
pub(super) fn check_choice(name: &str, value: &str) -> Result<(), SqsError> {
    let is_allowed =
        (1..=128).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_graphic());
    match is_allowed {
        true => Ok(()),
        false => {
            let reason = format!(
                "{name} can only include alphanumeric and punctuation characters. 1 to 128 in length"
            );
            Err(SqsError::parameter(name, value, reason))
        }
    }
}

/// Checks the ids of the entries of a batch, which are of this type.
pub(super) fn check_ids<'a>(
    of_type: &str,
    ids: impl ExactSizeIterator<Item = &'a str>,
) -> Result<(), SqsError> {
    let count = ids.len();
    if count == 0 {
        let message = format!("There should be at least one {of_type} in the request.");
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
        if !is_name(id) {
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
    /// Returns its size as SQS counts it: the body and the attributes.
    fn size(&self) -> u64 {
        let body = self.message_body.as_ref().map_or(0, String::len);
        (body + attributes::size(&self.message_attributes)) as u64
    }

    /// Checks a message, and turns it into one of Lisa's.
    fn check(mut self, sender: &Sender<'_>) -> Result<Checked, SqsError> {
        let size = self.size();
        let body = self.message_body.take().filter(|body| !body.is_empty());
        let body = body.ok_or_else(|| SqsError::missing("MessageBody"))?;
        let most = sender.settings.max_payload.get();
        if size > most {
            // As SQS, which has another text for an entry of a batch.
            let what = match sender.is_batch {
                true => "cannot be validated",
                false => "are invalid",
            };
            let message = format!(
                "One or more parameters {what}. Reason: Message must be shorter than {most} bytes."
            );
            return Err(SqsError::new(Kind::InvalidParameterValue, message));
        }
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
        if sender.is_fifo && self.message_group_id.is_none() {
            return Err(SqsError::missing("MessageGroupId"));
        }
        for (name, header, value) in [
            ("MessageGroupId", GROUP, &self.message_group_id),
            (
                "MessageDeduplicationId",
                DEDUPLICATION,
                &self.message_deduplication_id,
            ),
        ] {
            let Some(value) = value else { continue };
            check_choice(name, value)?;
            set(&mut headers, header, value, name)?;
        }
        if let Some(token) = sender.token {
            set(&mut headers, SENDER, token, "token")?;
        }
        let id = sender.id(&self, &body)?;
        if id.is_some() {
            set(&mut headers, SENT, &sender.now.get().to_string(), "time")?;
        }
        let delay = sender.delay(self.delay_seconds)?;
        let mut message = NewMessage::new(body).delay(delay);
        if let Some(id) = id {
            message = message.id(id);
        }
        let group = self.message_group_id.filter(|_| sender.is_fifo);
        if let Some(group) = &group {
            message = message.key(group.as_str());
        }
        let message = message.headers(headers);
        Ok(Checked {
            message,
            group,
            hashes,
        })
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

/// The beginning of an id that is a hash.
pub(super) const HASHED: &str = "sha256:";

fn hash(bytes: &[u8]) -> String {
    format!("{HASHED}{}", URL_SAFE_NO_PAD.encode(Sha256::digest(bytes)))
}
