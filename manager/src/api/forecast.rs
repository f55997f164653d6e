//! Forecasts what becomes due.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State as With};
use lisa_core::fields;
use lisa_service::http::{Problem, Query, TopicPath};

use super::schedules::schedules;
use super::{Api, invalid};
use crate::operations::forecast::{self, ForecastView, InvalidPeriod, Period};

fields! {
    #[derive(Clone, Debug)]
    pub(super) struct PeriodQuery, query {
        /// The period from now on. By default, `24h`.
        r#for: Option<Duration> = None;
        /// The length of a step. By default, `30m`. Steps are longer if there would be more than 60, or 23 if more than 16 shards are counted.
        step: Option<Duration> = None;
    }
}

impl PeriodQuery {
    fn period(&self) -> Result<Period, Problem> {
        Period::new(self.r#for, self.step).map_err(|error| match error {
            InvalidPeriod::For => invalid("for", &error),
            InvalidPeriod::Step => invalid("step", &error),
        })
    }
}

/// Forecasts how many messages of all topics become due in each step from now on, and the next times of
/// schedules. It counts the topics with the most messages, on up to 64 shards.
#[utoipa::path(get, operation_id = "get_forecast", path = "/v1/forecast", tag = "stats", params(PeriodQuery),
    responses((status = 200, description = "Counts by step, in total and for each topic", body = ForecastView), (status = 422, description = "invalid")))]
pub(super) async fn all(
    With(api): With<Api>,
    Query(query): Query<PeriodQuery>,
) -> Result<Json<ForecastView>, Problem> {
    let period = query.period()?;
    let view = forecast::forecast(&api.broker, None, period, None, schedules(&api)).await;
    view.map(Json).map_err(Problem::from)
}

/// Forecasts how many messages of a topic become due in each step from now on. If the topic has more than 64 shards, it counts
/// some of them and estimates the others.
#[utoipa::path(get, operation_id = "get_topic_forecast", path = "/v1/topics/{topic}/forecast", tag = "topics", params(TopicPath, PeriodQuery),
    responses((status = 200, description = "Counts by step", body = ForecastView), (status = 404, description = "unknown_topic"), (status = 422, description = "invalid")))]
pub(super) async fn of_topic(
    With(api): With<Api>,
    Path(path): Path<TopicPath>,
    Query(query): Query<PeriodQuery>,
) -> Result<Json<ForecastView>, Problem> {
    let period = query.period()?;
    let topic = Some(api.topic(&path.topic).await?);
    let view = forecast::forecast(&api.broker, topic, period, None, schedules(&api)).await;
    view.map(Json).map_err(Problem::from)
}
