//! Lists the ordering keys that have parked messages.

use axum::Json;
use axum::extract::{Path, State as With};
use lisa_core::broker::{MAX_PARKED_KEYS, ParkedKeyCursor};
use lisa_core::fields;
use lisa_service::http::{GroupPath, Problem, Query};

use super::Api;
use crate::operations::parked_keys::{self, KeyList};

fields! {
    #[derive(Clone, Debug)]
    pub(super) struct KeysQuery, query {
        /// Keys per page.
        limit: usize = MAX_PARKED_KEYS, in 1..=MAX_PARKED_KEYS;
        /// `next` of the previous page.
        cursor: Option<ParkedKeyCursor> = None;
    }
}

/// Lists the ordering keys with parked messages in a group, each with the message that blocks it.
#[utoipa::path(get, operation_id = "list_keys", path = "/v1/topics/{topic}/groups/{group}/keys", tag = "groups", params(GroupPath, KeysQuery),
    responses((status = 200, description = "A page of keys; `next` is null on the last page", body = KeyList), (status = 404, description = "unknown_topic, or not_found: no such group"), (status = 422, description = "invalid")))]
pub(super) async fn list(
    With(api): With<Api>,
    Path(path): Path<GroupPath>,
    Query(query): Query<KeysQuery>,
) -> Result<Json<KeyList>, Problem> {
    let (topic, group) = api.find(&path).await?;
    let page = parked_keys::list(&api.broker, &topic, &group, query.cursor, query.limit).await;
    page.map(Json).map_err(Problem::from)
}
