//! Single groups of a topic: pause, resume, and how they go away.

use axum::Json;
use axum::extract::{Path, State as With};
use axum::http::StatusCode;
use lisa_shared::broker::Retirement;
use lisa_shared::http::Problem;

use super::{Api, problem};
use crate::groups::{self, GroupPaused, GroupRetired};

/// Stops a group: what becomes due for it gathers in its backlog. The other groups do not notice.
#[utoipa::path(post, operation_id = "pause_group", path = "/v1/topics/{topic}/groups/{group}/pause", tag = "manager",
    params(("topic" = String, Path), ("group" = String, Path)),
    responses((status = 200, description = "Whether that changed anything", body = GroupPaused), (status = 404, description = "No such topic or group")))]
pub(super) async fn pause(
    With(api): With<Api>,
    Path((topic, group)): Path<(String, String)>,
) -> Result<Json<GroupPaused>, Problem> {
    set_paused(&api, &topic, &group, true).await
}

/// Lets a paused group go on.
#[utoipa::path(post, operation_id = "resume_group", path = "/v1/topics/{topic}/groups/{group}/resume", tag = "manager",
    params(("topic" = String, Path), ("group" = String, Path)),
    responses((status = 200, description = "Whether that changed anything", body = GroupPaused), (status = 404, description = "No such topic or group")))]
pub(super) async fn resume(
    With(api): With<Api>,
    Path((topic, group)): Path<(String, String)>,
) -> Result<Json<GroupPaused>, Problem> {
    set_paused(&api, &topic, &group, false).await
}

async fn set_paused(
    api: &Api,
    topic: &str,
    group: &str,
    paused: bool,
) -> Result<Json<GroupPaused>, Problem> {
    let topic = api.topic(topic).await?;
    let group = Api::group(&topic, group)?;
    let answer = groups::pause(&api.broker, &topic, group, paused).await;
    let answer = answer.map_err(problem)?;
    if answer.changed {
        tracing::info!(topic = %topic.name(), %group, paused, "paused or resumed by an operator");
    }
    Ok(Json(answer))
}

/// Lets a group get nothing new. Its consumers finish what it has, then it is removed: within a minute of its last message.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/drain", tag = "manager",
    params(("topic" = String, Path), ("group" = String, Path)),
    responses((status = 202, description = "What it still has", body = GroupRetired),
        (status = 404, description = "No such topic or group")))]
pub(super) async fn drain(
    With(api): With<Api>,
    Path((topic, group)): Path<(String, String)>,
) -> Result<(StatusCode, Json<GroupRetired>), Problem> {
    retire(&api, &topic, &group, Some(Retirement::Drain)).await
}

/// Drops what a group has, for ever, and removes it: begins within a minute.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/drop", tag = "manager",
    params(("topic" = String, Path), ("group" = String, Path)),
    responses((status = 202, description = "What it has", body = GroupRetired),
        (status = 404, description = "No such topic or group")))]
pub(super) async fn drop_group(
    With(api): With<Api>,
    Path((topic, group)): Path<(String, String)>,
) -> Result<(StatusCode, Json<GroupRetired>), Problem> {
    retire(&api, &topic, &group, Some(Retirement::Drop)).await
}

/// Takes a drain or drop back: the group gets messages again. What was dropped, or became due meanwhile, it will not get.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/keep", tag = "manager",
    params(("topic" = String, Path), ("group" = String, Path)),
    responses((status = 200, description = "Whether that changed anything", body = GroupRetired), (status = 404, description = "No such topic or group")))]
pub(super) async fn keep(
    With(api): With<Api>,
    Path((topic, group)): Path<(String, String)>,
) -> Result<(StatusCode, Json<GroupRetired>), Problem> {
    retire(&api, &topic, &group, None).await
}

async fn retire(
    api: &Api,
    topic: &str,
    group: &str,
    how: Option<Retirement>,
) -> Result<(StatusCode, Json<GroupRetired>), Problem> {
    let topic = api.topic(topic).await?;
    let group = Api::group(&topic, group)?;
    let answer = groups::retire(&api.broker, &topic, group, how).await;
    let answer = answer.map_err(problem)?;
    if answer.changed {
        let how = how.map_or("keep", Retirement::as_str);
        tracing::info!(topic = %topic.name(), %group, how, left = answer.left, "retired or kept by an operator");
    }
    let status = if how.is_some() {
        StatusCode::ACCEPTED
    } else {
        StatusCode::OK
    };
    Ok((status, Json(answer)))
}
