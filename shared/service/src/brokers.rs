//! The message brokers that sinks deliver to and sources read from: settings and connections.
//!
//! The settings are always compiled, so that each program can check a configuration. The clients are optional features.

pub mod amqp;
pub mod kafka;
pub mod nats;
pub mod redis_stream;

use std::ops::RangeInclusive;
use std::time::Duration;

/// The time limits that a connection may have.
pub const CONNECT_TIMEOUTS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_mins(1);
/// The time limits that a delivery to a broker may have.
pub const DELIVERY_TIMEOUTS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_hours(1);
/// The default number of messages that a source may take before they are accepted.
pub const DEFAULT_PREFETCH: u16 = 500;
/// The numbers of messages that a source may take before they are accepted.
pub const PREFETCHES: RangeInclusive<u16> = 1..=10_000;

/// Returns the name under which a source is known to its broker, unless the configuration has one.
fn name_at_broker(given: Option<&str>, source: &str) -> String {
    given.map_or_else(|| format!("lisa-{source}"), str::to_owned)
}
