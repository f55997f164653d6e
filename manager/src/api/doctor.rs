//! Examines and repairs topics.

use axum::Json;
use axum::extract::{Path, State as With};
use lisa_core::broker::Checkup;
use lisa_core::topic::Topic;
use lisa_service::http::{Problem, ProblemCode, TopicPath, ends_with_client};

use super::{Api, invalid};
use crate::operations::audit;

/// Examines a topic while it is in use, and changes nothing.
///
/// A process runs one examination at a time, at a bounded pace.
#[utoipa::path(get, operation_id = "examine_topic", path = "/v1/topics/{topic}/doctor", tag = "doctor", params(TopicPath),
    responses((status = 200, description = "The faults found, and the number of messages examined", body = Checkup), (status = 404, description = "unknown_topic"), (status = 409, description = "busy: another examination is running in this process; retry later")))]
pub(super) async fn examine(
    With(api): With<Api>,
    Path(path): Path<TopicPath>,
) -> Result<Json<Checkup>, Problem> {
    checkup(&api, &path.topic, false).await
}

/// Examines a topic while it is in use, and repairs the faults found.
#[utoipa::path(post, operation_id = "repair_topic", path = "/v1/topics/{topic}/doctor/repair", tag = "doctor", params(TopicPath),
    responses((status = 200, description = "The faults found, each with its outcome", body = Checkup), (status = 404, description = "unknown_topic"), (status = 409, description = "busy: another examination is running in this process; retry later")))]
pub(super) async fn repair(
    With(api): With<Api>,
    Path(path): Path<TopicPath>,
) -> Result<Json<Checkup>, Problem> {
    checkup(&api, &path.topic, true).await
}

async fn checkup(api: &Api, topic: &str, repair: bool) -> Result<Json<Checkup>, Problem> {
    let topic = topic
        .parse::<Topic>()
        .map_err(|error| invalid("topic", &error))?;
    // An examination is a lot of work for Redis.
    ends_with_client();
    let Some(_lock) = api.examinations.try_lock() else {
        let detail = "another examination is running in this process; retry later";
        return Err(Problem::new(ProblemCode::Busy, detail));
    };
    let examine = api.broker.examine_by_name(&topic, repair);
    let examined = if repair {
        let action = api.action("repair").topic(&topic);
        action.run(examine, audit::repaired).await
    } else {
        examine.await
    };
    let mut checkup = match examined {
        Ok(checkup) => checkup,
        Err(error) => return Err(api.refused(error).await),
    };
    api.examinations.note(&api.broker, &checkup);
    checkup.hints.extend(api.broker.common_hints().await);
    Ok(Json(checkup))
}
