//! Returns what needs attention.

use axum::Json;
use axum::extract::State as With;
use lisa_service::http::{Problem, Query};

use super::Api;
use super::schedules::schedules;
use crate::operations::attention::{self, Attention, AttentionQuery};

/// Returns what needs the attention of an operator, the worst first: the list on the front page of the dashboard, and what
/// `lisa-manager check` reports.
#[utoipa::path(get, operation_id = "get_attention", path = "/v1/attention", tag = "stats", params(AttentionQuery),
    responses((status = 200, description = "What needs attention", body = Attention), (status = 404, description = "unknown_topic"), (status = 422, description = "invalid")))]
pub(super) async fn show(
    With(api): With<Api>,
    Query(query): Query<AttentionQuery>,
) -> Result<Json<Attention>, Problem> {
    let within = (api.config.manager.is_dev, api.via.all_within());
    match attention::read(schedules(&api), &query, within).await {
        Ok(attention) => Ok(Json(attention)),
        Err(error) => Err(api.none_read(error).await),
    }
}
