//! Returns the events of a topic, and waits for them.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State as With};
use lisa_core::broker::{EventCursor, TailOptions, TailStart};
use lisa_service::http::{Problem, ends_with_client};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::query::{Fields, duration, value};
use super::{Api, invalid};
use crate::operations::events::{EventPage, MAX_CURSOR, MAX_WAIT, line};

/// The time between two checks of the streams.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The shortest part of a stream in a cursor, in bytes, once the stream has an entry.
const SHORTEST: usize = "0..1700000000000-0.1.0".len();

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventsQuery {
    group: Option<String>,
    #[serde(default)]
    failures: bool,
    since: Option<String>,
    cursor: Option<String>,
    wait: Option<String>,
}

/// Returns the messages of a topic that become ready, and failed attempts. Payloads are not included.
///
/// The first request returns a cursor. Each further request returns up to about 1,000 events that follow its cursor, or waits for them. Messages that become ready and are settled before they are read are only counted.
#[utoipa::path(get, operation_id = "list_events", path = "/v1/topics/{topic}/events", tag = "topics",
    params(("topic" = String, Path, description = "The topic"),
        ("group" = Option<String>, Query, description = "Only events of this group"),
        ("failures" = Option<bool>, Query, description = "True to omit messages that become ready"),
        ("since" = Option<String>, Query, description = "Without a cursor: start with the kept failures at or after this time (RFC 3339)"),
        ("cursor" = Option<String>, Query, max_length = 6000, description = "`next` of the previous response, with the same other parameters"),
        ("wait" = Option<String>, Query, description = "The longest time to wait for an event, up to `20s`. Default: `0s`")),
    responses((status = 200, description = "The events, and the cursor of those that follow", body = EventPage), (status = 404, description = "unknown_topic, or not_found: no such group"),
        (status = 503, description = "unavailable: Redis does not answer, the server is shutting down, 16 such requests are running, or 4 of this client; retry later")))]
pub(super) async fn list(
    With(api): With<Api>,
    Path(topic): Path<String>,
    Fields(query): Fields<EventsQuery>,
) -> Result<Json<EventPage>, Problem> {
    let wait = duration("wait", query.wait.as_ref())?.unwrap_or_default();
    if wait > MAX_WAIT {
        return Err(invalid("wait", &"must be at most 20s"));
    }
    let since = value("since", query.since.as_ref())?;
    let mut cursor = value::<EventCursor>("cursor", query.cursor.as_ref())?;
    let name = topic;
    let until = Instant::now() + wait;
    if !wait.is_zero() {
        // It occupies one of few slots.
        ends_with_client();
    }
    let is_first = cursor.is_none();
    loop {
        // The topic may have new groups and shards.
        let topic = api.topic(&name).await?;
        let group = query.group.as_deref().map(|name| Api::group(&topic, name));
        let options = TailOptions {
            group: group.transpose()?.cloned(),
            ready: !query.failures,
            start: since.map_or(TailStart::Now, TailStart::Since),
        };
        // Not after reads that are then in vain.
        if options.streams(&topic) * SHORTEST > MAX_CURSOR {
            return Err(too_many_streams());
        }
        let read = api.broker.events(&topic, &options, cursor);
        let (events, next) = api.reads.run(read).await??;
        let text = next.to_string();
        if text.len() > MAX_CURSOR {
            return Err(too_many_streams());
        }
        let left = until.saturating_duration_since(Instant::now());
        let is_draining = api.shutdown.draining().is_cancelled();
        if !events.is_empty() || is_first || left.is_zero() || is_draining {
            return Ok(Json(EventPage {
                events: events.iter().map(line).collect(),
                next: text,
            }));
        }
        cursor = Some(next);
        let pause = sleep(LOOK_EVERY.min(left));
        api.shutdown.draining().run_until_cancelled(pause).await;
    }
}

fn too_many_streams() -> Problem {
    let why = "the topic has too many shards and groups for one cursor; choose one group, or run lisa-manager tail with access to Redis";
    invalid("group", &why)
}
