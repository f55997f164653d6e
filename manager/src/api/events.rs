//! Returns the events of a topic, and waits for them.

use std::time::Duration;

use crate::operations::past_time::PastTime;
use axum::Json;
use axum::extract::{Path, State as With};
use lisa_core::broker::{EventCursor, TailOptions, TailStart};
use lisa_core::fields;
use lisa_service::http::{Problem, Query, TopicPath, ends_with_client};
use tokio::time::{Instant, sleep};

use super::{Api, invalid};
use crate::operations::events::{EventPage, MAX_CURSOR, MAX_WAIT, line};

/// The time between two checks of the streams.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The shortest part of a stream in a cursor, in bytes, once the stream has an entry.
const SHORTEST: usize = "0..1700000000000-0.1.0".len();

fields! {
    #[derive(Clone, Debug)]
    pub(super) struct EventsQuery, query {
        /// Only events of this group.
        group: Option<String> = None;
        /// True to omit messages that become ready.
        failures: bool = false;
        /// Without a cursor: start with the kept failures at or after this time.
        since: Option<PastTime> = None;
        /// `next` of the previous response, with the same other parameters. Up to 6,000 bytes.
        cursor: Option<EventCursor> = None;
        /// The longest time to wait for an event.
        wait: Duration = Duration::ZERO, in Duration::ZERO..=MAX_WAIT;
    }
}

/// Returns the messages of a topic that become ready, and failed attempts. Payloads are not included.
///
/// The first request returns a cursor. Each further request returns up to about 1,000 events that follow its cursor, or waits for them. Messages that become ready and are settled before they are read are only counted.
#[utoipa::path(get, operation_id = "list_events", path = "/v1/topics/{topic}/events", tag = "topics",
    params(TopicPath, EventsQuery),
    responses((status = 200, description = "The events, and the cursor of those that follow", body = EventPage), (status = 404, description = "unknown_topic, or not_found: no such group"),
        (status = 503, description = "unavailable: Redis does not answer, the server is shutting down, 16 such requests are running, or 4 of this client; retry later")))]
pub(super) async fn list(
    With(api): With<Api>,
    Path(path): Path<TopicPath>,
    Query(mut query): Query<EventsQuery>,
) -> Result<Json<EventPage>, Problem> {
    let mut cursor = query.cursor.take();
    let until = Instant::now() + query.wait;
    if !query.wait.is_zero() {
        // It occupies one of few slots.
        ends_with_client();
    }
    let is_first = cursor.is_none();
    loop {
        // The topic may have new groups and shards.
        let topic = api.topic(&path.topic).await?;
        let group = query.group.as_deref().map(|name| Api::group(&topic, name));
        let options = TailOptions {
            group: group.transpose()?.cloned(),
            ready: !query.failures,
            start: query
                .since
                .map_or(TailStart::Now, |since| TailStart::Since(since.0)),
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
