//! The webhook target: it records each delivery, and answers by the plan of its message.

use crate::journal::Journal;
use crate::plan::{self, Plan};
use crate::record::{Record, now};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Serves on a free loopback port, in `tasks`; returns the port. A consumer posts to the path of its name.
pub(crate) async fn serve(journal: Arc<Journal>, tasks: &mut JoinSet<()>) -> std::io::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let routes = Router::new()
        .route("/{process}", post(receive))
        .with_state(journal);
    tasks.spawn(async move {
        let ended = axum::serve(listener, routes).await;
        panic!("the webhook target ended: {ended:?}");
    });
    Ok(port)
}

/// A status, a header and no body.
type Answer = (StatusCode, Option<[(&'static str, &'static str); 1]>, ());

/// Dropped when its client disconnects: then there is no end, as for a handler that was killed.
async fn receive(
    State(journal): State<Arc<Journal>>,
    Path(process): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Answer {
    let at = now();
    let Some((number, attempt, due, plan)) = read(&headers, &body) else {
        journal.violation(format!("a webhook of {process}: {headers:?} {body:?}"));
        return (StatusCode::BAD_REQUEST, None, ());
    };
    journal.note_at(
        at,
        &Record::Begin {
            number,
            attempt,
            due,
            process: process.clone(),
        },
    );
    let answer = match plan {
        Plan::Work(ms) => {
            if ms > 0 {
                tokio::time::sleep(Duration::from_millis(ms)).await;
            }
            StatusCode::OK
        }
        Plan::Flaky(times) if attempt > times => StatusCode::OK,
        Plan::Hang if attempt == 1 => std::future::pending().await,
        Plan::Hang => StatusCode::OK,
        Plan::Reject => StatusCode::UNPROCESSABLE_ENTITY,
        Plan::Flaky(_) | Plan::Fail | Plan::Panic | Plan::Poison => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    journal.note(&Record::End {
        number,
        attempt,
        process,
        done: answer == StatusCode::OK,
    });
    let rejects = (plan == Plan::Reject).then_some([("lisa-outcome", "reject")]);
    (answer, rejects, ())
}

fn read(headers: &HeaderMap, body: &[u8]) -> Option<(u64, u32, u64, Plan)> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let number = plan::number(text("webhook-id")?)?;
    let attempt = text("lisa-attempt")?.parse().ok()?;
    let due = instant(text("lisa-due-at")?)?;
    Some((number, attempt, due, planned(body)?))
}

/// The plan in a payload, which names it as JSON.
pub(crate) fn planned(payload: &[u8]) -> Option<Plan> {
    let payload: serde_json::Value = serde_json::from_slice(payload).ok()?;
    payload["plan"].as_str()?.parse().ok()
}

/// Reads RFC 3339 as ms.
pub(crate) fn instant(text: &str) -> Option<u64> {
    let at: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(at.as_millisecond()).ok()
}
