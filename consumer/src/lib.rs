#![doc = include_str!("../README.md")]
//!
//! Runnable programs are in `consumer/examples` of the repository: `handle` and `dead_letters`.
//!
//! # Cargo features
//!
//! None is enabled by default.
//!
//! | feature | adds |
//! |---|---|
//! | `sink-…` | a sink of this name in `sinks`: `stdout`, `http`, `command`, `redis-stream`, `amqp`, `nats`, `kafka` |
//! | `kafka-tls` | TLS and SCRAM for the sink `kafka`; needs OpenSSL and its headers |
//! | `brokers` | `sink-amqp`, `sink-nats` and `sink-kafka` |
//! | `gateway` | `gateway::Gateway`, from which workers in any language pull messages over HTTP |
//! | `cli` | the binary `lisa-consumer`, and all sinks except those of `brokers` |
//!
//! # Guides
//!
//! - [`guide::handlers`]: retries, backoff, dead letters and poison messages
//! - [`guide::groups`]: consumer groups and fan-out
//!
//! The book in `shared/docs` of the repository has more, such as `guides/webhooks.md`, `guides/callbacks.md`,
//! `guides/testing-your-app.md` and `reference/guarantees.md`.

// The macros panic if the output is closed or full. Use `cli::remark` and `cli::print` of `lisa-service`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(doc)]
pub mod guide;

pub use lisa_consumer_core::*;
#[cfg(feature = "gateway")]
pub use lisa_consumer_gateway as gateway;
#[cfg(feature = "sinks")]
pub use lisa_consumer_sinks as sinks;
