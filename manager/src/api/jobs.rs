//! Lists and runs the jobs of this manager, and lists managers and consumers.

use std::convert::Infallible;

use axum::Json;
use axum::extract::{Path, State as With};
use lisa_service::http::{Problem, ProblemCode};
use serde::Serialize;
use utoipa::ToSchema;

use super::{ALL_WITHIN, Api, none_known};
use crate::jobs::scheduler::{JobState, LastRun};
use crate::operations::audit::Action;
use crate::operations::topics::{WorkersList, workers_of_all};

/// The managers and consumers that this manager sees.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Workers {
    manager: String,
    managers: Vec<String>,
    shards_held: usize,
    #[serde(flatten)]
    list: WorkersList,
}

/// The periodic jobs of a manager.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct JobList {
    manager: String,
    jobs: Vec<JobState>,
}

/// Lists the periodic jobs of this manager with their last runs.
#[utoipa::path(get, operation_id = "list_jobs", path = "/v1/jobs", tag = "jobs",
    responses((status = 200, description = "The jobs of this manager", body = JobList)))]
pub(super) async fn list(With(api): With<Api>) -> Json<JobList> {
    Json(JobList {
        manager: api.assignments.name().to_owned(),
        jobs: api.schedule.jobs(),
    })
}

/// Runs a job now and waits for it to finish. The response reports a failed run; it is not an HTTP error.
#[utoipa::path(post, operation_id = "run_job", path = "/v1/jobs/{name}/run", tag = "jobs",
    params(("name" = String, Path, description = "The job")),
    responses((status = 200, description = "The run", body = LastRun), (status = 404, description = "not_found: no such job")))]
pub(super) async fn run(
    With(api): With<Api>,
    Path(name): Path<String>,
) -> Result<Json<LastRun>, Problem> {
    let unknown = || Problem::new(ProblemCode::NotFound, format!("unknown job {name:?}"));
    if !api.schedule.jobs().iter().any(|job| job.name == name) {
        return Err(unknown());
    }
    let run = async { Ok::<_, Infallible>(api.schedule.run_now(&name).await) };
    let outcome = |run: &Option<LastRun>| match run.as_ref().and_then(|run| run.error.as_ref()) {
        None => "done".to_owned(),
        Some(error) => format!("failed: {error}"),
    };
    let action = Action::over_http(&api.broker, "run_job").details(&name);
    let Ok(run) = action.run(run, outcome).await;
    run.map(Json).ok_or_else(unknown)
}

/// Lists the running managers, and the consumers that each group has seen. A damaged topic does not hide the others.
#[utoipa::path(get, operation_id = "list_workers", path = "/v1/workers", tag = "workers",
    responses((status = 200, description = "Managers and consumers; `damaged` lists the topics that cannot be read completely, each with the error; `unanswered` lists those for which Redis did not answer in time", body = Workers)))]
pub(super) async fn workers(With(api): With<Api>) -> Result<Json<Workers>, Problem> {
    let assignment = api.assignments.now();
    let list = workers_of_all(&api.broker, ALL_WITHIN).await;
    Ok(Json(Workers {
        manager: api.assignments.name().to_owned(),
        managers: assignment.managers.clone(),
        shards_held: assignment.shards.len(),
        list: list.map_err(none_known)?,
    }))
}
