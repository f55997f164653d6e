//! Requeue and purge of what was given up.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State as With};
use lisa_shared::http::Problem;
use lisa_shared::http::body::read_json;
use lisa_shared::message::MessageId;
use serde::Deserialize;
use utoipa::ToSchema;

use super::{Api, invalid, problem};
use crate::garbage::{self, Selection, Swept, Verb};

/// Room for 10,000 ids of the longest kind.
const MAX_BODY: usize = 1024 * 1024;

/// Which messages: some by id, or all.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    /// Message ids.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    ids: Vec<MessageId>,
    /// All that are in garbage now.
    #[serde(default)]
    all: bool,
    /// Only count.
    #[serde(default)]
    dry_run: bool,
}

/// Delivers messages in garbage again, with new attempts.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/garbage/requeue", tag = "manager",
    params(("topic" = String, Path), ("group" = String, Path)), request_body = Wanted,
    responses((status = 200, description = "How many were found and requeued", body = Swept), (status = 404, description = "No such topic or group")))]
pub(super) async fn requeue(
    With(api): With<Api>,
    Path((topic, group)): Path<(String, String)>,
    body: Body,
) -> Result<Json<Swept>, Problem> {
    sweep(&api, &topic, &group, Verb::Requeue, body).await
}

/// Removes messages in garbage for ever.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/garbage/purge", tag = "manager",
    params(("topic" = String, Path), ("group" = String, Path)), request_body = Wanted,
    responses((status = 200, description = "How many were found and purged", body = Swept), (status = 404, description = "No such topic or group")))]
pub(super) async fn purge(
    With(api): With<Api>,
    Path((topic, group)): Path<(String, String)>,
    body: Body,
) -> Result<Json<Swept>, Problem> {
    sweep(&api, &topic, &group, Verb::Purge, body).await
}

async fn sweep(
    api: &Api,
    topic: &str,
    group: &str,
    verb: Verb,
    body: Body,
) -> Result<Json<Swept>, Problem> {
    let topic = api.topic(topic).await?;
    let group = Api::group(&topic, group)?;
    let wanted: Wanted = read_json(body, MAX_BODY, &api.bodies).await?;
    let selection = match (wanted.ids.is_empty(), wanted.all) {
        (false, false) => Selection::Ids(wanted.ids),
        (true, true) => Selection::All,
        _ => {
            return Err(invalid(
                "ids",
                &"name ids, or say \"all\": true, and not both",
            ));
        }
    };
    let swept = garbage::sweep(&api.broker, &topic, group, verb, &selection, wanted.dry_run).await;
    let swept = swept.map_err(problem)?;
    if !wanted.dry_run {
        tracing::info!(topic = %topic.name(), %group, verb = verb.as_str(), done = swept.done, "garbage handled by an operator");
    }
    Ok(Json(swept))
}
