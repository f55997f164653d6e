//! Forecasts what becomes due.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State as With};
use lisa_core::time::{InvalidTime, parse_duration};
use lisa_service::http::Problem;
use serde::Deserialize;

use super::{Api, invalid, problem};
use crate::operations::forecast::{self, ForecastView, Horizon, InvalidHorizon};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HorizonQuery {
    r#for: Option<String>,
    step: Option<String>,
}

impl HorizonQuery {
    fn horizon(query: Result<Query<Self>, QueryRejection>) -> Result<Horizon, Problem> {
        let Query(query) = query.map_err(|error| invalid("query", &error.body_text()))?;
        let duration = |field, text: Option<String>| {
            let duration = text.as_deref().map(parse_duration).transpose();
            duration.map_err(|error: InvalidTime| invalid(field, &error))
        };
        let horizon = Horizon::new(duration("for", query.r#for)?, duration("step", query.step)?);
        horizon.map_err(|error| match error {
            InvalidHorizon::For => invalid("for", &error),
            InvalidHorizon::Step => invalid("step", &error),
        })
    }
}

/// Forecasts how many messages of all topics become due in each step from now on, and the next times of this manager's
/// schedules. It counts the topics with the most messages, up to 64 shards of them.
#[utoipa::path(get, operation_id = "get_forecast", path = "/v1/forecast", tag = "stats",
    params(("for" = Option<String>, Query, description = "The period from now on, by default `24h`"),
        ("step" = Option<String>, Query, description = "The length of a step, by default `30m`. Steps are longer if there would be more than 60, or 23 if more than 16 shards are counted")),
    responses((status = 200, description = "Counts by step, in total and for each topic", body = ForecastView), (status = 422, description = "invalid")))]
pub(super) async fn all(
    With(api): With<Api>,
    query: Result<Query<HorizonQuery>, QueryRejection>,
) -> Result<Json<ForecastView>, Problem> {
    let horizon = HorizonQuery::horizon(query)?;
    let view = forecast::forecast(&api.broker, None, horizon, &api.config.schedules).await;
    view.map(Json).map_err(problem)
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
    query: Result<Query<HorizonQuery>, QueryRejection>,
) -> Result<Json<ForecastView>, Problem> {
    let horizon = HorizonQuery::horizon(query)?;
    let topic = Some(api.topic(&topic).await?);
    let view = forecast::forecast(&api.broker, topic, horizon, &api.config.schedules).await;
    view.map(Json).map_err(problem)
}
