//! Starts, lists and stops garbage jobs: requeues and purges by filter, in the background.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State as With};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lisa_core::fields;
use lisa_service::http::body::read_limited;
use lisa_service::http::{GroupPath, Problem, ProblemCode, read_fields};

use super::{Api, invalid};
use crate::operations::garbage::{UnknownVerb, Verb};
use crate::operations::garbage_filter::Filter;
use crate::operations::garbage_jobs::{
    self, Counted, GarbageJob, GarbageJobs, JobError, JobLimits, NewJob,
};

/// The largest request body in bytes.
const MAX_BODY: usize = 4096;

fields! {
    /// A garbage job to start. Without conditions, it takes all messages that are in garbage now.
    #[derive(Clone, Debug)]
    struct Wanted, schema = "NewGarbageJob", required = verb {
        /// The operation.
        verb: Option<Verb> = None;
        /// Counts the matching messages, and starts nothing.
        dry_run: bool = false;
        ..limits: JobLimits;
        ..filter: Filter;
    }
}

/// Starts a garbage job: requeues or purges the messages that are in garbage now and match, in batches. With `dry_run`, counts
/// them.
#[utoipa::path(post, operation_id = "start_garbage_job", path = "/v1/topics/{topic}/groups/{group}/garbage/jobs", tag = "garbage", params(GroupPath), request_body = Wanted,
    responses((status = 200, description = "The number of matching messages, with `dry_run`", body = Counted),
        (status = 202, description = "The job, which a manager runs", body = GarbageJob),
        (status = 404, description = "unknown_topic, or not_found: no such group"),
        (status = 409, description = "busy: too many garbage jobs are running")))]
pub(super) async fn start(
    With(api): With<Api>,
    Path(path): Path<GroupPath>,
    body: Body,
) -> Result<Response, Problem> {
    let (topic, group) = api.find(&path).await?;
    let body = read_limited(body, MAX_BODY, &api.bodies).await?;
    let wanted: Wanted = read_fields(&body)?;
    let verb = wanted.verb.ok_or_else(|| invalid("verb", &UnknownVerb))?;
    let new = NewJob {
        verb,
        filter: wanted.filter,
        limits: wanted.limits,
    };
    if wanted.dry_run {
        let counted = garbage_jobs::count(&api.broker, &topic, &group, &new.filter).await;
        return Ok(Json(counted.map_err(refused)?).into_response());
    }
    let action = api
        .action(verb.as_str())
        .topic(topic.name())
        .group(&group)
        .details(garbage_jobs::extent(&new));
    let start = garbage_jobs::start(&api.broker, &topic, &group, &new);
    let job = action.run(start, garbage_jobs::started).await;
    let job = job.map_err(refused)?;
    api.garbage_jobs_changed.notify_one();
    Ok((StatusCode::ACCEPTED, Json(job)).into_response())
}

/// Lists the garbage jobs, the newest first: all that run, and up to 20 that have ended.
#[utoipa::path(get, operation_id = "list_garbage_jobs", path = "/v1/garbage/jobs", tag = "garbage",
    responses((status = 200, description = "The garbage jobs with their progress", body = GarbageJobs)))]
pub(super) async fn list(With(api): With<Api>) -> Result<Json<GarbageJobs>, Problem> {
    let jobs = garbage_jobs::list(&api.broker).await?;
    Ok(Json(GarbageJobs { jobs }))
}

/// Stops a garbage job after its current batch. A job that has ended stays as it is.
#[utoipa::path(post, operation_id = "stop_garbage_job", path = "/v1/garbage/jobs/{id}/stop", tag = "garbage",
    params(("id" = String, Path, description = "The job")),
    responses((status = 200, description = "The job", body = GarbageJob), (status = 404, description = "not_found: no such job")))]
pub(super) async fn stop(
    With(api): With<Api>,
    Path(id): Path<String>,
) -> Result<Json<GarbageJob>, Problem> {
    // Unknown ids are not recorded: they could push all other entries out of the audit log.
    let jobs = garbage_jobs::list(&api.broker).await?;
    let job = jobs.into_iter().find(|job| job.id == id);
    let job = job.ok_or_else(|| refused(JobError::Unknown(id.clone())))?;
    let action = api.action("stop_garbage_job").topic(&job.topic);
    let action = action.details(&id);
    let stopped = action.run(garbage_jobs::stop(&api.broker, &id), |job| {
        job.state.as_str().to_owned()
    });
    let job = stopped.await.map_err(refused)?;
    api.garbage_jobs_changed.notify_one();
    Ok(Json(job))
}

fn refused(error: JobError) -> Problem {
    match error {
        JobError::Broker(error) => error.into(),
        JobError::TooMany => Problem::new(ProblemCode::Busy, error.to_string()),
        JobError::Unknown(_) => Problem::new(ProblemCode::NotFound, error.to_string()),
        JobError::Text(_) => Problem::new(ProblemCode::Internal, error.to_string()),
    }
}
