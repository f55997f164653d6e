//! The runtime of every Lisa process: configuration, HTTP, metrics, logs, supervision and shutdown.
//!
//! A program that embeds a producer or a consumer needs only metrics, supervision and shutdown. The feature `process` adds
//! the parts that a separate process needs, and `cli` the verbs that every program has.

// The macros panic if the output is closed or full. Use `cli::remark` and `cli::print` of `lisa-service`.
#![warn(clippy::print_stdout, clippy::print_stderr)]
// Tests start tasks and share state as they like.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

#[cfg(feature = "process")]
pub mod audit;
pub mod brokers;
pub mod callbacks;
#[cfg(feature = "cli")]
pub mod cli;
pub mod command;
#[cfg(feature = "process")]
pub mod config;
#[cfg(feature = "process")]
pub mod cron;
#[cfg(feature = "process")]
pub mod http;
pub mod metrics;
pub mod panics;
#[cfg(feature = "process")]
pub mod recurring;
pub mod report;
#[cfg(feature = "process")]
pub mod role;
mod settings;
pub mod shutdown;
pub mod spans;
pub mod supervise;
pub mod targets;
#[cfg(feature = "process")]
pub mod telemetry;
pub mod template;
pub mod webhook;
