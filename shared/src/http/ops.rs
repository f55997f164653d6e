//! The operators' endpoints of every role: `/healthz`, `/readyz`, `/metrics`.
//!
//! Open to everyone who reaches the listener; they show task names and counts, never messages. Beyond loopback, the errors
//! of tasks are for those who have a token.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;

use super::auth::{Scope, TokenSet};
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

/// Stands for an error that only those with a token see.
const HIDDEN: &str = "hidden: ask with a token of scope read, or see the log";

#[derive(Clone)]
struct Ops {
    health: Health,
    readiness: Readiness,
    metrics: Metrics,
    shutdown: Shutdown,
    errors: Errors,
}

/// To whom `/healthz` shows why a task fell.
#[derive(Clone, Debug)]
pub enum Errors {
    /// To everyone.
    Open,
    /// To those who have a token with the scope `read`, if there are tokens.
    Guarded(TokenSet),
}

impl Errors {
    /// Returns the rule for a listener at `address`.
    #[must_use]
    pub fn at(address: SocketAddr, tokens: &TokenSet) -> Self {
        if address.ip().to_canonical().is_loopback() {
            Self::Open
        } else {
            Self::Guarded(tokens.clone())
        }
    }

    fn are_shown(&self, headers: &HeaderMap) -> bool {
        match self {
            Self::Open => true,
            Self::Guarded(tokens) => tokens.admit(headers, Scope::Read).is_ok(),
        }
    }
}

/// The routes: 200 while all is well, 503 otherwise, with the particulars as JSON.
///
/// A draining process is never ready, whatever `readiness` says.
pub fn router(
    health: Health,
    readiness: Readiness,
    metrics: Metrics,
    shutdown: Shutdown,
    errors: Errors,
) -> Router {
    let ops = Ops {
        health,
        readiness,
        metrics,
        shutdown,
        errors,
    };
    Router::new()
        .route(ROUTES[0], get(healthz))
        .route(ROUTES[1], get(readyz))
        .route(ROUTES[2], get(scrape))
        .with_state(ops)
}

async fn healthz(State(ops): State<Ops>, headers: HeaderMap) -> Response {
    let mut tasks = ops.health.tasks();
    if !ops.errors.are_shown(&headers) {
        for task in &mut tasks {
            task.last_error = task.last_error.take().map(|_| HIDDEN.to_owned());
            for part in &mut task.failing {
                part.error = HIDDEN.to_owned();
            }
        }
    }
    let green = tasks.iter().all(|task| task.green);
    // A restart would not help a loop that keeps failing by itself, and would stop the others.
    let status = match (green, ops.health.is_degraded()) {
        (false, _) => "red",
        (true, true) => "degraded",
        (true, false) => "green",
    };
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
