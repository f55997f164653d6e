//! The route that settles deliveries and then pulls: a busy worker needs one request instead of two.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use lisa_service::http::batch::Format;
use lisa_service::http::share::Share;
use lisa_service::http::{GroupPath, Problem, ProblemCode, Query};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::Gateway;
use super::answer::{Answer, DeliveryBody};
use super::batch::{ItemResult, SettleItem, Verb};
use super::pull::{PullOptions, Taken, find, take};

/// The results of the outcomes, and the deliveries that were pulled after them.
#[derive(Serialize, ToSchema)]
struct SettledAndPulled<'a> {
    /// One result for each outcome, in the same order.
    #[schema(value_type = Vec<ItemResult>)]
    results: &'a RawValue,
    /// The deliveries; empty if no message is ready.
    deliveries: Vec<DeliveryBody<'a>>,
}

/// Settles many deliveries, which may be of any group, and then pulls messages of this one: two calls in one request.
///
/// The body and its limits are those of `POST /v1/deliveries:settle` with a JSON array. The pull returns what is ready now: `wait`
/// must be zero, since the results would wait, too. If the pull fails, there are no deliveries, and the next pull returns the error.
/// As with a pull, a client that closes its side of the connection gets no response.
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
    if !options.wait.is_zero() {
        let detail = "must be 0s, since the results would wait, too";
        let problem = Problem::new(ProblemCode::Invalid, format!("wait: {detail}"));
        return Err(problem.error("wait", detail));
    }
    // Boxed, or the future would have their size while it waits.
    let (topic, group) = Box::pin(find(&gateway, &topic, &group)).await?;
    let items = Box::pin(Verb::Settle.read_array(&gateway, body)).await?;
    let settle = Verb::Settle.run_all(&gateway, items, Format::Array);
    let (results, memory) = Box::pin(settle).await;
    let results = RawValue::from_string(results).expect("results are JSON");
    let answered = match take(&gateway, &topic, &group, &options).await {
        Ok(Some(Taken { pulled, mut handed })) => {
            handed.add_results(memory);
            let deliveries = pulled.iter().map(DeliveryBody::new).collect();
            let results = &results;
            let body = SettledAndPulled {
                results,
                deliveries,
            };
            Answer::json(&body, "application/json", handed)
        }
        Ok(None) => return Ok(nothing(&results, memory)),
        Err(problem) => {
            // An error would hide the results.
            let error = problem.detail();
            tracing::debug!(topic = %topic.name(), %group, error, "cannot pull after settling");
            return Ok(nothing(&results, memory));
        }
    };
    Ok(answered.unwrap_or_else(|_| {
        // There is no memory for the deliveries, which were handed back.
        let mut memory = gateway.results();
        // Even without memory for them: an error would say that nothing was settled.
        let _ = memory.try_add(results.get().len());
        nothing(&results, memory)
    }))
}

/// Returns the response without deliveries.
fn nothing(results: &RawValue, memory: Share) -> Response {
    let body = SettledAndPulled {
        results,
        deliveries: Vec::new(),
    };
    let text = serde_json::to_vec(&body).expect("texts always serialize");
    let body = Body::from(memory.hold(text.into()));
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}
