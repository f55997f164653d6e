//! Lists the ordering keys that have parked messages.

use axum::Json;
use axum::extract::{Path, State as With};
use lisa_core::broker::MAX_PARKED_KEYS;
use lisa_service::http::Problem;
use serde::Deserialize;

use super::Api;
use super::query::{Fields, limit, value};
use crate::operations::parked_keys::{self, KeyList};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeysQuery {
    limit: Option<usize>,
    cursor: Option<String>,
}

/// Lists the ordering keys with parked messages in a group, each with the message that blocks it.
#[utoipa::path(get, operation_id = "list_keys", path = "/v1/topics/{topic}/groups/{group}/keys", tag = "groups",
    params(("topic" = String, Path, description = "The topic"), ("group" = String, Path, description = "The group"),
        ("limit" = Option<usize>, Query, minimum = 1, maximum = 50, description = "Keys per page, 1 to 50, default 50"),
        ("cursor" = Option<String>, Query, description = "`next` of the previous page")),
    responses((status = 200, description = "A page of keys; `next` is null on the last page", body = KeyList), (status = 404, description = "unknown_topic, or not_found: no such group"), (status = 422, description = "invalid")))]
pub(super) async fn list(
    With(api): With<Api>,
    Path((topic, group)): Path<(String, String)>,
    Fields(query): Fields<KeysQuery>,
) -> Result<Json<KeyList>, Problem> {
    let limit = limit(query.limit, MAX_PARKED_KEYS, MAX_PARKED_KEYS)?;
    let cursor = value("cursor", query.cursor.as_ref())?;
    let topic = api.topic(&topic).await?;
    let group = Api::group(&topic, &group)?;
    let page = parked_keys::list(&api.broker, &topic, group, cursor, limit).await;
    page.map(Json).map_err(Problem::from)
}
