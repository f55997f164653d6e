//! Forecasts what becomes due.

use axum::Json;
use axum::extract::{Path, State as With};
use lisa_service::http::Problem;
use serde::Deserialize;

use super::query::{Fields, duration};
use super::{Api, invalid};
use crate::operations::forecast::{self, ForecastView, InvalidPeriod, Period};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PeriodQuery {
    r#for: Option<String>,
    step: Option<String>,
}

impl PeriodQuery {
    fn period(&self) -> Result<Period, Problem> {
        let within = duration("for", self.r#for.as_ref())?;
        let period = Period::new(within, duration("step", self.step.as_ref())?);
        period.map_err(|error| match error {
            InvalidPeriod::For => invalid("for", &error),
            InvalidPeriod::Step => invalid("step", &error),
        })
    }
}

/// Forecasts how many messages of all topics become due in each step from now on, and the next times of this manager's
/// schedules. It counts the topics with the most messages, on up to 64 shards.
#[utoipa::path(get, operation_id = "get_forecast", path = "/v1/forecast", tag = "stats",
    params(("for" = Option<String>, Query, description = "The period from now on, by default `24h`"),
        ("step" = Option<String>, Query, description = "The length of a step, by default `30m`. Steps are longer if there would be more than 60, or 23 if more than 16 shards are counted")),
    responses((status = 200, description = "Counts by step, in total and for each topic", body = ForecastView), (status = 422, description = "invalid")))]
pub(super) async fn all(
    With(api): With<Api>,
    Fields(query): Fields<PeriodQuery>,
) -> Result<Json<ForecastView>, Problem> {
    let period = query.period()?;
    let view = forecast::forecast(&api.broker, None, period, None, &api.config.schedules).await;
    view.map(Json).map_err(Problem::from)
}

/// Forecasts how many messages of a topic become due in each step from now on. If the topic has more than 64 shards, it counts
/// some of them and estimates the others.
#[utoipa::path(get, operation_id = "get_topic_forecast", path = "/v1/topics/{topic}/forecast", tag = "topics",
    params(("topic" = String, Path, description = "The topic"),
        ("for" = Option<String>, Query, description = "The period from now on, by default `24h`"),
        ("step" = Option<String>, Query, description = "The length of a step, by default `30m`. Steps are longer if there would be more than 60, or 23 if more than 16 shards are counted")),
    responses((status = 200, description = "Counts by step", body = ForecastView), (status = 404, description = "unknown_topic"), (status = 422, description = "invalid")))]
pub(super) async fn of_topic(
    With(api): With<Api>,
    Path(topic): Path<String>,
    Fields(query): Fields<PeriodQuery>,
) -> Result<Json<ForecastView>, Problem> {
    let period = query.period()?;
    let topic = Some(api.topic(&topic).await?);
    let view = forecast::forecast(&api.broker, topic, period, None, &api.config.schedules).await;
    view.map(Json).map_err(Problem::from)
}
