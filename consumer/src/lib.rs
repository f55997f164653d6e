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
