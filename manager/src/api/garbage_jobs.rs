//! Starts, lists and stops garbage jobs: requeues and purges by filter, in the background.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State as With};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lisa_service::http::body::read_json;
use lisa_service::http::{Problem, ProblemCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Api, invalid, problem};
use crate::operations::audit::Action;
use crate::operations::garbage::Verb;
use crate::operations::garbage_filter::Filter;
use crate::operations::garbage_jobs::{self, Counted, GarbageJob, JobError, MAX_RATE, NewJob};

/// The largest request body in bytes.
const MAX_BODY: usize = 4096;

/// A garbage job to start. Without conditions, it takes all messages that are in garbage now.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewGarbageJob)]
pub(super) struct Wanted {
    /// `requeue` or `purge`.
    verb: String,
    /// Text in the last error, 1 to 200 characters. `#`, `*` and `…` stand for any text.
    error: Option<String>,
    /// The reason: rejected, exhausted or expired.
    reason: Option<String>,
    /// The earliest time at which they moved to garbage, in RFC 3339.
    from: Option<String>,
    /// The end of the times at which they moved to garbage, in RFC 3339: they moved before it.
    to: Option<String>,
    /// The maximum number of messages to take, from 1.
    #[schema(minimum = 1)]
    max: Option<u64>,
    /// The maximum number of messages to take per second, 1 to 10,000.
    #[schema(minimum = 1, maximum = 10000)]
    rate: Option<u32>,
    /// Counts the matching messages, and starts nothing.
    #[serde(default)]
    dry_run: bool,
}

/// The garbage jobs, the newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct GarbageJobs {
    jobs: Vec<GarbageJob>,
}

/// Starts a garbage job: requeues or purges the messages that are in garbage now and match, in batches. With `dry_run`, counts
/// them.
#[utoipa::path(post, operation_id = "start_garbage_job", path = "/v1/topics/{topic}/groups/{group}/garbage/jobs", tag = "garbage",
    params(("topic" = String, Path, description = "The topic"), ("group" = String, Path, description = "The group")), request_body = Wanted,
    responses((status = 200, description = "The number of matching messages, with `dry_run`", body = Counted),
        (status = 202, description = "The job, which a manager runs", body = GarbageJob),
        (status = 404, description = "unknown_topic, or not_found: no such group"),
        (status = 409, description = "busy: 10 garbage jobs are running")))]
pub(super) async fn start(
    With(api): With<Api>,
    Path((topic, group)): Path<(String, String)>,
    body: Body,
) -> Result<Response, Problem> {
    let topic = api.topic(&topic).await?;
    let group = Api::group(&topic, &group)?;
    let wanted: Wanted = read_json(body, MAX_BODY, &api.bodies).await?;
    let verb = match wanted.verb.as_str() {
        "requeue" => Verb::Requeue,
        "purge" => Verb::Purge,
        _ => return Err(invalid("verb", &"allowed are requeue and purge")),
    };
    if wanted.max == Some(0) {
        return Err(invalid("max", &"must be at least 1"));
    }
    if wanted
        .rate
        .is_some_and(|rate| !(1..=MAX_RATE).contains(&rate))
    {
        return Err(invalid("rate", &format!("allowed is 1 to {MAX_RATE}")));
    }
    let new = NewJob {
        verb,
        filter: Filter {
            error: wanted.error,
            reason: wanted.reason,
            from: wanted.from,
            to: wanted.to,
        },
        max: wanted.max,
        rate: wanted.rate,
    };
    if let Err(error) = new.filter.check() {
        return Err(invalid(error.field, &error.error));
    }
    if wanted.dry_run {
        let counted = garbage_jobs::count(&api.broker, &topic, group, &new.filter).await;
        return Ok(Json(counted.map_err(refused)?).into_response());
    }
    let action = Action::over_http(&api.broker, verb.as_str())
        .topic(topic.name())
        .group(group)
        .details(garbage_jobs::extent(&new));
    let start = garbage_jobs::start(&api.broker, &topic, group, &new);
    let job = action.run(start, garbage_jobs::started).await;
    let job = job.map_err(refused)?;
    api.garbage_jobs_changed.notify_one();
    Ok((StatusCode::ACCEPTED, Json(job)).into_response())
}

/// Lists the garbage jobs, the newest first: all that run, and up to 20 that have ended.
#[utoipa::path(get, operation_id = "list_garbage_jobs", path = "/v1/garbage/jobs", tag = "garbage",
    responses((status = 200, description = "The garbage jobs with their progress", body = GarbageJobs)))]
pub(super) async fn list(With(api): With<Api>) -> Result<Json<GarbageJobs>, Problem> {
    let jobs = garbage_jobs::list(&api.broker).await.map_err(problem)?;
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
    let action = Action::over_http(&api.broker, "stop_garbage_job").details(&id);
    let stopped = action.run(garbage_jobs::stop(&api.broker, &id), |job| {
        job.state.as_str().to_owned()
    });
    let job = stopped.await.map_err(refused)?;
    api.garbage_jobs_changed.notify_one();
    Ok(Json(job))
}

fn refused(error: JobError) -> Problem {
    match error {
        JobError::Broker(error) => problem(error),
        JobError::Filter(error) => invalid(error.field, &error.error),
        JobError::TooMany => Problem::new(ProblemCode::Busy, error.to_string()),
        JobError::Unknown(_) => Problem::new(ProblemCode::NotFound, error.to_string()),
        JobError::Text(_) => Problem::new(ProblemCode::Internal, error.to_string()),
    }
}
