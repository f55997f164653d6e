//! Handles the messages of Lisa, a delayed message queue on Redis Streams.
//!
//! A [`Consumer`] reads due messages through consumer groups, runs a [`Handler`] for each, and settles its [`Outcome`]:
//! acknowledge, retry with exponential backoff, defer, or reject. Delivery is at least once. A message that fails for good
//! goes to garbage (dead letters), where it can be listed, requeued and purged. The lease (visibility timeout) of a running
//! handler is renewed automatically.
//!
//! This crate does not send messages: `lisa-producer` does. It neither moves due messages to their streams nor reclaims
//! expired leases: at least one `lisa-manager` must run.
//!
//! ```no_run
//! use lisa_consumer::{Consumer, Context, handler_fn};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let remind = handler_fn(|order: u64, context: Context| async move {
//!     println!("order {order} is due, attempt {}", context.attempt());
//! });
//! let report = Consumer::connect("redis://127.0.0.1:6379").await?
//!     .topic("reminders", remind)
//!     .concurrency(64)
//!     .build()?
//!     .run()
//!     .with_graceful_shutdown(async { _ = tokio::signal::ctrl_c().await })
//!     .await?;
//! println!("{} messages acknowledged", report.acked);
//! # Ok(())
//! # }
//! ```
//!
//! Runnable programs are in `consumer/examples` of the repository: `handle` and `dead_letters`.
//!
//! # Cargo features
//!
//! None is enabled by default.
//!
//! | feature | adds |
//! |---|---|
//! | `sink-stdout` | `sinks::StdoutSink`, a handler that prints each delivery as a line of JSON |
//! | `sink-http` | `sinks::HttpSink`, a handler that posts each delivery to a URL (webhook) |
//! | `sink-command` | `sinks::CommandSink`, a handler that starts a program for each delivery |
//! | `sink-redis-stream` | `sinks::RedisStreamSink`, a handler that appends each delivery to a stream in any Redis |
//! | `sink-amqp` | `sinks::AmqpSink`, a handler that publishes each delivery to RabbitMQ |
//! | `sink-nats` | `sinks::NatsSink`, a handler that publishes each delivery to NATS JetStream |
//! | `sink-kafka` | `sinks::KafkaSink`, a handler that publishes each delivery to Kafka |
//! | `kafka-tls` | TLS and SCRAM for `KafkaSink`; needs OpenSSL and its headers |
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
// Tests start tasks and share state as they like.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

mod callbacks;
#[cfg(feature = "cli")]
pub mod cli;
mod consumer;
mod delivery;
mod error;
#[cfg(feature = "gateway")]
pub mod gateway;
#[cfg(doc)]
pub mod guide;
pub mod handler;
mod outcome;
mod process;
mod report;
#[cfg(any(
    feature = "sink-stdout",
    feature = "sink-http",
    feature = "sink-command",
    feature = "sink-redis-stream",
    feature = "sink-amqp",
    feature = "sink-nats",
    feature = "sink-kafka"
))]
pub mod sinks;
mod subscription;
mod suspects;
pub mod target;
#[cfg(any(feature = "gateway", feature = "sink-http"))]
mod token;
mod worker;
mod workers;

pub use consumer::{Builder, Consumer, DEFAULT_GRACE, Run};
pub use delivery::{Context, Delivery, LeaseLost, MAX_RUN};
pub use error::ConsumerError;
pub use handler::{Handler, delivery_fn, handler_fn};
pub use outcome::{IntoOutcome, Outcome};
pub use report::RunReport;
pub use subscription::{DEFAULT_CONCURRENCY, Subscription};

pub use async_trait::async_trait;
pub use lisa_core::broker::Broker;
pub use lisa_core::connect::{ConnectError, ConnectOptions};
pub use lisa_core::message::{EntryId, HeaderName, HeaderValue, Headers, MessageId};
pub use lisa_core::redis::{ConnectionSettings, RedisUrl, TlsSettings};
pub use lisa_core::secret::Secret;
pub use lisa_core::state::GarbageReason;
pub use lisa_core::time::{UnixMs, When};
pub use lisa_core::topic::{Group, InvalidName, Namespace, Topic, TopicOf};
pub use lisa_service::metrics::Metrics;
pub use lisa_service::shutdown::Shutdown;
pub use lisa_service::supervise::Supervisor;
