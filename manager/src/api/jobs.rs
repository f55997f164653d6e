//! Jobs of this manager, and who works: managers alive, consumers of each group.

use axum::Json;
use axum::extract::{Path, State as With};
use futures_util::{StreamExt, TryStreamExt, stream};
use lisa_shared::broker::CONCURRENT_READS;
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
    let topics = api.broker.refresh().await.map_err(problem)?;
    let all = topics.iter();
    let all = all.flat_map(|topic| topic.groups().iter().map(move |group| (topic, group)));
    let all: Vec<_> = all.collect();
    let reads = all.iter();
    let reads: Vec<_> = reads
        .map(|(topic, group)| consumers_of(&api.broker, topic, group))
        .collect();
    let consumers = stream::iter(reads).buffered(CONCURRENT_READS).try_collect();
    let consumers: Vec<_> = consumers.await.map_err(problem)?;
    let groups = all.iter().zip(consumers);
    let groups = groups.map(|((topic, group), consumers)| json!({ "topic": topic.name(), "group": group, "consumers": consumers }));
    let groups: Vec<_> = groups.collect();
    Ok(Json(json!({
        "manager": api.shares.name(),
        "managers": share.managers,
        "shards_held": share.held.len(),
        "groups": groups,
    })))
}
