//! Returns what needs attention.

use axum::Json;
use axum::extract::State as With;
use lisa_core::topic::Topic;
use lisa_service::http::Problem;
use serde::Deserialize;

use super::Api;
use super::query::{Fields, duration, value};
use crate::operations::attention::{self, Attention, Limits};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AttentionQuery {
    topic: Option<String>,
    late: Option<String>,
    oldest: Option<String>,
    garbage: Option<String>,
}

/// Returns what needs the attention of an operator, the worst first: the list on the front page of the dashboard, and what
/// `lisa-manager check` reports.
#[utoipa::path(get, operation_id = "get_attention", path = "/v1/attention", tag = "stats",
    params(("topic" = Option<String>, Query, description = "Only this topic"),
        ("late" = Option<String>, Query, description = "The age of the oldest due message of a group above which it is a warning, by default `5s`"),
        ("oldest" = Option<String>, Query, description = "The age of the oldest due message of a group above which it is critical, by default `5m`"),
        ("garbage" = Option<u64>, Query, description = "The number of messages in the garbage of a group above which it is a warning, by default 0")),
    responses((status = 200, description = "What needs attention", body = Attention), (status = 404, description = "unknown_topic"), (status = 422, description = "invalid")))]
pub(super) async fn show(
    With(api): With<Api>,
    Fields(query): Fields<AttentionQuery>,
) -> Result<Json<Attention>, Problem> {
    let default = Limits::default();
    let limits = Limits {
        late: duration("late", query.late.as_ref())?.unwrap_or(default.late),
        oldest: duration("oldest", query.oldest.as_ref())?.unwrap_or(default.oldest),
        garbage: value("garbage", query.garbage.as_ref())?.unwrap_or(default.garbage),
    };
    let topic = value::<Topic>("topic", query.topic.as_ref())?;
    let within = api.via.all_within();
    match attention::read(&api.broker, topic.as_ref(), &limits, within).await {
        Ok(attention) => Ok(Json(attention)),
        Err(error) => Err(api.none_read(error).await),
    }
}
