//! The route for batches: one result for each message, in the same order, in bounded memory.
//!
//! Lines that have arrived are sent together, without waiting for further ones. A client that writes one line and then
//! reads its result gets it immediately. A JSON array is read whole.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::vec;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{FutureExt, stream};
use lisa_core::broker::MAX_BATCH;
use lisa_core::message::MessageId;
use lisa_service::http::batch::Format;
use lisa_service::http::body::{
    BodyError, BodyLimits, Lines, Reservation, read_reserved, without_bom,
};
use lisa_service::http::client::Admitted;
use lisa_service::http::{Problem, ProblemCode, TopicPath};
use serde::Serialize;
use utoipa::ToSchema;

use super::answer::{Sent, problem, problem_with, standing};
use super::{Api, headers};
use crate::batch_line;
use crate::message::NewMessage;
use crate::producer::Producer;
use crate::receipt::Receipt;

/// The most bytes of messages sent in one step, unless a single message is longer.
const MAX_HELD: usize = 1024 * 1024;
/// The most bytes of a batch as a JSON array, unless a single message may be longer.
const MAX_ARRAY: usize = 16 * 1024 * 1024;

/// A message of a batch. Exactly one of `payload`, `payload_text` and `payload_base64` is required.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "only describes the body; its parser keeps the exact text of a JSON payload"
)]
struct BatchMessage {
    /// Any JSON, kept byte for byte.
    #[schema(required = false)]
    payload: serde_json::Value,
    /// Text, delivered without quotes.
    #[schema(required = false)]
    payload_text: String,
    /// Any bytes, in base64 with padding.
    #[schema(required = false)]
    payload_base64: String,
    /// Headers of the message.
    #[schema(required = false)]
    headers: BTreeMap<String, String>,
}

/// The result of a message of a batch.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum BatchResult<'a> {
    Sent(Sent<'a>),
    Failed(BatchFailure<'a>),
}

/// A message of a batch that was refused or failed.
#[derive(Serialize, ToSchema)]
struct BatchFailure<'a> {
    #[schema(value_type = Problem)]
    error: &'a Problem,
}

/// Sends many messages, as a JSON array or as lines (NDJSON), and returns one result for each, in the same order.
///
/// Some messages may fail; their result is `{"error": problem}`. An array has at most 1,000 messages and 16 MiB. The number
/// of lines is not limited. Read results while you write lines: a large batch stalls if its results are not read.
#[utoipa::path(
    post, operation_id = "send_batch", path = "/v1/topics/{topic}/messages:batch", tag = "messages",
    request_body(content((Vec<BatchMessage> = "application/json"), (String = "application/x-ndjson")), description = "An array of messages, or one message per line"),
    params(TopicPath),
    responses(
        (status = 200, description = "One result for each message, in the format of the request, unless Accept names only the other format", content((Vec<BatchResult<'static>> = "application/json"), (String = "application/x-ndjson"))),
        (status = 404, description = "unknown_topic: nothing was sent"),
        (status = 413, description = "too_large: the array exceeds its limits; nothing was sent"),
        (status = 503, description = "unavailable: nothing was sent"),
    )
)]
pub(super) async fn send_batch(
    State(api): State<Api>,
    Path(TopicPath { topic }): Path<TopicPath>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    headers::none_beside_a_batch(&headers)?;
    let limit = api.producer.max_payload(&topic).await;
    let longest = batch_line::longest(limit.map_err(|error| api.problem(error))?);
    let (messages, format) = match Format::of_request(&headers) {
        Format::Lines => {
            let lines = Lines::new(body, longest, &api.bodies);
            (Messages::Lines(lines), Format::Lines)
        }
        Format::Array => read_whole(body, longest, &api.bodies).await?,
    };
    let format = format.accepted(&headers);
    let batch = Batch {
        producer: api.producer,
        client: Admitted::current(),
        topic,
        messages,
        format,
        begun: false,
    };
    let results = match batch.messages {
        Messages::Lines(_) => batch.stream(),
        Messages::Whole { .. } => batch.run().await,
    };
    let kind = [(CONTENT_TYPE, format.media_type())];
    Ok((kind, results).into_response())
}

/// The messages of a batch, not parsed.
enum Messages {
    Lines(Lines),
    Whole {
        messages: vec::IntoIter<Result<Bytes, Problem>>,
        /// The reservation for the whole body, of which each message is a slice.
        _reserved: Reservation,
    },
}

impl Messages {
    async fn next(&mut self) -> Option<Result<Bytes, Problem>> {
        match self {
            Self::Lines(lines) => Some(lines.next().await?.map_err(|error| match error {
                BodyError::LineTooLong { line, limit } => too_long(&format!("line {line}"), limit),
                error => error.into(),
            })),
            Self::Whole { messages, .. } => messages.next(),
        }
    }
}

fn too_long(message: &str, longest: usize) -> Problem {
    let detail = format!(
        "{message} is longer than {longest} bytes: twice the topic's max_payload, and 320 KiB"
    );
    Problem::new(ProblemCode::TooLarge, detail)
}

/// Reads a JSON array, or lines that a client declared as JSON. A message of more than `longest` bytes fails alone.
async fn read_whole(
    body: Body,
    longest: usize,
    limits: &BodyLimits,
) -> Result<(Messages, Format), Problem> {
    let (body, reserved) = read_reserved(body, longest.max(MAX_ARRAY), limits).await?;
    let body = without_bom(body);
    let (messages, format) = match body.trim_ascii_start().first() {
        Some(b'{') => (batch_line::lines(&body)?, Format::Lines),
        _ => (batch_line::elements(&body)?, Format::Array),
    };
    let checked = messages.into_iter().enumerate().map(|(index, message)| {
        if message.len() > longest {
            return Err(too_long(&format!("message {index}"), longest));
        }
        Ok(body.slice_ref(message.as_bytes()))
    });
    let checked: Vec<_> = checked.collect();
    let messages = Messages::Whole {
        messages: checked.into_iter(),
        _reserved: reserved,
    };
    Ok((messages, format))
}

struct Batch {
    producer: Producer,
    /// The client, whose quota holds for all lines.
    client: Option<Admitted>,
    topic: String,
    messages: Messages,
    /// The format of the response.
    format: Format,
    /// True once the response has a result.
    begun: bool,
}

impl Batch {
    /// Sends the messages while the client reads their results.
    fn stream(self) -> Body {
        Body::from_stream(stream::unfold(Some(self), |batch| async move {
            let mut batch = batch?;
            match batch.step().await {
                Some(results) => Some((Ok::<_, Infallible>(results), Some(batch))),
                None => batch.end().map(|end| (Ok(end), None)),
            }
        }))
    }

    /// Sends all messages before the client reads a result, so that a slow client does not keep the memory of their body.
    async fn run(mut self) -> Body {
        let mut text = Vec::new();
        while let Some(results) = self.step().await {
            text.extend_from_slice(&results);
        }
        text.extend(self.end().unwrap_or_default());
        Body::from(text)
    }

    /// Sends the messages that have arrived and returns their results. Returns `None` at the end of the body.
    async fn step(&mut self) -> Option<Bytes> {
        let mut raw = vec![self.messages.next().await?];
        let mut held = length(&raw[0]);
        while raw.len() < MAX_BATCH
            && held < MAX_HELD
            && let Some(Some(message)) = self.messages.next().now_or_never()
        {
            held += length(&message);
            raw.push(message);
        }
        let mut messages: Vec<NewMessage> = Vec::new();
        // For each message, its id or the reason it is refused.
        let parsed: Vec<Result<MessageId, Problem>> = raw
            .into_iter()
            .map(|raw| {
                let message = batch_line::parse(&raw?, || None)?;
                let id = message.id_to_send().clone();
                messages.push(message);
                Ok(id)
            })
            .collect();
        let send = send(&self.producer, &self.topic, messages);
        let mut results = match &self.client {
            Some(client) => client.clone().scope(send).await,
            None => send.await,
        };
        let mut text = Vec::new();
        for message in &parsed {
            let result = match message {
                Ok(id) => results.pop_front().unwrap_or_else(|| {
                    Err(Problem::new(ProblemCode::Internal, "no result").id(id.as_str()))
                }),
                Err(problem) => Err(problem.clone()),
            };
            let result = match &result {
                Ok(receipt) => BatchResult::Sent(Sent::new(receipt, None)),
                Err(error) => BatchResult::Failed(BatchFailure { error }),
            };
            self.write(&mut text, &result);
        }
        Some(text.into())
    }

    /// Writes a result in the format of the response.
    fn write(&mut self, text: &mut Vec<u8>, result: &BatchResult<'_>) {
        let (before, after) = match self.format {
            Format::Lines => ("", "\n"),
            Format::Array if self.begun => (",", ""),
            Format::Array => ("[", ""),
        };
        self.begun = true;
        text.extend_from_slice(before.as_bytes());
        serde_json::to_writer(&mut *text, result).expect("texts and numbers always serialize");
        text.extend_from_slice(after.as_bytes());
    }

    /// Returns the end of the response.
    fn end(&self) -> Option<Bytes> {
        match self.format {
            Format::Lines => None,
            Format::Array if self.begun => Some(Bytes::from_static(b"]")),
            Format::Array => Some(Bytes::from_static(b"[]")),
        }
    }
}

/// Sends messages and returns a result for each.
async fn send(
    producer: &Producer,
    topic: &str,
    messages: Vec<NewMessage>,
) -> VecDeque<Result<Receipt, Problem>> {
    if messages.is_empty() {
        return VecDeque::new();
    }
    let ids: Vec<MessageId> = messages.iter().map(|m| m.id_to_send().clone()).collect();
    match producer.send_batch(topic, messages).await {
        Ok(results) => results
            .into_iter()
            .zip(&ids)
            .map(|(result, id)| standing(result.map_err(|error| problem_with(error, id))?))
            .collect(),
        Err(error) => {
            let problem = problem(error);
            ids.iter()
                .map(|id| Err(problem.clone().id(id.as_str())))
                .collect()
        }
    }
}

fn length(message: &Result<Bytes, Problem>) -> usize {
    message.as_ref().map_or(0, Bytes::len)
}
