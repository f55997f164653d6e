//! Lists the newest failed attempts of a topic.

use crate::operations::past_time::PastTime;
use axum::Json;
use axum::extract::{Path, State as With};
use lisa_core::broker::{FAILURES_KEPT, Failure, FailureCursor, FailureFilter};
use lisa_core::fields;
use lisa_service::http::{Problem, Query, TopicPath};
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;

fields! {
    #[derive(Clone, Debug)]
    pub(super) struct FailuresQuery, query {
        /// Only failures of this group.
        group: Option<String> = None;
        /// Only failures at or after this time.
        since: Option<PastTime> = None;
        /// Failures per page.
        limit: usize = 100, in 1..=FAILURES_KEPT;
        /// `next` of the previous page, with the same other parameters.
        cursor: Option<FailureCursor> = None;
    }
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
#[utoipa::path(get, operation_id = "list_failures", path = "/v1/topics/{topic}/failures", tag = "topics", params(TopicPath, FailuresQuery),
    responses((status = 200, description = "A page of failures; `next` is null on the last page", body = FailurePage), (status = 404, description = "unknown_topic, or not_found: no such group")))]
pub(super) async fn list(
    With(api): With<Api>,
    Path(path): Path<TopicPath>,
    Query(query): Query<FailuresQuery>,
) -> Result<Json<FailurePage>, Problem> {
    let topic = api.topic(&path.topic).await?;
    let group = query.group.as_deref().map(|name| Api::group(&topic, name));
    let filter = FailureFilter {
        group: group.transpose()?,
        since: query.since.map(|since| since.0),
    };
    let found = api
        .broker
        .failures(&topic, filter, query.cursor, query.limit);
    let (failures, next) = found.await?;
    let next = next.map(|cursor| cursor.to_string());
    Ok(Json(FailurePage { failures, next }))
}
