//! Jobs of this manager, and who works: managers alive, consumers of each group.

use axum::Json;
use axum::extract::{Path, State as With};
use lisa_shared::http::{Problem, ProblemCode};
use serde_json::{Value, json};

use super::{Api, problem};
use crate::schedule::LastRun;
use crate::view::consumers_of;

/// Lists the periodic jobs with their last runs.
#[utoipa::path(get, operation_id = "list_jobs", path = "/v1/jobs", tag = "manager",
    responses((status = 200, description = "Jobs of this manager", body = Value)))]
pub(super) async fn list(With(api): With<Api>) -> Json<Value> {
    Json(json!({ "manager": api.shares.name(), "jobs": api.schedule.jobs() }))
}

/// Runs a job now and waits for its end. A job that fails is in the answer, not an error.
#[utoipa::path(post, path = "/v1/jobs/{name}/run", tag = "manager", params(("name" = String, Path)),
    responses((status = 200, description = "The run", body = Value), (status = 404, description = "No such job")))]
pub(super) async fn run(
    With(api): With<Api>,
    Path(name): Path<String>,
) -> Result<Json<LastRun>, Problem> {
    let run = api.schedule.run_now(&name).await;
    let unknown = || Problem::new(ProblemCode::NotFound, format!("there is no job {name:?}"));
    run.map(Json).ok_or_else(unknown)
}

/// Lists the managers alive, and the consumers that each group has seen.
#[utoipa::path(get, path = "/v1/workers", tag = "manager",
    responses((status = 200, description = "Managers and consumers", body = Value)))]
pub(super) async fn workers(With(api): With<Api>) -> Result<Json<Value>, Problem> {
    let share = api.shares.now();
    let mut groups = Vec::new();
    for topic in api.broker.refresh().await.map_err(problem)? {
        for group in topic.groups() {
            let consumers = consumers_of(&api.broker, &topic, group).await;
            let consumers = consumers.map_err(problem)?;
            groups.push(json!({ "topic": topic.name(), "group": group, "consumers": consumers }));
        }
    }
    Ok(Json(json!({
        "manager": api.shares.name(),
        "managers": share.managers,
        "shards_held": share.held.len(),
        "groups": groups,
    })))
}
