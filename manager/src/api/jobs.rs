//! Jobs of this manager, and who works: managers alive, consumers of each group.

use axum::Json;
use axum::extract::{Path, State as With};
use lisa_shared::http::{Problem, ProblemCode};
use serde::Serialize;
use serde_json::{Value, json};

use super::{ALL_WITHIN, Api, none_known};
use crate::schedule::LastRun;
use crate::view::{WorkersList, workers_of_all};

/// The managers and consumers that one manager sees.
#[derive(Debug, Serialize)]
pub(super) struct Workers {
    manager: String,
    managers: Vec<String>,
    shards_held: usize,
    #[serde(flatten)]
    list: WorkersList,
}

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

/// Lists the managers alive, and the consumers that each group has seen. A damaged topic does not hide the others.
#[utoipa::path(get, path = "/v1/workers", tag = "manager",
    responses((status = 200, description = "Managers and consumers; `damaged` names topics of which not all can be read, with the error; `unanswered` those that Redis did not answer for in time", body = Value)))]
pub(super) async fn workers(With(api): With<Api>) -> Result<Json<Workers>, Problem> {
    let share = api.shares.now();
    let list = workers_of_all(&api.broker, ALL_WITHIN).await;
    Ok(Json(Workers {
        manager: api.shares.name().to_owned(),
        managers: share.managers.clone(),
        shards_held: share.held.len(),
        list: list.map_err(none_known)?,
    }))
}
