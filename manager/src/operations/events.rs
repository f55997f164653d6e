//! Returns the events of a topic as lines of JSON, for HTTP and the command line.

use std::time::Duration;

use lisa_core::broker::{AfterFailure, Event, FailedOutcome};
use lisa_core::time::{UnixMs, millis};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

/// The longest time that a request for events waits.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(20);
/// The longest cursor, in bytes: it is part of a URL.
pub(crate) const MAX_CURSOR: usize = 6000;

/// Events of a topic, ordered by time.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct EventPage {
    #[schema(value_type = Vec<TopicEvent>)]
    pub(crate) events: Vec<Value>,
    /// The cursor of the events that follow.
    pub(crate) next: String,
}

/// An event of a topic. It has no payload.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only describes a line")]
pub(crate) struct TopicEvent {
    /// `ready`: a message became ready for a consumer. `failed`: an attempt failed, and the message is retried or has expired.
    /// `garbage`: an attempt failed, and the message moved to garbage (dead letters). `missed`: events were gone before they were read.
    event: EventKind,
    /// The time of the event; absent from missed events.
    at: Option<String>,
    /// The group; absent from missed failures.
    group: Option<String>,
    /// The id of the message.
    id: Option<String>,
    /// The number of the attempt.
    attempt: Option<u32>,
    /// Of a ready message: the time at which it was due.
    due_at: Option<String>,
    /// Of a ready message: the time from `due_at` to `at`, in milliseconds.
    late_ms: Option<u64>,
    /// Of a failed attempt: the way it ended.
    outcome: Option<FailedOutcome>,
    /// Of a failed attempt: the consumer that held the message, if it is known.
    consumer: Option<String>,
    /// Of a failed attempt: its error, shortened to 200 bytes.
    error: Option<String>,
    /// Of a failed attempt: the consequence for the message.
    then: Option<AfterFailure>,
    /// Of a failed attempt: the time of the next one, if there is one.
    next_attempt_at: Option<String>,
    /// The number of missed events, if it is known.
    count: Option<u64>,
}

#[derive(ToSchema)]
#[serde(rename_all = "lowercase")]
#[expect(dead_code, reason = "only describes a line")]
enum EventKind {
    Ready,
    Failed,
    Garbage,
    Missed,
}

/// Returns an event as a line.
pub(crate) fn line(event: &Event) -> Value {
    let (kind, mut line) = match event {
        Event::Ready { group, id, attempt } => {
            let at = UnixMs::new(attempt.entry.ms());
            let line = json!({
                "at": at.to_string(), "group": group, "id": id, "attempt": attempt.number,
                "due_at": attempt.due.to_string(), "late_ms": millis(at.since(attempt.due)),
            });
            ("ready", line)
        }
        Event::Failed(failure) => match failure.then {
            AfterFailure::Garbage => ("garbage", json!(failure)),
            AfterFailure::Retry | AfterFailure::Expired => ("failed", json!(failure)),
        },
        Event::Missed { group, count } => {
            let mut line = json!({});
            if let Some(group) = group {
                line["group"] = json!(group);
            }
            if let Some(count) = count {
                line["count"] = json!(count);
            }
            ("missed", line)
        }
    };
    line["event"] = json!(kind);
    line
}

#[cfg(test)]
mod tests {
    use lisa_core::message::EntryId;
    use lisa_core::state::Attempt;

    use super::*;

    #[test]
    fn a_line_names_the_event_and_its_fields() {
        let attempt = Attempt {
            entry: EntryId::new(1500, 0),
            number: 2,
            due: UnixMs::new(1000),
            crashes: 0,
            expires: None,
        };
        let ready = Event::Ready {
            group: "billing".parse().unwrap(),
            id: "m".parse().unwrap(),
            attempt,
        };
        let expected = json!({
            "event": "ready", "at": "1970-01-01T00:00:01.500Z", "group": "billing", "id": "m", "attempt": 2,
            "due_at": "1970-01-01T00:00:01.000Z", "late_ms": 500,
        });
        assert_eq!(line(&ready), expected);
        let missed = |group: Option<&str>, count| {
            let group = group.map(|group| group.parse().unwrap());
            line(&Event::Missed { group, count })
        };
        let expected = json!({ "event": "missed", "group": "billing", "count": 3 });
        assert_eq!(missed(Some("billing"), Some(3)), expected);
        assert_eq!(missed(None, None), json!({ "event": "missed" }));
    }
}
