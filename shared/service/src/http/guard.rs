//! The middleware around every route. It opens a span, records metrics, and limits heads. It refuses requests while draining
//! or from other sites, catches panics, and turns all errors into problems.
//!
//! Never logs bodies, header values or query strings.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use axum::Router;
use axum::body::{HttpBody, to_bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{
    ACCEPT_ENCODING, ALLOW, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST, RETRY_AFTER,
    TRANSFER_ENCODING, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, field};

use super::client::Client;
use super::cross_site::CrossSite;
use super::ops;
use super::problem::{Problem, ProblemCode};
use super::tls;
use crate::metrics::Metrics;
use crate::panics::panic_text;

/// The longest plain-text error of the framework that becomes the detail of a problem, in bytes.
const MAX_DETAIL: usize = 8 * 1024;

/// The routes of SQS clients. Their handler calls [`check_coding`] itself, because errors of SQS have another format.
pub const SQS_ROUTES: [&str; 3] = ["/", "/{account}/{queue}", "/{account}/{queue}/"];

/// Returns true if the query of a URL names an action of SQS.
pub fn names_action(uri: &Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    query.split('&').any(|pair| pair.starts_with("Action="))
}

/// The route label of requests that match no route: paths sent by strangers never become labels.
const NO_ROUTE: &str = "none";

#[derive(Clone, Debug)]
pub(super) struct Guard {
    pub(super) metrics: Metrics,
    pub(super) draining: CancellationToken,
    pub(super) max_header_bytes: usize,
    pub(super) cross_site: CrossSite,
}

impl Guard {
    /// Wraps all routes in the guard, and answers requests that match no route or method.
    pub(super) fn wrap(self, router: Router) -> Router {
        router
            .method_not_allowed_fallback(method_not_allowed)
            .fallback(async |method: Method, uri: Uri| unknown_route(&method, uri.path()))
            .layer(middleware::from_fn_with_state(self, guard))
    }

    fn refusal(&self, request: &Request, route: &str) -> Option<Problem> {
        if let Some(problem) = tls::refusal(request.extensions()) {
            return Some(problem);
        }
        let bytes = head_bytes(request);
        if bytes > self.max_header_bytes {
            let detail = format!(
                "request target and headers have {bytes} bytes, at most {} are allowed",
                self.max_header_bytes
            );
            return Some(Problem::new(ProblemCode::HeaderTooLarge, detail));
        }
        // With several, a proxy in between may have used another one than this server.
        let hosts = request.headers().get_all(HOST).iter().count();
        if hosts > 1 || (hosts == 0 && request.version() == Version::HTTP_11) {
            let detail = format!("the request has {hosts} Host headers, exactly one is required");
            return Some(Problem::new(ProblemCode::Malformed, detail));
        }
        if !is_framed(request) {
            let detail = "Transfer-Encoding must be chunked, exactly once";
            return Some(Problem::new(ProblemCode::Malformed, detail));
        }
        if self.draining.is_cancelled() && !ops::ROUTES.contains(&route) {
            return Some(Problem::new(
                ProblemCode::Unavailable,
                "the server is shutting down",
            ));
        }
        if let Some(problem) = self.cross_site.refusal(request, route) {
            return Some(problem);
        }
        if request.body().is_end_stream() || SQS_ROUTES.contains(&route) {
            return None;
        }
        check_coding(request.headers()).err()
    }
}

/// Checks that a body has no content coding. Lisa decodes none, so a receiver would get compressed bytes with the
/// `Content-Type` of the uncompressed content.
///
/// # Errors
/// The problem `unsupported_media_type`.
pub fn check_coding(headers: &HeaderMap) -> Result<(), Problem> {
    let values = headers.get_all(CONTENT_ENCODING).into_iter();
    let mut codings = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let is_identity = |coding: &[u8]| {
        let coding = coding.trim_ascii();
        coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
    };
    if codings.all(is_identity) {
        return Ok(());
    }
    let why = "only `identity` is allowed: bodies are not decompressed";
    let detail = format!("Content-Encoding: {why}");
    Err(Problem::new(ProblemCode::UnsupportedMediaType, detail).error("Content-Encoding", why))
}

/// Returns true if the end of the body is unambiguous. hyper also accepts chunks within chunks, which a proxy may interpret
/// differently.
fn is_framed(request: &Request) -> bool {
    let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => coding
            .as_bytes()
            .trim_ascii()
            .eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    }
}

async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let route = matched.as_ref().map_or(NO_ROUTE, MatchedPath::as_str);
    let method = method_label(request.method());
    let refusal = guard.refusal(&request, route);
    let client = Client::of(&request);
    let is_last = !is_framed(&request) || tls::refusal(request.extensions()).is_some();
    let span = tracing::info_span!(
        "http",
        method,
        route,
        token = field::Empty,
        status = field::Empty
    );
    let mut response = async {
        match refusal {
            Some(problem) => problem.into_response(),
            None => match AssertUnwindSafe(client.scope(next.run(request)))
                .catch_unwind()
                .await
            {
                Ok(response) => as_problem(response).await,
                Err(panic) => {
                    guard.metrics.panicked("request");
                    panicked(panic.as_ref())
                }
            },
        }
    }
    .instrument(span.clone())
    .await;
    if response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        let identity = HeaderValue::from_static("identity");
        response.headers_mut().insert(ACCEPT_ENCODING, identity);
    }
    if is_last || guard.draining.is_cancelled() {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    // No browser may interpret a response as a script or a page.
    let nosniff = HeaderValue::from_static("nosniff");
    response
        .headers_mut()
        .insert(X_CONTENT_TYPE_OPTIONS, nosniff);
    let status = response.status().as_u16();
    let took = started.elapsed();
    guard.metrics.http_request(route, method, status, took);
    span.record("status", status);
    tracing::debug!(parent: &span, took_s = took.as_secs_f64(), "answered");
    // A connection may have sent many requests at once. Between two of them, it is the turn of the other connections.
    tokio::task::yield_now().await;
    response
}

fn head_bytes(request: &Request) -> usize {
    let target = request
        .uri()
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    let lines = request.headers().iter();
    lines
        .map(|(name, value)| name.as_str().len() + value.len())
        .sum::<usize>()
        + target
}

fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

/// Turns the framework's own plain-text errors, for example of a query that does not parse, into problems. Returns all other
/// responses unchanged.
async fn as_problem(response: Response) -> Response {
    let status = response.status();
    let kind = response
        .headers()
        .get(CONTENT_TYPE)
        .map(HeaderValue::as_bytes);
    let plain = kind.is_none_or(|kind| kind.starts_with(b"text/plain"));
    if !(status.is_client_error() || status.is_server_error()) || !plain {
        return response;
    }
    let (parts, body) = response.into_parts();
    let text = to_bytes(body, MAX_DETAIL).await.unwrap_or_default();
    let mut problem = match ProblemCode::of_status(status) {
        ProblemCode::Internal => defect(),
        code => Problem::new(code, String::from_utf8_lossy(&text)),
    }
    .into_response();
    for name in [ALLOW, RETRY_AFTER, WWW_AUTHENTICATE] {
        if let Some(value) = parts.headers.get(&name) {
            problem.headers_mut().insert(name, value.clone());
        }
    }
    problem
}

fn panicked(panic: &(dyn Any + Send)) -> Response {
    tracing::error!(reason = panic_text(panic), "request handler failed");
    defect().into_response()
}

/// Returns a problem without details of the bug; the log has them.
fn defect() -> Problem {
    Problem::new(
        ProblemCode::Internal,
        "the request failed; see the server's log",
    )
}

/// Returns the answer to a request whose path has no route.
pub fn unknown_route(method: &Method, path: &str) -> Problem {
    let hint = other_listener(method, path);
    let detail = format!("no route has the path {path}{hint}");
    Problem::new(ProblemCode::UnknownRoute, detail)
}

async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    let path = uri.path();
    let hint = other_listener(&method, path);
    let detail = format!("{path} does not support {method}; see the Allow header{hint}");
    Problem::new(ProblemCode::MethodNotAllowed, detail)
}

/// Names the listener that has the route, for a request that reached another one.
fn other_listener(method: &Method, path: &str) -> &'static str {
    let is_route = |line: &&str| {
        let route = line.split_once(' ').map(|(_, route)| route);
        let (of, pattern) = route
            .and_then(|route| route.split_once(' '))
            .unwrap_or_default();
        let is_part = |(part, given): (&str, &str)| part.starts_with('{') || part == given;
        of == method.as_str()
            && pattern.split('/').count() == path.split('/').count()
            && pattern.split('/').zip(path.split('/')).all(is_part)
    };
    let line = ROUTES.lines().find(is_route).unwrap_or_default();
    match line.split(' ').next() {
        Some("producer") => {
            "; sends, lookups and changes of messages go to a producer (`producer.listen`)"
        }
        Some("gateway") => {
            "; pulls and settlements go to a gateway (`consumer.gateway.listen`), whose address clients need as `gateway`"
        }
        Some("manager") => "; this route belongs to a manager (`manager.listen`)",
        _ => "",
    }
}

/// The routes below `/v1`, each behind the listener that has it. Generated from the OpenAPI descriptions, with the reference.
const ROUTES: &str = include_str!("routes.txt");

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use axum::body::Body;
    use axum::routing::get;
    use futures_util::poll;
    use prometheus_client::registry::Registry;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn after_each_request_it_is_the_turn_of_the_other_connections() {
        let guard = Guard {
            metrics: Metrics::new(Registry::default(), "0", "test"),
            draining: CancellationToken::new(),
            max_header_bytes: 1024,
            cross_site: CrossSite::default(),
        };
        let router = guard.wrap(Router::new().route("/", get(async || "at once")));
        let request = Request::get("/")
            .header(HOST, "localhost")
            .header("authorization", "Bearer x");
        let request = request.body(Body::empty()).unwrap();
        let mut answer = pin!(router.oneshot(request));
        assert!(poll!(&mut answer).is_pending());
        assert_eq!(answer.await.unwrap().status(), 200);
    }

    #[test]
    fn only_the_identity_coding_is_accepted() {
        let check = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_ENCODING, HeaderValue::from_static(value));
            }
            check_coding(&headers).is_ok()
        };
        for accepted in [&[][..], &["identity"], &["Identity, identity"], &["", " "]] {
            assert!(check(accepted), "{accepted:?}");
        }
        for refused in [
            &["gzip"][..],
            &["identity", "gzip"],
            &["identity, br"],
            &["aws-chunked"],
            &["*"],
        ] {
            assert!(!check(refused), "{refused:?}");
        }
    }

    #[test]
    fn a_refusal_by_the_wrong_listener_names_the_right_one() {
        let (get, post) = (Method::GET, Method::POST);
        for (method, path, listener) in [
            (&post, "/v1/topics/t/messages", "producer.listen"),
            (&post, "/v1/deliveries/x/ack", "gateway.listen"),
            (&get, "/v1/topics/t/messages", "manager.listen"),
            (&get, "/v1/unknown", ""),
            // A manager itself refuses these.
            (&Method::DELETE, "/v1/stats", ""),
            (&post, "/v1/topics/t", ""),
            (&get, "/", ""),
        ] {
            let detail = unknown_route(method, path).detail().to_owned();
            assert_eq!(detail.contains("listen"), !listener.is_empty(), "{detail}");
            assert!(detail.contains(listener), "{detail}");
        }
    }
}
