//! The routes for all messages of an ordering key: cancel, reschedule.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use lisa_core::topic::Group;
use lisa_service::http::{Problem, TopicPath};
use serde::Serialize;
use utoipa::ToSchema;

use super::message::{NewDue, read_when};
use super::{Api, headers};
use crate::by_key::KeyOutcome;

/// The outcome for the messages of an ordering key.
#[derive(Serialize, ToSchema)]
#[schema(as = MessagesOfKey)]
pub(super) struct OfKey {
    topic: String,
    key: String,
    /// The number cancelled; only in the response to a cancel.
    #[serde(skip_serializing_if = "Option::is_none")]
    cancelled: Option<u64>,
    /// The number rescheduled; only in the response to a reschedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    rescheduled: Option<u64>,
    /// The number that are ready or in flight: too late.
    in_flight: u64,
    /// The number in garbage (dead letters).
    garbage: u64,
    /// The groups that had moved some of the cancelled messages to garbage: these copies stay there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    in_garbage: Vec<Group>,
}

/// Cancels all messages of an ordering key that are not ready, in flight or in garbage. Requires the topic's `key_index`.
#[utoipa::path(
    delete, operation_id = "cancel_messages_of_key", path = "/v1/topics/{topic}/messages", tag = "messages",
    params(
        TopicPath,
        ("Lisa-Key" = String, Header, min_length = 1, max_length = 256, description = "The ordering key"),
    ),
    responses(
        (status = 200, description = "The number cancelled, and the numbers that could not be", body = OfKey),
        (status = 404, description = "unknown_topic"),
        (status = 422, description = "invalid: no key, or a topic without key_index"),
        (status = 503, description = "unavailable, or indeterminate: some may be cancelled; cancel again"),
    )
)]
pub(super) async fn cancel(
    State(api): State<Api>,
    Path(TopicPath { topic }): Path<TopicPath>,
    headers: HeaderMap,
) -> Result<Json<OfKey>, Problem> {
    let key = headers::key(&headers)?;
    let done = api.producer.cancel_key(&topic, &key).await;
    let done = done.map_err(|error| api.problem(error))?;
    let changed = done.changed;
    let answer = OfKey::new(topic, key, done);
    Ok(Json(OfKey {
        cancelled: Some(changed),
        ..answer
    }))
}

/// Reschedules all messages of an ordering key that are not ready, in flight or in garbage. Requires the topic's
/// `key_index`.
#[utoipa::path(
    patch, operation_id = "reschedule_messages_of_key", path = "/v1/topics/{topic}/messages", tag = "messages",
    params(
        TopicPath,
        ("Lisa-Key" = String, Header, min_length = 1, max_length = 256, description = "The ordering key"),
    ),
    request_body = NewDue,
    responses(
        (status = 200, description = "The number rescheduled, and the numbers that could not be", body = OfKey),
        (status = 404, description = "unknown_topic"),
        (status = 422, description = "invalid: no key, or a topic without key_index"),
        (status = 503, description = "unavailable, or indeterminate: some may be rescheduled; reschedule again"),
    )
)]
pub(super) async fn reschedule(
    State(api): State<Api>,
    Path(TopicPath { topic }): Path<TopicPath>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<OfKey>, Problem> {
    let key = headers::key(&headers)?;
    let when = read_when(&api, body).await?;
    let done = api.producer.reschedule_key(&topic, &key, when).await;
    let done = done.map_err(|error| api.problem(error))?;
    let changed = done.changed;
    let answer = OfKey::new(topic, key, done);
    Ok(Json(OfKey {
        rescheduled: Some(changed),
        ..answer
    }))
}

impl OfKey {
    fn new(topic: String, key: String, done: KeyOutcome) -> Self {
        Self {
            topic,
            key,
            cancelled: None,
            rescheduled: None,
            in_flight: done.in_flight,
            garbage: done.garbage,
            in_garbage: done.in_garbage.into_iter().collect(),
        }
    }
}
