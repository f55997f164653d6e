//! Shows the history of a topic, or of all topics together.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State as With};
use lisa_core::fields;
use lisa_service::config::HistoryConfig;
use lisa_service::http::{Problem, Query, TopicPath};

use super::{Api, invalid};
use crate::operations::history::{self, HistoryPeriod, HistoryView};

fields! {
    #[derive(Clone, Debug)]
    pub(super) struct HistoryQuery, query {
        /// The period up to now, 1 minute to 7 days with the default settings. By default, `6h`.
        r#for: Option<Duration> = None;
        /// The maximum number of steps. Steps are longer if there would be more. By default, there is no limit.
        steps: Option<u64> = None, in 1..;
    }
}

impl HistoryQuery {
    fn period(&self, config: HistoryConfig) -> Result<HistoryPeriod, Problem> {
        let most = self.steps.unwrap_or(u64::MAX);
        let period = HistoryPeriod::new(self.r#for, config, most);
        period.map_err(|error| invalid("for", &error))
    }
}

/// Returns rates, counts and lateness of all topics together over time. It costs a few reads for any number of topics. What was
/// not recorded is null: also the rates of a minute in which a topic was removed, or became unreadable or readable again. A
/// longer step has the sum of what was recorded in it.
#[utoipa::path(get, operation_id = "get_history_of_all", path = "/v1/history", tag = "stats", params(HistoryQuery),
    responses((status = 200, description = "The steps up to now", body = HistoryView), (status = 422, description = "invalid, also if `manager.history` is off")))]
pub(super) async fn show_all(
    With(api): With<Api>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<HistoryView>, Problem> {
    let period = query.period(api.config.manager.history)?;
    match history::read_of_all(&api.broker, period, api.via.all_within()).await {
        Ok(view) => Ok(Json(view)),
        Err(error) => Err(api.none_read(error).await),
    }
}

/// Returns rates, counts and lateness of a topic over time. What was not recorded is null: while no manager ran, and where
/// a counter went down because the topic was wiped. A longer step has the sum of what was recorded in it.
#[utoipa::path(get, operation_id = "get_history", path = "/v1/topics/{topic}/history", tag = "topics", params(TopicPath, HistoryQuery),
    responses((status = 200, description = "The steps up to now", body = HistoryView), (status = 404, description = "unknown_topic"), (status = 422, description = "invalid, also if `manager.history` is off")))]
pub(super) async fn show(
    With(api): With<Api>,
    Path(path): Path<TopicPath>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<HistoryView>, Problem> {
    let period = query.period(api.config.manager.history)?;
    let topic = api.topic(&path.topic).await?;
    let view = history::read(&api.broker, &topic, period).await;
    view.map(Json).map_err(Problem::from)
}
