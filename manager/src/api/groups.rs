//! Pauses, resumes, drains, drops and keeps groups of a topic.

use axum::Json;
use axum::extract::{Path, State as With};
use axum::http::StatusCode;
use lisa_core::broker::Retirement;
use lisa_service::http::{GroupPath, Problem};

use super::{Api, Via};
use crate::operations::audit;
use crate::operations::groups::{self, GroupPaused, GroupRetired};

/// Pauses a group: messages that become due for it collect in its backlog. Other groups are not affected.
#[utoipa::path(post, operation_id = "pause_group", path = "/v1/topics/{topic}/groups/{group}/pause", tag = "groups", params(GroupPath),
    responses((status = 200, description = "The new state; `changed` is false if the group was in it already", body = GroupPaused), (status = 404, description = "unknown_topic, or not_found: no such group")))]
pub(super) async fn pause(
    With(api): With<Api>,
    Path(path): Path<GroupPath>,
) -> Result<Json<GroupPaused>, Problem> {
    set_paused(&api, &path, true).await
}

/// Resumes a paused group.
#[utoipa::path(post, operation_id = "resume_group", path = "/v1/topics/{topic}/groups/{group}/resume", tag = "groups", params(GroupPath),
    responses((status = 200, description = "The new state; `changed` is false if the group was in it already", body = GroupPaused), (status = 404, description = "unknown_topic, or not_found: no such group")))]
pub(super) async fn resume(
    With(api): With<Api>,
    Path(path): Path<GroupPath>,
) -> Result<Json<GroupPaused>, Problem> {
    set_paused(&api, &path, false).await
}

async fn set_paused(
    api: &Api,
    path: &GroupPath,
    paused: bool,
) -> Result<Json<GroupPaused>, Problem> {
    let (topic, group) = api.find(path).await?;
    let action = if paused { "pause" } else { "resume" };
    let action = api.action(action).topic(topic.name()).group(&group);
    let answer = action
        .run(
            groups::pause(&api.broker, &topic, &group, paused),
            |answer| audit::changed(answer.changed),
        )
        .await;
    let answer = answer?;
    if answer.changed {
        tracing::info!(topic = %topic.name(), %group, paused, "paused or resumed by an operator");
    }
    Ok(Json(answer))
}

/// Drains a group: it gets no new messages. A manager removes it within a minute after its last message is finished.
///
/// If the managers' configuration does not declare the topic, the call also removes the group from the settings of the topic.
#[utoipa::path(post, operation_id = "drain_group", path = "/v1/topics/{topic}/groups/{group}/drain", tag = "groups", params(GroupPath),
    responses((status = 202, description = "The number of messages it still has", body = GroupRetired),
        (status = 404, description = "unknown_topic, or not_found: no such group")))]
pub(super) async fn drain(
    With(api): With<Api>,
    Path(path): Path<GroupPath>,
) -> Result<(StatusCode, Json<GroupRetired>), Problem> {
    retire(&api, &path, Some(Retirement::Drain)).await
}

/// Permanently drops the messages of a group and removes it.
///
/// The call drops messages for up to 2 seconds; a manager begins to drop the rest within a minute. If the managers' configuration
/// does not declare the topic, the call also removes the group from the settings of the topic.
#[utoipa::path(post, operation_id = "drop_group", path = "/v1/topics/{topic}/groups/{group}/drop", tag = "groups", params(GroupPath),
    responses((status = 202, description = "The number of messages it has", body = GroupRetired),
        (status = 404, description = "unknown_topic, or not_found: no such group")))]
pub(super) async fn drop_group(
    With(api): With<Api>,
    Path(path): Path<GroupPath>,
) -> Result<(StatusCode, Json<GroupRetired>), Problem> {
    retire(&api, &path, Some(Retirement::Drop)).await
}

/// Cancels a drain or drop: the group gets messages again, except those dropped or due in the meantime.
///
/// If the managers' configuration does not declare the topic, the call also adds the group to the settings of the topic again.
#[utoipa::path(post, operation_id = "keep_group", path = "/v1/topics/{topic}/groups/{group}/keep", tag = "groups", params(GroupPath),
    responses((status = 200, description = "The new state; `changed` is false if the group was in it already", body = GroupRetired), (status = 404, description = "unknown_topic, or not_found: no such group")))]
pub(super) async fn keep(
    With(api): With<Api>,
    Path(path): Path<GroupPath>,
) -> Result<(StatusCode, Json<GroupRetired>), Problem> {
    retire(&api, &path, None).await
}

async fn retire(
    api: &Api,
    path: &GroupPath,
    how: Option<Retirement>,
) -> Result<(StatusCode, Json<GroupRetired>), Problem> {
    let (topic, group) = api.find(path).await?;
    let word = how.map_or("keep", Retirement::as_str);
    let config = api.is_managers_config.then_some(&*api.config);
    let action = api.action(word).topic(topic.name()).group(&group);
    let answer = action
        .run(
            groups::retire(&api.broker, config, &topic, &group, how),
            GroupRetired::outcome,
        )
        .await;
    let answer = answer?;
    if answer.changed {
        let how = word;
        tracing::info!(topic = %topic.name(), %group, how, left = answer.left, "retired or kept by an operator");
    }
    // The command line drops the messages itself, and counts them.
    if how == Some(Retirement::Drop) && api.via == Via::Http {
        groups::begin_drop(&api.broker, &topic, &group).await;
    }
    let status = if how.is_some() {
        StatusCode::ACCEPTED
    } else {
        StatusCode::OK
    };
    Ok((status, Json(answer)))
}
