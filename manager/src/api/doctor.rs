//! Examining a topic, and mending it.

use axum::Json;
use axum::extract::{Path, State as With};
use lisa_shared::broker::Checkup;
use lisa_shared::http::{Problem, ProblemCode};
use lisa_shared::topic::Topic;

use super::{Api, invalid, problem};

/// Examines a topic, which may be in use, and changes nothing. One at a time in a process, and at a bounded pace.
#[utoipa::path(get, path = "/v1/topics/{topic}/doctor", tag = "manager",
    params(("topic" = String, Path)),
    responses((status = 200, description = "What is wrong, and how many messages were looked at", body = Value), (status = 404, description = "No such topic"), (status = 409, description = "An examination is under way in this process: try again later")))]
pub(super) async fn examine(
    With(api): With<Api>,
    Path(topic): Path<String>,
) -> Result<Json<Checkup>, Problem> {
    checkup(&api, &topic, false).await
}

/// Examines a topic, which may be in use, and mends what is wrong.
#[utoipa::path(post, path = "/v1/topics/{topic}/doctor/repair", tag = "manager",
    params(("topic" = String, Path)),
    responses((status = 200, description = "What was wrong, and what became of it", body = Value), (status = 404, description = "No such topic"), (status = 409, description = "An examination is under way in this process: try again later")))]
pub(super) async fn repair(
    With(api): With<Api>,
    Path(topic): Path<String>,
) -> Result<Json<Checkup>, Problem> {
    checkup(&api, &topic, true).await
}

async fn checkup(api: &Api, topic: &str, repair: bool) -> Result<Json<Checkup>, Problem> {
    let topic = topic
        .parse::<Topic>()
        .map_err(|error| invalid("topic", &error))?;
    // Each is much work for Redis. Dropped with the connection of its client.
    let Ok(_turn) = api.examining.try_lock() else {
        let detail = "an examination is under way in this process: try again later";
        return Err(Problem::new(ProblemCode::Busy, detail));
    };
    let examined = api.broker.examine_by_name(&topic, repair).await;
    let mut checkup = examined.map_err(problem)?;
    checkup.hints.extend(api.broker.common_hints().await);
    Ok(Json(checkup))
}
