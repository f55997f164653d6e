//! Lists and runs the jobs of this manager, and lists managers and consumers.

use std::convert::Infallible;

use axum::Json;
use axum::extract::{Path, State as With};
use lisa_service::http::client::reaches;
use lisa_service::http::{Problem, ProblemCode};
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use crate::jobs::scheduler::{JobState, LastRun};
use crate::operations::workers::{self, WorkersList};

/// The running managers and consumers, and the number of shards that the answering manager serves. For a limited token, only what
/// concerns its topics.
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
    let action = api.action("run_job").details(&name);
    let Ok(run) = action.run(run, outcome).await;
    run.map(Json).ok_or_else(unknown)
}

/// Lists the running managers, consumers and gateways, and the consumers of each group. A damaged topic does not hide the others.
#[utoipa::path(get, operation_id = "list_workers", path = "/v1/workers", tag = "workers",
    responses((status = 200, description = "The running processes, and the consumers of each group; `damaged` lists the topics whose settings cannot be read, each with the error", body = Workers)))]
pub(super) async fn workers(With(api): With<Api>) -> Result<Json<Workers>, Problem> {
    let (managers, list) = tokio::try_join!(api.broker.managers(), workers::list(&api.broker))?;
    let now = api.assignments.now();
    let held = now.shards.iter().filter(|held| reaches(held.topic.name()));
    Ok(Json(Workers {
        manager: api.assignments.name().to_owned(),
        shards_held: held.count(),
        managers,
        list,
    }))
}
