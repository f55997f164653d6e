//! The operational endpoints of every role: `/healthz`, `/readyz`, `/metrics`.
//!
//! Open to everyone who can reach the listener, except `/metrics` if a token is limited to some topics. They show task names and
//! counts, never messages. Error texts may contain addresses and users of Redis; [`Errors`] decides who sees them.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;

use super::auth::{Scope, TokenSet};
use crate::metrics::{self, Metrics};
use crate::shutdown::Shutdown;
use crate::supervise::Health;

/// The paths that are served until the end, even while draining.
pub(super) const ROUTES: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// The paths among them that are served for any `Host`, because orchestrators may use any name.
pub(super) const PROBES: [&str; 2] = [ROUTES[0], ROUTES[1]];

/// Returns the problems of the process. Must be fast.
pub type Readiness = Arc<dyn Fn() -> Hindrances + Send + Sync>;

/// The problems of a process, one short sentence each.
#[derive(Clone, Debug, Default)]
pub struct Hindrances {
    /// The reasons why it is not ready; empty if it is ready.
    pub not_ready: Vec<String>,
    /// The problems that do not affect readiness.
    pub warnings: Vec<String>,
}

/// The replacement for text that only holders of a token may see.
const HIDDEN: &str = "hidden: use a token with scope read that reaches all topics, or see the log";

/// The reason of a draining process; not a secret.
const DRAINING: &str = "draining";

#[derive(Clone)]
struct Ops {
    health: Health,
    readiness: Readiness,
    metrics: Metrics,
    shutdown: Shutdown,
    errors: Errors,
}

/// The clients that see the failures of tasks in `/healthz` and the reasons in `/readyz`.
#[derive(Clone, Debug)]
pub enum Errors {
    /// Everyone.
    Open,
    /// Holders of a token with scope `read`; nobody if there are no tokens.
    Guarded(TokenSet),
}

impl Errors {
    /// Returns the rule for a listener at `address`.
    ///
    /// With tokens, loopback is no exception: behind a proxy on the same host, requests of untrusted clients also come from
    /// loopback.
    #[must_use]
    pub fn at(address: SocketAddr, tokens: &TokenSet) -> Self {
        if tokens.is_empty() && address.ip().to_canonical().is_loopback() {
            Self::Open
        } else {
            Self::Guarded(tokens.clone())
        }
    }

    /// Returns true if a token is limited: the names of tasks then reveal the topics of other teams.
    fn hide_names(&self) -> bool {
        matches!(self, Self::Guarded(tokens) if tokens.has_limited())
    }

    fn are_shown(&self, request: &Request) -> bool {
        match self {
            Self::Open => true,
            Self::Guarded(tokens) => {
                !tokens.is_empty() && tokens.admit(request, Some(Scope::Read)).is_ok()
            }
        }
    }
}

/// Returns the routes. The probes answer 200 if all is well, else 503, with details as JSON.
///
/// A draining process is never ready, regardless of `readiness`.
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

async fn healthz(State(ops): State<Ops>, request: Request) -> Response {
    let mut tasks = ops.health.tasks();
    if !ops.errors.are_shown(&request) {
        for task in &mut tasks {
            task.last_error = task.last_error.take().map(|_| HIDDEN.to_owned());
            for part in &mut task.failing {
                part.error = HIDDEN.to_owned();
            }
            if ops.errors.hide_names() {
                let end = task.name.find([':', ' ']).unwrap_or(task.name.len());
                task.name.truncate(end);
                task.failing.clear();
            }
        }
    }
    let green = tasks.iter().all(|task| task.green);
    // A restart of the process would not help a single loop that keeps failing, and would stop the others.
    let status = match (green, ops.health.is_degraded()) {
        (false, _) => "red",
        (true, true) => "degraded",
        (true, false) => "green",
    };
    answer(green, json!({ "status": status, "tasks": tasks }))
}

async fn readyz(State(ops): State<Ops>, request: Request) -> Response {
    let Hindrances {
        not_ready,
        warnings,
    } = (ops.readiness)();
    let draining = ops.shutdown.draining().is_cancelled();
    let ready = !draining && not_ready.is_empty();
    let mut reasons = [not_ready, warnings].concat();
    if !reasons.is_empty() && !ops.errors.are_shown(&request) {
        reasons = vec![HIDDEN.to_owned()];
    }
    if draining {
        reasons.insert(0, DRAINING.to_owned());
    }
    answer(ready, json!({ "ready": ready, "reasons": reasons }))
}

/// Once a token is limited, requires one that reaches all topics: the metrics name them all.
async fn scrape(State(ops): State<Ops>, request: Request) -> Response {
    if let Errors::Guarded(tokens) = &ops.errors
        && ops.errors.hide_names()
        && let Err(denied) = tokens.admit(&request, Some(Scope::Read))
    {
        return denied.into_response();
    }
    let headers = [
        (CONTENT_TYPE, metrics::CONTENT_TYPE),
        (CACHE_CONTROL, "no-store"),
    ];
    (headers, ops.metrics.encode()).into_response()
}

fn answer(well: bool, body: serde_json::Value) -> Response {
    let status = if well {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, [(CACHE_CONTROL, "no-store")], Json(body)).into_response()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use prometheus_client::registry::Registry;
    use tower::ServiceExt;

    use super::*;
    use crate::http::auth::Token;
    use crate::supervise::Supervisor;

    const GRACE: Duration = Duration::from_secs(5);
    /// SHA-256 of "abc".
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    /// SHA-256 of "shop-token".
    const SHOP: &str = "88cc4600551e64b7cb97dd7f63ebad405255e5d17bdd71ee9fe1ed5cc20d0b3b";

    /// Returns the routes of a process with one warning and this reason for not being ready.
    fn router(not_ready: Option<&'static str>, shutdown: &Shutdown, errors: Errors) -> Router {
        let hindrances = move || Hindrances {
            not_ready: not_ready.map(str::to_owned).into_iter().collect(),
            warnings: vec!["suspect order-7 waits".to_owned()],
        };
        super::router(
            Supervisor::new(shutdown).health(),
            Arc::new(hindrances),
            Metrics::new(Registry::default(), "0", "test"),
            shutdown.clone(),
            errors,
        )
    }

    async fn readyz(router: &Router, token: Option<&str>) -> (u16, String) {
        let mut request = Request::get("/readyz");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Body::empty()).unwrap();
        let reply = router.clone().oneshot(request).await.unwrap();
        let status = reply.status().as_u16();
        let body = to_bytes(reply.into_body(), 1000).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_ready_process_still_shows_its_warnings() {
        let shutdown = Shutdown::manual(GRACE);
        let router = router(None, &shutdown, Errors::Open);
        let body = r#"{"ready":true,"reasons":["suspect order-7 waits"]}"#;
        assert_eq!(readyz(&router, None).await, (200, body.to_owned()));
    }

    #[tokio::test]
    async fn the_reasons_of_readyz_are_for_loopback_without_tokens_or_for_a_token_that_reads() {
        let token = |name, hash: &str, scope| Token::new(name, hash, vec![scope]).unwrap();
        let configured = TokenSet::new(vec![
            token("eyes", ABC, Scope::Read),
            token("shop", SHOP, Scope::Send),
        ]);
        let open = TokenSet::default();
        let (loopback, beyond) = ("127.0.0.1:1", "10.1.2.3:1");
        for (address, tokens, presented, is_shown) in [
            (loopback, &open, None, true),
            ("[::ffff:127.0.0.1]:1", &open, None, true),
            (beyond, &open, None, false),
            (beyond, &open, Some("abc"), false),
            (loopback, &configured, None, false),
            (loopback, &configured, Some("wrong"), false),
            (loopback, &configured, Some("shop-token"), false),
            (loopback, &configured, Some("abc"), true),
            (beyond, &configured, None, false),
            (beyond, &configured, Some("abc"), true),
        ] {
            let shutdown = Shutdown::manual(GRACE);
            let errors = Errors::at(address.parse().unwrap(), tokens);
            let router = router(Some("redis: NOPERM of relay@10.9.8.7"), &shutdown, errors);
            let about = format!("{address} {tokens:?} {presented:?}");
            let reasons = match is_shown {
                true => r#""redis: NOPERM of relay@10.9.8.7","suspect order-7 waits""#,
                false => {
                    r#""hidden: use a token with scope read that reaches all topics, or see the log""#
                }
            };
            let body = format!(r#"{{"ready":false,"reasons":[{reasons}]}}"#);
            assert_eq!(readyz(&router, presented).await, (503, body), "{about}");
            shutdown.begin();
            let body = format!(r#"{{"ready":false,"reasons":["draining",{reasons}]}}"#);
            assert_eq!(readyz(&router, presented).await, (503, body), "{about}");
        }
    }
}
