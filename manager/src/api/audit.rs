//! Lists the actions of operators.

use axum::Json;
use axum::extract::State as With;
use lisa_core::broker::EntryPosition;
use lisa_core::fields;
use lisa_service::http::{Problem, Query};

use super::Api;
use crate::operations::audit::{self, AuditPage};

fields! {
    #[derive(Clone, Debug)]
    pub(super) struct AuditQuery, query {
        /// Entries per page.
        limit: usize = 100, in 1..=1000;
        /// `next` of the previous page.
        cursor: Option<EntryPosition> = None;
    }
}

/// Lists the actions of operators, newest first. About 1,000 are kept.
#[utoipa::path(get, operation_id = "list_audit", path = "/v1/audit", tag = "audit", params(AuditQuery),
    responses((status = 200, description = "A page of actions; `next` is null on the last page", body = AuditPage)))]
pub(super) async fn list(
    With(api): With<Api>,
    Query(query): Query<AuditQuery>,
) -> Result<Json<AuditPage>, Problem> {
    let page = audit::page(&api.broker, query.cursor, query.limit).await;
    page.map(Json).map_err(Problem::from)
}
