//! The route that settles deliveries and then pulls: a busy worker needs one request instead of two.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use lisa_service::http::{GroupPath, Problem, Query};
use serde::Serialize;
use utoipa::ToSchema;

use super::Gateway;
use super::answer::{Answer, DeliveryBody};
use super::batch::{ItemResult, SettleItem, Verb};
use super::handed::{Handed, Pulled};
use super::pull::{PullOptions, find, take};

/// The results of the outcomes, and the deliveries that were pulled after them.
#[derive(Serialize, ToSchema)]
struct SettledAndPulled<'a> {
    /// One result for each outcome, in the same order.
    results: &'a [ItemResult],
    /// The deliveries; empty if no message became ready in time.
    deliveries: Vec<DeliveryBody<'a>>,
}

/// Settles many deliveries, which may be of any group, and then pulls messages of this one: two calls in one request.
///
/// The body and its limits are those of `POST /v1/deliveries:settle` with a JSON array. The results are sent together with the
/// deliveries, so a worker that needs them soon does not set `wait`. If the pull fails, there are no deliveries, and the next pull
/// returns the error.
#[utoipa::path(
    post, operation_id = "settle_and_pull", path = "/v1/topics/{topic}/groups/{group}/settle-and-pull", tag = "deliveries",
    request_body(content = Vec<SettleItem<'static>>, description = "An array of outcomes"),
    params(GroupPath, PullOptions),
    responses(
        (status = 200, description = "The results and the deliveries", body = SettledAndPulled<'static>),
        (status = 404, description = "unknown_topic, or not_found: no such group; nothing was settled"),
        (status = 413, description = "too_large: the array exceeds its limits; nothing was settled"),
        (status = 422, description = "invalid: nothing was settled"),
        (status = 503, description = "unavailable: nothing was settled"),
    )
)]
pub(super) async fn settle_and_pull(
    State(gateway): State<Gateway>,
    Path(GroupPath { topic, group }): Path<GroupPath>,
    Query(options): Query<PullOptions>,
    body: Body,
) -> Result<Response, Problem> {
    // Without it, no token can be verified.
    gateway.key()?;
    // Boxed, or the future would have their size while it waits.
    let (topic, group) = Box::pin(find(&gateway, &topic, &group)).await?;
    let items = Box::pin(Verb::Settle.read_array(&gateway, body)).await?;
    let results = Box::pin(Verb::Settle.run_all(&gateway, items)).await;
    let answered = match take(&gateway, &topic, &group, &options).await {
        Ok(Some(taken)) => answer(&results, &taken.pulled, taken.handed),
        Ok(None) => Ok(nothing(&results)),
        Err(problem) => Err(problem),
    };
    Ok(answered.unwrap_or_else(|problem| {
        // An error would hide the results.
        tracing::debug!(topic = %topic.name(), %group, error = problem.detail(), "cannot pull after settling");
        nothing(&results)
    }))
}

fn answer(results: &[ItemResult], pulled: &[Pulled], handed: Handed) -> Result<Response, Problem> {
    let deliveries = pulled.iter().map(DeliveryBody::new).collect();
    let body = SettledAndPulled {
        results,
        deliveries,
    };
    Answer::json(&body, "application/json", handed)
}

fn nothing(results: &[ItemResult]) -> Response {
    let body = SettledAndPulled {
        results,
        deliveries: Vec::new(),
    };
    Json(body).into_response()
}
