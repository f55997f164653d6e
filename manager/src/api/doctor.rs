//! Examining a topic, and mending it.

use axum::Json;
use axum::extract::{Path, State as With};
use lisa_shared::broker::{Checkup, Examination};
use lisa_shared::http::Problem;

use super::{Api, problem};

/// Examines a topic, which may be in use, and changes nothing.
#[utoipa::path(get, path = "/v1/topics/{topic}/doctor", tag = "manager",
    params(("topic" = String, Path)),
    responses((status = 200, description = "What is wrong, and how many messages were looked at", body = Value), (status = 404, description = "No such topic")))]
pub(super) async fn examine(
    With(api): With<Api>,
    Path(topic): Path<String>,
) -> Result<Json<Checkup>, Problem> {
    checkup(&api, &topic, false).await
}

/// Examines a topic, which may be in use, and mends what is wrong.
#[utoipa::path(post, path = "/v1/topics/{topic}/doctor/repair", tag = "manager",
    params(("topic" = String, Path)),
    responses((status = 200, description = "What was wrong, and what became of it", body = Value), (status = 404, description = "No such topic")))]
pub(super) async fn repair(
    With(api): With<Api>,
    Path(topic): Path<String>,
) -> Result<Json<Checkup>, Problem> {
    checkup(&api, &topic, true).await
}

async fn checkup(api: &Api, topic: &str, repair: bool) -> Result<Json<Checkup>, Problem> {
    let topic = api.topic(topic).await?;
    let how = Examination::of(&topic, repair);
    let checkup = api.broker.examine(&topic, how).await.map_err(problem)?;
    Ok(Json(checkup))
}
