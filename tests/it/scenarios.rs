//! The promises to users, seen from outside: the real binaries as processes on a private Redis, killed, frozen, cut off
//! and fed with nonsense. Each test ends with the check that every message is in exactly one state.
//!
//! Single scripts and modules are tested closer to their code.

mod bad_input;
mod broadcast;
mod by_key;
mod callbacks;
mod changing;
mod checks;
mod combined;
mod crash;
pub(crate) mod deployment;
mod expiry;
mod frozen;
mod groups;
mod import;
mod interfaces;
mod journal;
mod keys;
mod killed_midway;
mod kills;
mod limits;
mod lost_logs;
mod merging;
mod ordering;
mod outage;
mod poison;
mod priority;
mod recurring;
mod resharding;
mod rolling;
mod separate;
mod shards;
mod shutdown;
mod startup;
mod tail;
pub(crate) mod targets;
mod together;
mod tokens;
mod verbs;
mod webhook;
mod workers;
mod wrong_type;

pub(crate) use deployment::{Deployment, Role};
use lisa_tests::SOON;
use serde_json::Value;
use std::collections::HashMap;
use std::time::Duration;

/// One line that the `stdout` sink printed.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    id: String,
    attempt: u64,
    due_at: String,
    lateness_ms: i64,
    payload: String,
}

impl Line {
    /// Reads a line that has just come, and checks that it is not early: by what it says, and by the host's clock,
    /// which is also that of the Redis of these tests.
    #[track_caller]
    fn read(text: &str) -> Self {
        let json: Value =
            serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let instant = |name: &str| millis(json[name].as_str().unwrap_or_default());
        let (due, delivered) = (instant("due_at"), instant("delivered_at"));
        let lateness_ms = json["lateness_ms"].as_i64().unwrap_or(i64::MIN);
        assert_eq!(lateness_ms, delivered - due, "{text}");
        assert!(delivered >= due, "early by its own account: {text}");
        let now = jiff::Timestamp::now().as_millisecond();
        assert!(now >= due, "early, it is {now}: {text}");
        Self {
            id: json["id"].as_str().unwrap_or_default().to_owned(),
            attempt: json["attempt"].as_u64().unwrap_or_default(),
            due_at: json["due_at"].as_str().unwrap_or_default().to_owned(),
            lateness_ms,
            payload: json["payload"].as_str().unwrap_or_default().to_owned(),
        }
    }

    /// The time of the delivery, in ms since the epoch.
    fn delivered_at(&self) -> i64 {
        millis(&self.due_at) + self.lateness_ms
    }
}

/// An instant of an answer, in ms since the epoch.
#[track_caller]
fn millis(rfc3339: &str) -> i64 {
    let instant: jiff::Timestamp = rfc3339
        .parse()
        .unwrap_or_else(|error| panic!("{rfc3339:?}: {error}"));
    instant.as_millisecond()
}

/// Reads the next `count` lines of a consumer with the `stdout` sink.
pub(crate) async fn lines(consumer: &mut Role, count: usize, call_timeout: Duration) -> Vec<Line> {
    let deadline = tokio::time::Instant::now() + call_timeout;
    let mut lines = Vec::with_capacity(count);
    while lines.len() < count {
        let left = deadline.saturating_duration_since(tokio::time::Instant::now());
        assert!(!left.is_zero(), "{} of {count} lines came", lines.len());
        lines.push(Line::read(&consumer.process.next_line(left).await));
    }
    lines
}

/// Returns how often each id came.
fn by_id(lines: &[Line]) -> HashMap<&str, usize> {
    let mut times = HashMap::new();
    for line in lines {
        *times.entry(line.id.as_str()).or_default() += 1;
    }
    times
}
