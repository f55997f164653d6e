//! Shows the history of a topic, or of all topics together.

use std::num::NonZeroU64;

use axum::Json;
use axum::extract::{Path, State as With};
use lisa_service::config::HistoryConfig;
use lisa_service::http::Problem;
use serde::Deserialize;

use super::query::{Fields, duration};
use super::{Api, invalid};
use crate::operations::history::{self, HistoryPeriod, HistoryView};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryQuery {
    r#for: Option<String>,
    steps: Option<NonZeroU64>,
}

impl HistoryQuery {
    fn period(&self, config: HistoryConfig) -> Result<HistoryPeriod, Problem> {
        let most = self.steps.map_or(u64::MAX, NonZeroU64::get);
        let period = HistoryPeriod::new(duration("for", self.r#for.as_ref())?, config, most);
        period.map_err(|error| invalid("for", &error))
    }
}

/// Returns rates, counts and lateness of all topics together over time. It costs a few reads for any number of topics. What was
/// not recorded is null: also the rates of a minute in which a topic was removed, or became unreadable or readable again. A
/// longer step has the sum of what was recorded in it.
#[utoipa::path(get, operation_id = "get_history_of_all", path = "/v1/history", tag = "stats",
    params(("for" = Option<String>, Query, description = "The period up to now, 1 minute to 7 days with the default settings, by default `6h`"), 
        ("steps" = Option<u64>, Query, minimum = 1, description = "The largest number of steps: longer ones if there would be more. By default, there is no limit")),
    responses((status = 200, description = "The steps up to now", body = HistoryView), (status = 422, description = "invalid, also if `manager.history` is off")))]
pub(super) async fn show_all(
    With(api): With<Api>,
    Fields(query): Fields<HistoryQuery>,
) -> Result<Json<HistoryView>, Problem> {
    let period = query.period(api.config.manager.history)?;
    match history::read_of_all(&api.broker, period, api.via.all_within()).await {
        Ok(view) => Ok(Json(view)),
        Err(error) => Err(api.none_read(error).await),
    }
}

/// Returns rates, counts and lateness of a topic over time. What was not recorded is null: while no manager ran, and where
/// a counter went down because the topic was wiped. A longer step has the sum of what was recorded in it.
#[utoipa::path(get, operation_id = "get_history", path = "/v1/topics/{topic}/history", tag = "topics",
    params(("topic" = String, Path, description = "The topic"),
        ("for" = Option<String>, Query, description = "The period up to now, 1 minute to 7 days with the default settings, by default `6h`"),
        ("steps" = Option<u64>, Query, minimum = 1, description = "The largest number of steps: longer ones if there would be more. By default, there is no limit")),
    responses((status = 200, description = "The steps up to now", body = HistoryView), (status = 404, description = "unknown_topic"), (status = 422, description = "invalid, also if `manager.history` is off")))]
pub(super) async fn show(
    With(api): With<Api>,
    Path(topic): Path<String>,
    Fields(query): Fields<HistoryQuery>,
) -> Result<Json<HistoryView>, Problem> {
    let period = query.period(api.config.manager.history)?;
    let topic = api.topic(&topic).await?;
    let view = history::read(&api.broker, &topic, period).await;
    view.map(Json).map_err(Problem::from)
}
