//! Lists the actions of operators.

use axum::Json;
use axum::extract::State as With;
use lisa_service::http::Problem;
use serde::Deserialize;

use super::Api;
use super::query::{Fields, limit, value};
use crate::operations::audit::{self, AuditPage};

/// Entries per page by default.
const DEFAULT_LIMIT: usize = 100;
/// The most entries per page.
const MAX_LIMIT: usize = 1000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    limit: Option<usize>,
    cursor: Option<String>,
}

/// Lists the actions of operators, newest first. About 1,000 are kept.
#[utoipa::path(get, operation_id = "list_audit", path = "/v1/audit", tag = "audit",
    params(("limit" = Option<usize>, Query, minimum = 1, maximum = 1000, description = "Entries per page, 1 to 1000, default 100"),
        ("cursor" = Option<String>, Query, description = "`next` of the previous page")),
    responses((status = 200, description = "A page of actions; `next` is null on the last page", body = AuditPage)))]
pub(super) async fn list(
    With(api): With<Api>,
    Fields(query): Fields<PageQuery>,
) -> Result<Json<AuditPage>, Problem> {
    let limit = limit(query.limit, DEFAULT_LIMIT, MAX_LIMIT)?;
    let cursor = value("cursor", query.cursor.as_ref())?;
    let page = audit::page(&api.broker, cursor, limit).await;
    page.map(Json).map_err(Problem::from)
}
