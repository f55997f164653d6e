//! The message brokers that sinks deliver to and sources read from: settings and connections.
//!
//! The settings are always compiled, so that each program can check a configuration. The clients are optional features.

pub mod amqp;
pub mod kafka;
pub mod nats;
pub mod redis_stream;

/// The default number of messages that a source may take before they are accepted.
pub const DEFAULT_PREFETCH: u16 = 500;
