//! The routes that settle a delivery, or extend its lease. The token in the path is all that they require.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::HeaderValue;
use axum::http::header::WWW_AUTHENTICATE;
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use lisa_consumer_core::Outcome;
use lisa_consumer_core::internals::{Claims, verdict};
use lisa_core::broker::{BrokerError, Settlement};
use lisa_core::fields;
use lisa_core::fields::{Fields, Reader, Value as _};
use lisa_core::openapi::one_of;
use lisa_core::state::Settled;
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::{Group, Shard, Topic};
use lisa_service::http::body::read_limited;
use lisa_service::http::client::Admitted;
use lisa_service::http::{Problem, ProblemCode, read_fields};
use lisa_service::spans::{CommonAttributes, Messages, Span};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::Object;

use super::Gateway;
use super::pull::LeaseOptions;

/// The largest body of an outcome.
const MAX_BODY: usize = 16 * 1024;

fields! {
    /// The details of a failure. All are optional, and so is the body.
    #[derive(Clone, Debug)]
    pub(super) struct RetryOptions, schema = "Retry" {
        /// The time until the next attempt, such as `30s`. By default, the delay of the retry policy.
        after: Option<Duration> = None;
        /// The error; 1 KiB of it is kept.
        error: Option<String> = None;
    }
}

fields! {
    /// When to deliver again: exactly one of the two.
    #[derive(Clone, Debug)]
    pub(super) struct DeferOptions, schema = "Defer", check = one_time {
        /// The time from now, such as `30s`.
        after: Option<Duration> = None;
        /// The time; a past time means now.
        until: Option<UnixMs> = None;
    }
}

fields! {
    /// The details of a rejection. The body is optional.
    #[derive(Clone, Debug)]
    pub(super) struct RejectOptions, schema = "Reject" {
        /// The error; 1 KiB of it is kept.
        error: Option<String> = None;
    }
}

fn one_time(options: &DeferOptions, from: &mut impl Reader) {
    match (options.after, options.until) {
        (Some(_), Some(until)) => {
            from.problem(
                "until",
                until.show(),
                "cannot be combined with after".into(),
            );
        }
        (None, None) => {
            from.problem(
                "after",
                serde_json::Value::Null,
                "set after or until".into(),
            );
        }
        _ => {}
    }
}

impl From<RetryOptions> for Outcome {
    fn from(RetryOptions { after, error }: RetryOptions) -> Self {
        Self::Retry {
            after,
            error: error.unwrap_or_else(|| "retried by its worker".to_owned()),
        }
    }
}

impl From<DeferOptions> for Outcome {
    fn from(DeferOptions { after, until }: DeferOptions) -> Self {
        let until = until.map(When::At).or(after.map(When::After));
        Self::Defer {
            until: until.unwrap_or(When::NOW),
        }
    }
}

impl From<RejectOptions> for Outcome {
    fn from(RejectOptions { error }: RejectOptions) -> Self {
        Self::reject(error.unwrap_or_else(|| "rejected by its worker".to_owned()))
    }
}

/// The outcome of a delivery.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Ended {
    /// The outcome. It is `lost` if the payload was missing, and `extended` for a lease.
    #[schema(schema_with = outcomes)]
    pub(super) outcome: &'static str,
    /// The time of the next delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    due_at: Option<String>,
    /// The end of the lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    lease_until: Option<String>,
}

/// The outcome of an extension.
const EXTENDED: &str = "extended";

/// Returns the schema of the outcomes of [`Ended`]. A stale delivery is a problem.
fn outcomes() -> Object {
    let at = UnixMs::new(0);
    let settled = [
        Settled::Acked,
        Settled::Retry { at },
        Settled::Deferred { at },
        Settled::Garbage,
        Settled::Expired,
        Settled::Lost,
    ];
    let settled = settled.map(Settled::as_str);
    one_of(settled.into_iter().chain([EXTENDED]))
}

impl Ended {
    fn settled(settled: Settled) -> Result<Self, Problem> {
        let due_at = match settled {
            Settled::Stale => return Err(stale()),
            Settled::Retry { at } | Settled::Deferred { at } => Some(at.to_string()),
            _ => None,
        };
        Ok(Self {
            outcome: settled.as_str(),
            due_at,
            lease_until: None,
        })
    }
}

/// Acknowledges a delivery: the work is done.
#[utoipa::path(
    post, operation_id = "ack_delivery", path = "/v1/deliveries/{token}/ack", tag = "deliveries",
    params(("token" = String, Path, description = "The token of the delivery")),
    responses(
        (status = 200, description = "Acknowledged", body = Ended),
        (status = 401, description = "invalid_delivery_token: the token in the path is not one of a delivery of this relay"),
        (status = 409, description = "stale: the lease was lost, or the delivery is already settled; nothing was done"),
        (status = 503, description = "unavailable, or indeterminate: acknowledge again; stale then means that it was done, or that the lease was lost"),
    )
)]
pub(super) async fn ack(
    State(gateway): State<Gateway>,
    Path(token): Path<String>,
) -> Result<Json<Ended>, Refusal> {
    let claims = gateway.open(&token)?;
    settle_one(&gateway, claims, Outcome::Ack).await
}

/// Reports a failed attempt: the message is delivered again later, or goes to garbage (dead letters) after the last attempt.
#[utoipa::path(
    post, operation_id = "retry_delivery", path = "/v1/deliveries/{token}/retry", tag = "deliveries",
    params(("token" = String, Path, description = "The token of the delivery")),
    request_body(content = Option<RetryOptions>, description = "The details"),
    responses(
        (status = 200, description = "Retried, or in garbage", body = Ended),
        (status = 401, description = "invalid_delivery_token: the token in the path is not one of a delivery of this relay"),
        (status = 409, description = "stale: the lease was lost, or the delivery is already settled; nothing was done"),
        (status = 422, description = "invalid"),
        (status = 503, description = "unavailable, or indeterminate: repeat the call"),
    )
)]
pub(super) async fn retry(
    State(gateway): State<Gateway>,
    Path(token): Path<String>,
    body: Body,
) -> Result<Json<Ended>, Refusal> {
    let (claims, options): (_, RetryOptions) = read(&gateway, &token, body).await?;
    settle_one(&gateway, claims, options.into()).await
}

/// Defers a delivery: the message is delivered again later, and no attempt is counted.
#[utoipa::path(
    post, operation_id = "defer_delivery", path = "/v1/deliveries/{token}/defer", tag = "deliveries",
    params(("token" = String, Path, description = "The token of the delivery")),
    request_body(content = DeferOptions, description = "The time"),
    responses(
        (status = 200, description = "Deferred", body = Ended),
        (status = 401, description = "invalid_delivery_token: the token in the path is not one of a delivery of this relay"),
        (status = 409, description = "stale: the lease was lost, or the delivery is already settled; nothing was done"),
        (status = 422, description = "invalid"),
        (status = 503, description = "unavailable, or indeterminate: repeat the call"),
    )
)]
pub(super) async fn defer(
    State(gateway): State<Gateway>,
    Path(token): Path<String>,
    body: Body,
) -> Result<Json<Ended>, Refusal> {
    let (claims, options): (_, DeferOptions) = read(&gateway, &token, body).await?;
    settle_one(&gateway, claims, options.into()).await
}

/// Rejects a delivery: the message goes to garbage (dead letters) immediately.
#[utoipa::path(
    post, operation_id = "reject_delivery", path = "/v1/deliveries/{token}/reject", tag = "deliveries",
    params(("token" = String, Path, description = "The token of the delivery")),
    request_body(content = Option<RejectOptions>, description = "The details"),
    responses(
        (status = 200, description = "In garbage", body = Ended),
        (status = 401, description = "invalid_delivery_token: the token in the path is not one of a delivery of this relay"),
        (status = 409, description = "stale: the lease was lost, or the delivery is already settled; nothing was done"),
        (status = 422, description = "invalid"),
        (status = 503, description = "unavailable, or indeterminate: repeat the call"),
    )
)]
pub(super) async fn reject(
    State(gateway): State<Gateway>,
    Path(token): Path<String>,
    body: Body,
) -> Result<Json<Ended>, Refusal> {
    let (claims, options): (_, RejectOptions) = read(&gateway, &token, body).await?;
    settle_one(&gateway, claims, options.into()).await
}

/// Replaces the lease of a delivery with a new one that starts now. It may be shorter.
#[utoipa::path(
    post, operation_id = "extend_delivery", path = "/v1/deliveries/{token}/extend", tag = "deliveries",
    params(("token" = String, Path, description = "The token of the delivery")),
    request_body(content = Option<LeaseOptions>, description = "The lease"),
    responses(
        (status = 200, description = "Extended", body = Ended),
        (status = 401, description = "invalid_delivery_token: the token in the path is not one of a delivery of this relay"),
        (status = 409, description = "stale: the lease was lost, or the delivery is already settled; nothing was done"),
        (status = 422, description = "invalid"),
        (status = 503, description = "unavailable, or indeterminate: repeat the call"),
    )
)]
pub(super) async fn extend(
    State(gateway): State<Gateway>,
    Path(token): Path<String>,
    body: Body,
) -> Result<Json<Ended>, Refusal> {
    let (claims, options): (_, LeaseOptions) = read(&gateway, &token, body).await?;
    Ok(Json(extend_one(&gateway, &claims, options.lease).await?))
}

/// Reads the delivery of a token, and then the body with the details. So a client without a token cannot make it wait.
async fn read<F: Fields>(
    gateway: &Gateway,
    token: &str,
    body: Body,
) -> Result<(Claims, F), Problem> {
    let claims = gateway.open(token)?;
    let body = read_limited(body, MAX_BODY, gateway.bodies());
    let body = Admitted::new(false, None).scope(body).await?;
    Ok((claims, read_fields(&body)?))
}

async fn settle_one(
    gateway: &Gateway,
    claims: Claims,
    outcome: Outcome,
) -> Result<Json<Ended>, Refusal> {
    let mut results = settle_all(gateway, vec![Ok((claims, outcome))]).await;
    let result = results.pop().unwrap_or_else(|| Err(stale()));
    Ok(Json(result?))
}

/// Settles deliveries, those of one shard and group in one call. Returns a result for each item, in order: that of an item
/// which cannot be settled is its problem.
pub(super) async fn settle_all(
    gateway: &Gateway,
    items: Vec<Result<(Claims, Outcome), Problem>>,
) -> Vec<Result<Ended, Problem>> {
    let is_batch = items.len() > 1;
    let mut results = Vec::with_capacity(items.len());
    let mut calls: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut seen = HashSet::new();
    for (index, item) in items.into_iter().enumerate() {
        let (claims, outcome) = match item {
            Ok(item) => item,
            Err(problem) => {
                results.push(Err(problem));
                continue;
            }
        };
        results.push(Err(stale()));
        let place = (claims.topic.clone(), claims.group.clone(), claims.shard);
        // The first outcome of a delivery counts; the others are stale.
        if seen.insert((place.clone(), claims.entry)) {
            calls
                .entry(place)
                .or_default()
                .push((index, claims, outcome));
        }
    }
    let calls = calls
        .into_iter()
        .map(|((topic, group, shard), items)| async move {
            let (indices, items): (Vec<_>, Vec<_>) = items
                .into_iter()
                .map(|(index, claims, outcome)| (index, (claims, outcome)))
                .unzip();
            let settled = settle_shard(gateway, &topic, &group, shard, items, is_batch).await;
            (indices, settled)
        });
    for (indices, settled) in join_all(calls).await {
        for (at, index) in indices.into_iter().enumerate() {
            results[index] = match &settled {
                Ok(settled) => Ended::settled(settled[at]),
                Err(problem) => Err(problem.clone()),
            };
        }
    }
    results
}

async fn settle_shard(
    gateway: &Gateway,
    topic: &Topic,
    group: &Group,
    shard: Shard,
    items: Vec<(Claims, Outcome)>,
    is_batch: bool,
) -> Result<Vec<Settled>, Problem> {
    let broker = &gateway.process().broker;
    let handle = match broker.topic(topic).await {
        Ok(handle) => handle,
        Err(error) => return gone(error).map(|()| vec![Settled::Stale; items.len()]),
    };
    let settings = handle.settings();
    let settlements: Vec<Settlement> = items
        .into_iter()
        .map(|(claims, outcome)| {
            let outcome = match outcome {
                Outcome::Retry { after, error } => Outcome::Retry {
                    after: Some(after.unwrap_or(claims.retry_after)),
                    error,
                },
                other => other,
            };
            let now = || broker.now_at(&handle, shard);
            Settlement {
                entry: claims.entry,
                id: claims.id,
                caller_id: claims.caller_id,
                max_attempts: claims.max_attempts,
                verdict: verdict(outcome, settings, &settings.retry, 1, now),
            }
        })
        .collect();
    let span = span(gateway, (topic, group, shard), &settlements, is_batch);
    let settled = broker.settle(&handle, shard, group, &settlements).await;
    if let Some(span) = span {
        match &settled {
            Ok(settled) if settled.contains(&Settled::Stale) => span.failed("stale"),
            Ok(_) => {}
            Err(_) => span.failed("unavailable"),
        }
    }
    let settled = match settled {
        Ok(settled) => settled,
        Err(error) => return gone(error).map(|()| vec![Settled::Stale; settlements.len()]),
    };
    gateway.group(topic, group).count(&settled);
    Ok(settled)
}

/// Starts the span of a settlement, if there are spans. It has the name of the outcome, if that is the same for all.
fn span(
    gateway: &Gateway,
    (topic, group, shard): (&Topic, &Group, Shard),
    settlements: &[Settlement],
    is_batch: bool,
) -> Option<Span> {
    let spans = gateway.spans.as_ref()?;
    let common = CommonAttributes {
        topic,
        group: Some(group),
        shard: Some(shard),
        client: Some(&gateway.process().name),
    };
    let mut names = settlements.iter().map(|one| one.verdict.operation());
    let first = names.next()?;
    let name = match names.all(|name| name == first) {
        true => first,
        false => "settle",
    };
    let messages = match settlements {
        [one] if !is_batch => Messages::One(&one.id),
        all => Messages::Batch(all.len()),
    };
    Some(spans.settle(&common, name, messages, None))
}

/// Sets a new lease of a delivery.
pub(super) async fn extend_one(
    gateway: &Gateway,
    claims: &Claims,
    lease: Option<Duration>,
) -> Result<Ended, Problem> {
    let process = gateway.process();
    let leased = async {
        let topic = process.broker.topic(&claims.topic).await?;
        let lease = lease.unwrap_or(topic.settings().lease);
        let (shard, group, entries) = (claims.shard, &claims.group, [claims.entry]);
        process
            .broker
            .lease(&topic, shard, group, &process.name, &entries, lease)
            .await
    };
    let leased = match leased.await {
        Ok(leased) if !leased.held.is_empty() => leased,
        Ok(_) => return Err(stale()),
        Err(error) => return gone(error).and_then(|()| Err(stale())),
    };
    Ok(Ended {
        outcome: EXTENDED,
        due_at: None,
        lease_until: Some(leased.until.to_string()),
    })
}

/// Returns whether a failure means that the delivery no longer exists, because its topic, shard or group was removed.
fn gone(error: BrokerError) -> Result<(), Problem> {
    match error.is_gone() {
        true => Ok(()),
        false => Err(error.into()),
    }
}

fn stale() -> Problem {
    let detail = "the lease was lost, or the delivery is already settled; nothing was done";
    Problem::new(ProblemCode::Stale, detail)
}

/// A problem as the response to a request with a token in its path.
pub(super) struct Refusal(Problem);

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let needs_token = self.0.code() == ProblemCode::InvalidDeliveryToken;
        let mut response = self.0.into_response();
        if needs_token {
            let challenge = HeaderValue::from_static(r#"Lisa-Delivery realm="lisa""#);
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        response
    }
}
