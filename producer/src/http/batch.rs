//! The route for batches: lines in, lines out, in constant memory.
//!
//! The lines that have arrived are sent together, without waiting for further ones. A client that writes one line and then
//! reads its result gets it immediately.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{FutureExt, stream};
use lisa_core::broker::MAX_BATCH;
use lisa_core::message::MessageId;
use lisa_service::http::body::{BodyError, Lines};
use lisa_service::http::{Problem, ProblemCode};
use serde::Serialize;

use super::answer::{Sent, problem, problem_with, standing};
use super::{Api, headers};
use crate::batch_line;
use crate::message::NewMessage;
use crate::producer::Producer;
use crate::receipt::Receipt;

/// The most bytes of lines held at a time, unless a single line is longer.
const MAX_HELD: usize = 1024 * 1024;

/// Sends many messages: one JSON object per line in, one result per line out, in the same order.
///
/// Some messages may fail; their result is `{"error": problem}`. Read results while you write lines: a large batch stalls if
/// its results are not read.
#[utoipa::path(
    post, path = "/v1/topics/{topic}/messages:batch", tag = "messages",
    request_body(content = String, content_type = "application/x-ndjson"),
    params(("topic" = String, Path, description = "The topic")),
    responses(
        (status = 200, description = "One result per line: {id, due_at, outcome} or {error: problem}", body = Sent<'static>, content_type = "application/x-ndjson"),
        (status = 404, description = "unknown_topic: nothing was sent"),
        (status = 503, description = "unavailable: nothing was sent"),
    )
)]
pub(super) async fn send_batch(
    State(api): State<Api>,
    Path(topic): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    headers::none_beside_a_batch(&headers)?;
    let limit = api.producer.max_payload(&topic).await;
    let limit = limit.map_err(|error| api.problem(error))?;
    let batch = Batch {
        producer: api.producer,
        topic,
        lines: Lines::new(body, batch_line::longest(limit), &api.bodies),
    };
    let results = stream::unfold(batch, |mut batch| async move {
        let results = batch.step().await?;
        Some((Ok::<_, Infallible>(results), batch))
    });
    let kind = [(CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::from_stream(results)).into_response())
}

struct Batch {
    producer: Producer,
    topic: String,
    lines: Lines,
}

/// One line of the response.
#[derive(Serialize)]
#[serde(untagged)]
enum Outcome<'a> {
    Sent(Sent<'a>),
    Failed { error: &'a Problem },
}

impl Batch {
    /// Sends the lines that have arrived and returns their results. Returns `None` at the end of the body.
    async fn step(&mut self) -> Option<Bytes> {
        let mut lines = vec![self.lines.next().await?];
        let mut held = length(&lines[0]);
        while lines.len() < MAX_BATCH
            && held < MAX_HELD
            && let Some(Some(line)) = self.lines.next().now_or_never()
        {
            held += length(&line);
            lines.push(line);
        }
        let mut messages: Vec<NewMessage> = Vec::new();
        // For each line, the id of its message, or the reason it is refused.
        let lines: Vec<Result<MessageId, Problem>> = lines
            .into_iter()
            .map(|line| {
                let message = batch_line::parse(&line?, || None)?;
                let id = message.id_to_send().clone();
                messages.push(message);
                Ok(id)
            })
            .collect();
        let mut results = send(&self.producer, &self.topic, messages).await;
        let mut text = Vec::new();
        for line in &lines {
            let result = match line {
                Ok(id) => results.pop_front().unwrap_or_else(|| {
                    Err(Problem::new(ProblemCode::Internal, "no result").id(id.as_str()))
                }),
                Err(problem) => Err(problem.clone()),
            };
            let outcome = match &result {
                Ok(receipt) => Outcome::Sent(Sent::new(receipt, None)),
                Err(error) => Outcome::Failed { error },
            };
            serde_json::to_writer(&mut text, &outcome).expect("texts and numbers always serialize");
            text.push(b'\n');
        }
        Some(text.into())
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

fn length(line: &Result<Bytes, BodyError>) -> usize {
    line.as_ref().map_or(0, Bytes::len)
}
