//! The operators' endpoints of every role: `/healthz`, `/readyz`, `/metrics`.
//!
//! Open to everyone who reaches the listener; they show task names and counts, never messages.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;

use crate::metrics::{self, Metrics};
use crate::shutdown::Shutdown;
use crate::supervise::Health;

/// The paths that are served until the very end, also while draining.
pub(super) const ROUTES: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Those of them that are answered whatever the host is: orchestrators ask by any name.
pub(super) const PROBES: [&str; 2] = [ROUTES[0], ROUTES[1]];

/// Says what hinders the process. Must be quick.
pub type Readiness = Arc<dyn Fn() -> Hindrances + Send + Sync>;

/// What hinders a process, one short sentence each.
#[derive(Clone, Debug, Default)]
pub struct Hindrances {
    /// Why it cannot serve; empty when it is ready.
    pub not_ready: Vec<String>,
    /// What is wrong although it serves.
    pub warnings: Vec<String>,
}

#[derive(Clone)]
struct Ops {
    health: Health,
    readiness: Readiness,
    metrics: Metrics,
    shutdown: Shutdown,
}

/// The routes: 200 while all is well, 503 otherwise, with the particulars as JSON.
///
/// A draining process is never ready, whatever `readiness` says.
pub fn router(
    health: Health,
    readiness: Readiness,
    metrics: Metrics,
    shutdown: Shutdown,
) -> Router {
    let ops = Ops {
        health,
        readiness,
        metrics,
        shutdown,
    };
    Router::new()
        .route(ROUTES[0], get(healthz))
        .route(ROUTES[1], get(readyz))
        .route(ROUTES[2], get(scrape))
        .with_state(ops)
}

async fn healthz(State(ops): State<Ops>) -> Response {
    let tasks = ops.health.tasks();
    let green = tasks.iter().all(|task| task.green);
    let status = if green { "green" } else { "red" };
    answer(green, json!({ "status": status, "tasks": tasks }))
}

async fn readyz(State(ops): State<Ops>) -> Response {
    let Hindrances {
        not_ready: mut reasons,
        warnings,
    } = (ops.readiness)();
    if ops.shutdown.draining().is_cancelled() {
        reasons.insert(0, "draining".to_owned());
    }
    let ready = reasons.is_empty();
    reasons.extend(warnings);
    answer(ready, json!({ "ready": ready, "reasons": reasons }))
}

async fn scrape(State(ops): State<Ops>) -> impl IntoResponse {
    let headers = [
        (CONTENT_TYPE, metrics::CONTENT_TYPE),
        (CACHE_CONTROL, "no-store"),
    ];
    (headers, ops.metrics.encode())
}

fn answer(well: bool, body: serde_json::Value) -> Response {
    let status = if well {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, [(CACHE_CONTROL, "no-store")], Json(body)).into_response()
}
