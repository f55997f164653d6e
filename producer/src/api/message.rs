//! The routes of single messages: send, get, cancel, reschedule, deliver now.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use lisa_shared::http::body::{read_json, read_limited};
use lisa_shared::http::{Problem, ProblemCode};
use lisa_shared::state::RescheduleOutcome;
use lisa_shared::time::When;
use serde::Deserialize;
use utoipa::ToSchema;

use super::answer::{Cancelled, Seen, Sent, problem, problem_with, standing};
use super::{Api, headers};
use crate::fields;
use crate::stored::{CancelOutcome, GetOutcome};

/// What the key is for where a message is named.
const KEY_OF_VERB: &str = "Its ordering key, else its merge key: finds a message with a caller's id at once, without asking every shard";
/// Bytes of a PATCH body.
const MAX_PATCH: usize = 4096;

/// Sends one message: the body is its payload, byte for byte; an empty body is a message.
///
/// Content-Type, traceparent and tracestate are kept as headers of the message, and so is `X` of each `Lisa-Header-X`.
#[utoipa::path(
    post, path = "/v1/topics/{topic}/messages", tag = "messages",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    params(
        ("topic" = String, Path, description = "The topic"),
        ("Lisa-Delay" = Option<String>, Header, description = "Due after this time: 250ms, 30s, 2h, 14d"),
        ("Lisa-Deliver-At" = Option<String>, Header, description = "Due at this instant, RFC 3339; a past one means now"),
        ("Lisa-Id" = Option<String>, Header, description = "The caller's id, [A-Za-z0-9_:-]{1,64}: a repeat is a duplicate, not an error"),
        ("Idempotency-Key" = Option<String>, Header, description = "Another name for Lisa-Id"),
        ("Lisa-Max-Attempts" = Option<u32>, Header, minimum = 1, maximum = 1000, description = "Deliveries before the message goes to garbage, 1 to 1000"),
        ("Lisa-Key" = Option<String>, Header, min_length = 1, max_length = 256, description = "Messages of one key are delivered one at a time in each group, 1 to 256 bytes of UTF-8"),
        ("Lisa-Merge-Key" = Option<String>, Header, min_length = 1, max_length = 256, description = "Merged with a message of the same keys that was not delivered yet, as the topic's merge says, 1 to 256 bytes of UTF-8"),
        ("Lisa-Priority" = Option<i32>, Header, description = "Of the messages that are due, the higher goes first"),
        ("Lisa-Ttl" = Option<String>, Header, description = "Worthless this long after the due time, 1ms to 3653d"),
        ("Lisa-Expires-At" = Option<String>, Header, description = "Worthless from this instant on, RFC 3339"),
        ("Lisa-Retry" = Option<String>, Header, description = "Its own retry policy as JSON, with the keys of the configuration"),
        ("Lisa-Replace" = Option<String>, Header, description = "The id of a message that is cancelled in the same step; if it cannot be, nothing is stored"),
        ("Lisa-Even-If-Cancelled" = Option<bool>, Header, description = "Sends it although a message of its id was cancelled"),
        ("Lisa-Durability" = Option<String>, Header, description = "What the answer waits for: `memory`, `aof` or `replicas:N`, N from 1 to 16; the topic's own if it is not given"),
    ),
    responses(
        (status = 202, description = "Accepted, or known already", body = Sent<'static>),
        (status = 404, description = "unknown_topic, or unknown_message: there is none to replace, or it has ended"),
        (status = 409, description = "in_flight, garbage: the message to be replaced is ready or being handled, or was given up; cancelled: a message of this id was, within the dedup_window"),
        (status = 413, description = "too_large: the payload exceeds the topic's max_payload"),
        (status = 422, description = "invalid: all that is wrong, in errors"),
        (status = 429, description = "full: the topic holds as much as it may, or Redis is at its memory limit"),
        (status = 503, description = "unavailable: nothing was done; indeterminate: repeat with the id that is named, unless `stored` is enough"),
    )
)]
pub(super) async fn send(
    State(api): State<Api>,
    Path(topic): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let outgoing = headers::outgoing(&headers)?;
    let id = outgoing.message_id().clone();
    let limit = api.producer.max_payload(&topic).await;
    let limit = limit.map_err(|error| problem_with(error, &id))?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let payload = read_limited(body, limit, &api.bodies).await?;
    let sent = api
        .producer
        .send_message(&topic, outgoing.payload(payload))
        .await;
    let receipt = standing(sent.map_err(|error| problem_with(error, &id))?)?;
    let location = format!("/v1/topics/{topic}/messages/{}", receipt.id);
    let answer = Json(Sent::new(&receipt, Some(&topic)));
    Ok((StatusCode::ACCEPTED, [(LOCATION, location)], answer).into_response())
}

/// Shows where a message is, and what it holds.
#[utoipa::path(
    get, path = "/v1/topics/{topic}/messages/{id}", tag = "messages",
    params(
        ("topic" = String, Path, description = "The topic"), ("id" = String, Path, description = "The message"),
        ("Lisa-Key" = Option<String>, Header, min_length = 1, max_length = 256, description = KEY_OF_VERB),
    ),
    responses(
        (status = 200, description = "The message", body = Seen<'static>),
        (status = 404, description = "unknown_topic, or not_found: there is none, or it has ended (`ended`, and `into` if it was merged)"),
        (status = 503, description = "unavailable"),
    )
)]
pub(super) async fn get_message(
    State(api): State<Api>,
    Path((topic, id)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let message = headers::message(&headers, &id)?;
    match api.producer.get(&topic, message).await.map_err(problem)? {
        GetOutcome::Stored(message) => Ok(Json(Seen::new(&message, &topic)).into_response()),
        GetOutcome::Unknown { end } => Err(Problem::no_message(&id, end)),
    }
}

/// Cancels a message that is not on the stream and not in garbage. A repeat is answered alike, without the payload.
#[utoipa::path(
    delete, path = "/v1/topics/{topic}/messages/{id}", tag = "messages",
    params(
        ("topic" = String, Path, description = "The topic"), ("id" = String, Path, description = "The message"),
        ("Lisa-Key" = Option<String>, Header, min_length = 1, max_length = 256, description = KEY_OF_VERB),
    ),
    responses(
        (status = 200, description = "Cancelled: it will not be delivered (again), unless it is requeued in a group of `in_garbage`", body = Cancelled<'static>),
        (status = 404, description = "unknown_topic, or not_found: there is none, or it has ended (`ended`, and `into` if it was merged)"),
        (status = 409, description = "in_flight: ready or being handled; garbage: purge it instead"),
        (status = 503, description = "unavailable, or indeterminate: cancel again"),
    )
)]
pub(super) async fn cancel(
    State(api): State<Api>,
    Path((topic, id)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let message = headers::message(&headers, &id)?;
    let cancelled = api.producer.cancel(&topic, message).await;
    match cancelled.map_err(problem)? {
        CancelOutcome::Cancelled { record, in_garbage } => {
            Ok(Json(Cancelled::new(&id, &topic, record, in_garbage)).into_response())
        }
        CancelOutcome::InFlight => Err(in_flight(&id)),
        CancelOutcome::Garbage => Err(in_garbage(&id, "purge it instead")),
        CancelOutcome::Unknown { end } => Err(Problem::no_message(&id, end)),
    }
}

/// Another due time: exactly one of the two.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewDue {
    /// From now: `30s`.
    delay: Option<String>,
    /// An instant, RFC 3339; a past one means now.
    deliver_at: Option<String>,
}

/// Reads a [`NewDue`].
pub(super) async fn read_when(api: &Api, body: Body) -> Result<When, Problem> {
    let due: NewDue = read_json(body, MAX_PATCH, &api.bodies).await?;
    fields::when(
        ("delay", due.delay.as_deref()),
        ("deliver_at", due.deliver_at.as_deref()),
    )
    .and_then(|when| when.ok_or(("delay", "give delay or deliver_at".to_owned())))
    .map_err(|(field, why)| {
        Problem::new(ProblemCode::Invalid, format!("{field}: {why}")).error(field, why)
    })
}

/// Gives a message that is not on the stream and not in garbage another due time.
#[utoipa::path(
    patch, path = "/v1/topics/{topic}/messages/{id}", tag = "messages",
    params(
        ("topic" = String, Path, description = "The topic"), ("id" = String, Path, description = "The message"),
        ("Lisa-Key" = Option<String>, Header, min_length = 1, max_length = 256, description = KEY_OF_VERB),
    ),
    request_body = NewDue,
    responses(
        (status = 200, description = "Rescheduled", body = Sent<'static>),
        (status = 404, description = "unknown_topic, or not_found: there is none, or it has ended (`ended`, and `into` if it was merged)"),
        (status = 409, description = "in_flight: ready or being handled; garbage: requeue it instead"),
        (status = 422, description = "invalid"),
        (status = 503, description = "unavailable, or indeterminate: reschedule again"),
    )
)]
pub(super) async fn reschedule(
    State(api): State<Api>,
    Path((topic, id)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let message = headers::message(&headers, &id)?;
    let when = read_when(&api, body).await?;
    let outcome = api.producer.reschedule(&topic, message, when).await;
    rescheduled(&topic, &id, outcome.map_err(problem)?)
}

/// Makes a message that is not on the stream and not in garbage due now: a PATCH without a delay.
#[utoipa::path(
    post, path = "/v1/topics/{topic}/messages/{id}/deliver-now", tag = "messages",
    params(
        ("topic" = String, Path, description = "The topic"), ("id" = String, Path, description = "The message"),
        ("Lisa-Key" = Option<String>, Header, min_length = 1, max_length = 256, description = KEY_OF_VERB),
    ),
    responses(
        (status = 200, description = "Rescheduled", body = Sent<'static>),
        (status = 404, description = "unknown_topic, or not_found: there is none, or it has ended (`ended`, and `into` if it was merged)"),
        (status = 409, description = "in_flight: ready or being handled; garbage: requeue it instead"),
        (status = 422, description = "invalid"),
        (status = 503, description = "unavailable, or indeterminate: ask again"),
    )
)]
pub(super) async fn deliver_now(
    State(api): State<Api>,
    Path((topic, id)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let message = headers::message(&headers, &id)?;
    let outcome = api.producer.deliver_now(&topic, message).await;
    rescheduled(&topic, &id, outcome.map_err(problem)?)
}

fn rescheduled(topic: &str, id: &str, outcome: RescheduleOutcome) -> Result<Response, Problem> {
    match outcome {
        RescheduleOutcome::Rescheduled { due } => {
            Ok(Json(Sent::rescheduled(id, topic, due)).into_response())
        }
        RescheduleOutcome::InFlight => Err(in_flight(id)),
        RescheduleOutcome::Garbage => Err(in_garbage(id, "requeue it instead")),
        RescheduleOutcome::Unknown { end } => Err(Problem::no_message(id, end)),
    }
}

fn in_flight(id: &str) -> Problem {
    let detail = format!("message {id} is ready or being handled: too late");
    Problem::new(ProblemCode::InFlight, detail).id(id)
}

fn in_garbage(id: &str, advice: &str) -> Problem {
    let detail = format!("message {id} was given up: {advice}");
    Problem::new(ProblemCode::Garbage, detail).id(id)
}
