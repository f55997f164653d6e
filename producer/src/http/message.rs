//! The routes for single messages: send, get, cancel, reschedule, deliver now.

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use lisa_core::broker::StoredMessage;
use lisa_core::fields;
use lisa_core::fields::{Reader, Value as _};
use lisa_core::state::RescheduleOutcome;
use lisa_core::time::{UnixMs, When};
use lisa_service::http::body::{BodyError, read_limited};
use lisa_service::http::client::may_read;
use lisa_service::http::{
    KEY_OF_MESSAGE, MessagePath, Problem, ProblemCode, TopicPath, read_fields,
};
use serde_json::Value;
use utoipa::ToSchema;

use super::answer::{Cancelled, Sent, standing};
use super::{Api, headers};
use crate::error::SendError;
use crate::stored::{CancelOutcome, GetOutcome};

/// The most bytes of a PATCH body.
const MAX_PATCH: usize = 4096;

/// The payload, byte for byte.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "only describes the body")]
struct Payload(Vec<u8>);

/// Sends one message. The body is its payload, byte for byte, and may be empty.
///
/// The message keeps Content-Type, traceparent and tracestate as headers, and each `Lisa-Header-X` as header `X`. The
/// name `X` must not start with `lisa-`.
#[utoipa::path(
    post, operation_id = "send_message", path = "/v1/topics/{topic}/messages", tag = "messages",
    request_body(content((inline(Payload) = "application/octet-stream"), (inline(Payload) = "*/*"))),
    params(
        TopicPath,
        ("Idempotency-Key" = Option<String>, Header, description = "An alias of Lisa-Id"),
    ),
    responses(
        (status = 202, description = "Accepted, or already known (a duplicate)", body = Sent<'static>),
        (status = 404, description = "unknown_topic, or unknown_message: the message to replace does not exist or has ended"),
        (status = 409, description = "in_flight, garbage: the message to replace is ready or in flight, or in garbage; cancelled: a message with this id was cancelled within the dedup_window"),
        (status = 413, description = "too_large: the payload exceeds the topic's max_payload"),
        (status = 422, description = "invalid: `errors` lists everything that is wrong"),
        (status = 429, description = "full: the topic has reached max_messages or max_bytes, Redis its memory limit, or the token its sends_per_second; nothing was stored"),
        (status = 503, description = "unavailable: nothing was done; indeterminate: repeat with the id in the response, unless `stored` is sufficient"),
    )
)]
pub(super) async fn send(
    State(api): State<Api>,
    Path(TopicPath { topic }): Path<TopicPath>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let message = headers::message(&headers)?;
    let id = message.id_to_send().clone();
    let limit = api.producer.max_payload(&topic).await;
    let limit = limit.map_err(|error| api.problem_with(error, &id))?;
    let max_payload = usize::try_from(limit).unwrap_or(usize::MAX);
    let payload = match read_limited(body, max_payload, &api.bodies).await {
        Err(BodyError::TooLarge { size, .. }) => {
            let size = size as u64;
            return Err(api.problem_with(SendError::TooLarge { size, limit }, &id));
        }
        payload => payload?,
    };
    let sent = api
        .producer
        .send_message(&topic, message.payload(payload))
        .await;
    let receipt = standing(sent.map_err(|error| api.problem_with(error, &id))?)?;
    let location = format!("/v1/topics/{topic}/messages/{}", receipt.id);
    let answer = Json(Sent::new(&receipt, Some(&topic)));
    Ok((StatusCode::ACCEPTED, [(LOCATION, location)], answer).into_response())
}

/// Returns a stored message with its state in each group.
#[utoipa::path(
    get, operation_id = "get_message", path = "/v1/topics/{topic}/messages/{id}", tag = "messages",
    params(
        MessagePath,
        ("Lisa-Key" = Option<String>, Header, min_length = 1, max_length = 256, description = KEY_OF_MESSAGE),
    ),
    responses(
        (status = 200, description = "The message", body = StoredMessage),
        (status = 404, description = "unknown_topic, or not_found: no such message, or it has ended (`ended`, and `into` if it was merged)"),
        (status = 503, description = "unavailable"),
    )
)]
pub(super) async fn get_message(
    State(api): State<Api>,
    Path(MessagePath { topic, id }): Path<MessagePath>,
    headers: HeaderMap,
) -> Result<Json<StoredMessage>, Problem> {
    let message = headers::message_ref(&headers, &id)?;
    let found = api.producer.get(&topic, message).await;
    match found.map_err(|error| api.problem(error))? {
        GetOutcome::Stored(message) => Ok(Json(*message)),
        GetOutcome::Unknown { end } => Err(Problem::no_message(&topic, &id, end)),
    }
}

/// Cancels a message that is not ready, in flight or in garbage. A repeat also succeeds, without the payload.
///
/// Only a token that also has the scope `read` gets the payload and the headers of the message.
#[utoipa::path(
    delete, operation_id = "cancel_message", path = "/v1/topics/{topic}/messages/{id}", tag = "messages",
    params(
        MessagePath,
        ("Lisa-Key" = Option<String>, Header, min_length = 1, max_length = 256, description = KEY_OF_MESSAGE),
    ),
    responses(
        (status = 200, description = "Cancelled: it will not be delivered (again), unless it is requeued in a group of `in_garbage`", body = Cancelled<'static>),
        (status = 404, description = "unknown_topic, or not_found: no such message, or it has ended (`ended`, and `into` if it was merged)"),
        (status = 409, description = "in_flight: ready or in flight; garbage: purge it instead"),
        (status = 503, description = "unavailable, or indeterminate: cancel again"),
    )
)]
pub(super) async fn cancel(
    State(api): State<Api>,
    Path(MessagePath { topic, id }): Path<MessagePath>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let message = headers::message_ref(&headers, &id)?;
    let _slot = api.search_slot(&topic, &message).await?;
    let cancelled = api.producer.cancel(&topic, message).await;
    match cancelled.map_err(|error| api.problem(error))? {
        CancelOutcome::Cancelled { record, in_garbage } => {
            let record = record.filter(|_| may_read());
            Ok(Json(Cancelled::new(&id, &topic, record, in_garbage)).into_response())
        }
        CancelOutcome::InFlight => Err(in_flight(&id)),
        CancelOutcome::Garbage => Err(in_garbage(&id, "purge it instead")),
        CancelOutcome::Unknown { end } => Err(Problem::no_message(&topic, &id, end)),
    }
}

fields! {
    /// A new due time: exactly one of the two.
    #[derive(Clone, Debug)]
    pub(super) struct NewDue, schema = "NewDue", check = one_time {
        /// The time from now, such as `30s`.
        delay: Option<Duration> = None;
        /// The time; a past time means now.
        deliver_at: Option<UnixMs> = None;
    }
}

fn one_time(options: &NewDue, from: &mut impl Reader) {
    match (options.delay, options.deliver_at) {
        (Some(_), Some(at)) => {
            let why = "cannot be combined with delay".to_owned();
            from.problem("deliver_at", at.show(), why);
        }
        (None, None) => {
            let why = "set delay or deliver_at".to_owned();
            from.problem("delay", Value::Null, why);
        }
        _ => {}
    }
}

/// Parses a [`NewDue`].
pub(super) async fn read_when(api: &Api, body: Body) -> Result<When, Problem> {
    let body = read_limited(body, MAX_PATCH, &api.bodies).await?;
    let due: NewDue = read_fields(&body)?;
    let at = due.deliver_at.map(When::At);
    Ok(at.or(due.delay.map(When::After)).unwrap_or_default())
}

/// Reschedules a message that is not ready, in flight or in garbage.
#[utoipa::path(
    patch, operation_id = "reschedule_message", path = "/v1/topics/{topic}/messages/{id}", tag = "messages",
    params(
        MessagePath,
        ("Lisa-Key" = Option<String>, Header, min_length = 1, max_length = 256, description = KEY_OF_MESSAGE),
    ),
    request_body = NewDue,
    responses(
        (status = 200, description = "Rescheduled", body = Sent<'static>),
        (status = 404, description = "unknown_topic, or not_found: no such message, or it has ended (`ended`, and `into` if it was merged)"),
        (status = 409, description = "in_flight: ready or in flight; garbage: requeue it instead"),
        (status = 422, description = "invalid"),
        (status = 503, description = "unavailable, or indeterminate: reschedule again"),
    )
)]
pub(super) async fn reschedule(
    State(api): State<Api>,
    Path(MessagePath { topic, id }): Path<MessagePath>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let message = headers::message_ref(&headers, &id)?;
    let when = read_when(&api, body).await?;
    let _slot = api.search_slot(&topic, &message).await?;
    let outcome = api.producer.reschedule(&topic, message, when).await;
    rescheduled(&topic, &id, outcome.map_err(|error| api.problem(error))?)
}

/// Makes a message due now that is not ready, in flight or in garbage.
#[utoipa::path(
    post, operation_id = "deliver_message_now", path = "/v1/topics/{topic}/messages/{id}/deliver-now", tag = "messages",
    params(
        MessagePath,
        ("Lisa-Key" = Option<String>, Header, min_length = 1, max_length = 256, description = KEY_OF_MESSAGE),
    ),
    responses(
        (status = 200, description = "Rescheduled", body = Sent<'static>),
        (status = 404, description = "unknown_topic, or not_found: no such message, or it has ended (`ended`, and `into` if it was merged)"),
        (status = 409, description = "in_flight: ready or in flight; garbage: requeue it instead"),
        (status = 422, description = "invalid"),
        (status = 503, description = "unavailable, or indeterminate: repeat the call"),
    )
)]
pub(super) async fn deliver_now(
    State(api): State<Api>,
    Path(MessagePath { topic, id }): Path<MessagePath>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let message = headers::message_ref(&headers, &id)?;
    let _slot = api.search_slot(&topic, &message).await?;
    let outcome = api.producer.deliver_now(&topic, message).await;
    rescheduled(&topic, &id, outcome.map_err(|error| api.problem(error))?)
}

fn rescheduled(topic: &str, id: &str, outcome: RescheduleOutcome) -> Result<Response, Problem> {
    match outcome {
        RescheduleOutcome::Rescheduled { due } => {
            Ok(Json(Sent::rescheduled(id, topic, due)).into_response())
        }
        RescheduleOutcome::InFlight => Err(in_flight(id)),
        RescheduleOutcome::Garbage => Err(in_garbage(id, "requeue it instead")),
        RescheduleOutcome::Unknown { end } => Err(Problem::no_message(topic, id, end)),
    }
}

fn in_flight(id: &str) -> Problem {
    let detail = format!("message {id} is ready or in flight: too late");
    Problem::new(ProblemCode::InFlight, detail).id(id)
}

fn in_garbage(id: &str, advice: &str) -> Problem {
    let detail = format!("message {id} is in garbage: {advice}");
    Problem::new(ProblemCode::Garbage, detail).id(id)
}
