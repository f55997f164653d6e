//! Message brokers that sinks deliver to and sources take from: how to connect to each.
//!
//! The settings are always compiled, so that each program can check a configuration; the clients are optional features.

pub mod amqp;
pub mod kafka;
pub mod nats;
pub mod redis_stream;
