//! Bounds routes that only read: how long one takes, and how many run at a time.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::problem::{Problem, ProblemCode};

/// How long a read may take, waiting for its turn included.
const READ_WITHIN: Duration = Duration::from_secs(2);
/// Reads of one listener at a time.
const CONCURRENT_READS: usize = 32;

/// The bounds of a listener's routes that only read. A cheap clone, which shares them.
#[derive(Clone, Debug)]
pub struct Reads {
    permits: Arc<Semaphore>,
    within: Duration,
}

impl Default for Reads {
    fn default() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(CONCURRENT_READS)),
            within: READ_WITHIN,
        }
    }
}

impl Reads {
    /// Answers a read in time; put it on routes with [`axum::middleware::from_fn_with_state`].
    ///
    /// Whatever goes wrong with Redis, the answer is `unavailable`: a read leaves nothing half done.
    pub async fn bound(State(reads): State<Self>, request: Request, next: Next) -> Response {
        let until = Instant::now() + reads.within;
        let unavailable =
            |detail: &str| Problem::new(ProblemCode::Unavailable, detail).into_response();
        let Ok(Ok(_permit)) = timeout_at(until, reads.permits.acquire()).await else {
            return unavailable("too many reads at a time");
        };
        match timeout_at(until, next.run(request)).await {
            Ok(response) if response.extensions().get() == Some(&ProblemCode::Indeterminate) => {
                unavailable("Redis did not answer")
            }
            Ok(response) => response,
            Err(_) => unavailable("Redis did not answer in time"),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use tokio::sync::Notify;
    use tower::ServiceExt;

    use super::*;

    /// The status of a route's answer, whether it says when to come back, and the body.
    async fn ask(router: &Router, path: &str) -> (u16, bool, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, 10_000).await.unwrap();
        let comes_back = parts.headers.contains_key("retry-after");
        let body = String::from_utf8(body.to_vec()).unwrap();
        (parts.status.as_u16(), comes_back, body)
    }

    fn reads(permits: usize) -> Reads {
        Reads {
            permits: Arc::new(Semaphore::new(permits)),
            within: Duration::from_millis(20),
        }
    }

    fn router(reads: &Reads, go_on: Arc<Notify>) -> Router {
        let lost = || async { Problem::new(ProblemCode::Indeterminate, "repeat it") };
        let slow = async move || {
            go_on.notified().await;
            "done"
        };
        Router::new()
            .route("/lost", get(lost))
            .route("/slow", get(slow))
            .route_layer(from_fn_with_state(reads.clone(), Reads::bound))
    }

    #[tokio::test]
    async fn a_read_that_redis_does_not_answer_is_unavailable_and_never_indeterminate() {
        let router = router(&reads(1), Arc::default());
        for path in ["/lost", "/slow"] {
            let (status, comes_back, body) = ask(&router, path).await;
            assert_eq!((status, comes_back), (503, true), "{path}");
            assert!(body.contains(r#""code":"unavailable""#), "{body}");
        }
    }

    #[tokio::test]
    async fn more_reads_than_may_run_wait_for_their_turn_and_are_refused_in_time() {
        let go_on = Arc::new(Notify::new());
        let mut reads = reads(1);
        let busy = router(&reads, go_on.clone());
        let held = reads.permits.clone().acquire_owned().await.unwrap();
        let (status, comes_back, body) = ask(&busy, "/slow").await;
        assert_eq!((status, comes_back), (503, true));
        assert!(body.contains("too many reads"), "{body}");
        drop(held);
        go_on.notify_one();
        reads.within = READ_WITHIN;
        let (status, ..) = ask(&router(&reads, go_on), "/slow").await;
        assert_eq!((status, reads.permits.available_permits()), (200, 1));
    }
}
