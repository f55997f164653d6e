//! `DeleteMessage`, `ChangeMessageVisibility`, and their batches.

use std::time::Duration;

use axum::response::Response;
use futures_util::future::join_all;
use lisa_consumer_core::Outcome;
use lisa_consumer_core::internals::Claims;
use lisa_core::time::shorten;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Call;
use super::late::Late;
use super::protocol::{FailedEntry, Kind, SqsError, ok, or_default};
use super::queue_attributes::MAX_TIMEOUT;
use super::queues::Queue;
use super::receive::within;
use super::send::check_ids;
use crate::settle::{Ended, extend_one, settle_all};
use crate::{Gateway, pull::MIN_LEASE};
use lisa_service::http::{Problem, ProblemCode};

/// The error of an attempt that its client ended with a visibility timeout of 0.
pub(super) const RELEASED: &str = "visibility timeout set to 0 by an SQS client";

/// The parameters of `DeleteMessageBatch` and `ChangeMessageVisibilityBatch`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Many {
    queue_url: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    entries: Vec<Change>,
}

/// A delivery, and its new visibility timeout: the parameters of `DeleteMessage` and `ChangeMessageVisibility`, or an entry of
/// their batches. A single struct, because flattening one into another would build the unknown fields in memory.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Change {
    /// Not in an entry.
    queue_url: Option<String>,
    /// Only in an entry.
    #[serde(default, deserialize_with = "or_default")]
    id: String,
    receipt_handle: Option<String>,
    visibility_timeout: Option<i64>,
}

/// The answer to a batch.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Results<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    successful: Vec<Successful<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<FailedEntry<'a>>,
}

/// An entry that succeeded.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Successful<'a> {
    id: &'a str,
}

/// The two actions.
#[derive(Clone, Copy)]
enum Verb {
    Delete,
    Change,
}

pub(super) async fn delete(call: &Call<'_>, request: Change) -> Result<Response, SqsError> {
    one(call, Verb::Delete, request).await
}

pub(super) async fn change(call: &Call<'_>, request: Change) -> Result<Response, SqsError> {
    one(call, Verb::Change, request).await
}

pub(super) async fn delete_batch(call: &Call<'_>, request: Many) -> Result<Response, SqsError> {
    many(call, Verb::Delete, request).await
}

pub(super) async fn change_batch(call: &Call<'_>, request: Many) -> Result<Response, SqsError> {
    many(call, Verb::Change, request).await
}

async fn one(call: &Call<'_>, verb: Verb, request: Change) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    let mut results = verb.run(call, &queue, &[&request]).await;
    results.pop().unwrap_or(Ok(()))?;
    Ok(ok(&json!({})))
}

async fn many(call: &Call<'_>, verb: Verb, request: Many) -> Result<Response, SqsError> {
    let queue = call.queue(request.queue_url.as_deref()).await?;
    check_ids(
        verb.entry(),
        request.entries.iter().map(|entry| entry.id.as_str()),
    )?;
    let changes: Vec<&Change> = request.entries.iter().collect();
    let results = verb.run(call, &queue, &changes).await;
    let ids = request.entries.iter().map(|entry| entry.id.as_str());
    let (mut successful, mut failed) = (Vec::new(), Vec::new());
    for (id, result) in ids.zip(&results) {
        match result {
            Ok(()) => successful.push(Successful { id }),
            Err(error) => failed.push(error.of_entry(id)),
        }
    }
    Ok(ok(&Results { successful, failed }))
}

impl Verb {
    /// Returns the type of an entry of its batch.
    const fn entry(self) -> &'static str {
        match self {
            Self::Delete => "DeleteMessageBatchRequestEntry",
            Self::Change => "ChangeMessageVisibilityBatchRequestEntry",
        }
    }

    /// Changes deliveries, and returns a result for each, in order.
    async fn run(
        self,
        call: &Call<'_>,
        queue: &Queue,
        changes: &[&Change],
    ) -> Vec<Result<(), SqsError>> {
        let gateway = call.gateway();
        let opened = changes.iter().map(|change| self.open(call, queue, change));
        let opened: Vec<Result<Claims, SqsError>> = opened.collect();
        match self {
            Self::Delete => {
                let claims = opened.iter().flatten().cloned();
                let acks = claims.map(|claims| Ok((claims, Outcome::Ack))).collect();
                let mut ended = settle_all(gateway, acks).await.into_iter();
                let results = opened.into_iter().map(|claims| {
                    let claims = claims?;
                    Ok((claims, ended.next()))
                });
                let results: Vec<Result<_, SqsError>> = results.collect();
                let results = results.into_iter().zip(changes);
                join_all(results.map(async |(result, change)| {
                    let (claims, ended) = result?;
                    match ended {
                        Some(Err(problem)) => {
                            let late = Late::new(queue, &claims, change.handle());
                            late.delete(gateway, problem).await
                        }
                        _ => Ok(()),
                    }
                }))
                .await
            }
            Self::Change => {
                let each = opened.into_iter().zip(changes);
                join_all(each.map(async |(claims, change)| {
                    set_timeout(gateway, queue, claims?, change).await
                }))
                .await
            }
        }
    }

    /// Opens the receipt handle of a delivery of a queue.
    fn open(self, call: &Call<'_>, queue: &Queue, change: &Change) -> Result<Claims, SqsError> {
        let handle = change.receipt_handle.as_deref();
        let handle = handle.ok_or_else(|| SqsError::missing("ReceiptHandle"))?;
        let invalid = |why: &str| {
            tracing::debug!(why, "invalid receipt handle");
            let message = match self {
                Self::Delete => {
                    let handle = shorten(handle);
                    format!("The input receipt handle \"{handle}\" is not a valid receipt handle.")
                }
                Self::Change => "The input receipt handle is invalid.".to_owned(),
            };
            SqsError::new(Kind::ReceiptHandleIsInvalid, message)
        };
        let opened = call.gateway().open(handle);
        let claims = opened.map_err(|problem| match problem.code() {
            ProblemCode::InvalidDeliveryToken => invalid(problem.detail()),
            _ => problem.into(),
        })?;
        let is_of_queue =
            claims.topic == *queue.topic.name() && claims.group == call.options().group;
        match is_of_queue {
            true => Ok(claims),
            false => Err(invalid("it is of another queue")),
        }
    }
}

impl Change {
    /// Returns the receipt handle, which an error repeats.
    pub(super) fn handle(&self) -> &str {
        self.receipt_handle.as_deref().unwrap_or_default()
    }
}

/// Sets the visibility timeout of a delivery. 0 ends the attempt: the message is delivered again now.
async fn set_timeout(
    gateway: &Gateway,
    queue: &Queue,
    claims: Claims,
    change: &Change,
) -> Result<(), SqsError> {
    let given = change.visibility_timeout;
    let given = given.ok_or_else(|| SqsError::missing("VisibilityTimeout"))?;
    let timeout = Duration::from_secs(within("VisibilityTimeout", given, 0, MAX_TIMEOUT)?);
    let ended: Result<Ended, Problem> = if timeout.is_zero() {
        let outcome = Outcome::retry_after(Duration::ZERO, RELEASED);
        let mut results = settle_all(gateway, vec![Ok((claims.clone(), outcome))]).await;
        match results.pop() {
            Some(result) => result,
            None => return Ok(()),
        }
    } else {
        extend_one(gateway, &claims, Some(timeout.max(MIN_LEASE))).await
    };
    match ended {
        Ok(_) => Ok(()),
        Err(problem) => {
            let late = Late::new(queue, &claims, change.handle());
            late.change(gateway, timeout, problem).await
        }
    }
}
