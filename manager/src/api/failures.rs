//! Lists the newest failed attempts of a topic.

use axum::Json;
use axum::extract::{Path, State as With};
use lisa_core::broker::{FAILURES_KEPT, Failure, FailureFilter};
use lisa_service::http::Problem;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Api;
use super::query::{Fields, limit, value};

/// Failures per page by default.
const DEFAULT_LIMIT: usize = 100;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FailuresQuery {
    group: Option<String>,
    since: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// A page of failed attempts, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FailurePage {
    failures: Vec<Failure>,
    /// The cursor of the next page; null at the end.
    next: Option<String>,
}

/// Lists the newest failed attempts of a topic, newest first. About 1,000 are kept on each shard, for all groups together. A
/// message that expires without a failed attempt is not listed.
#[utoipa::path(get, operation_id = "list_failures", path = "/v1/topics/{topic}/failures", tag = "topics",
    params(("topic" = String, Path, description = "The topic"),
        ("group" = Option<String>, Query, description = "Only failures of this group"),
        ("since" = Option<String>, Query, description = "Only failures at or after this time (RFC 3339)"),
        ("limit" = Option<usize>, Query, minimum = 1, maximum = 1000, description = "Failures per page, 1 to 1000, default 100"),
        ("cursor" = Option<String>, Query, description = "`next` of the previous page, with the same other parameters")),
    responses((status = 200, description = "A page of failures; `next` is null on the last page", body = FailurePage), (status = 404, description = "unknown_topic, or not_found: no such group")))]
pub(super) async fn list(
    With(api): With<Api>,
    Path(topic): Path<String>,
    Fields(query): Fields<FailuresQuery>,
) -> Result<Json<FailurePage>, Problem> {
    let limit = limit(query.limit, DEFAULT_LIMIT, FAILURES_KEPT)?;
    let since = value("since", query.since.as_ref())?;
    let cursor = value("cursor", query.cursor.as_ref())?;
    let topic = api.topic(&topic).await?;
    let group = query.group.as_deref().map(|name| Api::group(&topic, name));
    let filter = FailureFilter {
        group: group.transpose()?,
        since,
    };
    let found = api.broker.failures(&topic, filter, cursor, limit).await;
    let (failures, next) = found?;
    let next = next.map(|cursor| cursor.to_string());
    Ok(Json(FailurePage { failures, next }))
}
