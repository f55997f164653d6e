#![doc = include_str!("../README.md")]
//!
//! Runnable programs are in `producer/examples` of the repository: `send`, `ordering`, `debounce` and `axum_app`.
//!
//! # Cargo features
//!
//! None is enabled by default.
//!
//! | feature | adds |
//! |---|---|
//! | `http` | `http::router`, the HTTP interface as an axum router |
//! | `cli` | the binary `lisa-producer`, and `http` |
//! | `source-amqp`, `source-nats`, `source-kafka` | sources of the binary, which take messages off message brokers |
//! | `brokers` | all sources |
//!
//! # Guides
//!
//! - [`guide::ordering`]: deliver the messages of a key one at a time, in order
//! - [`guide::merging`]: debounce, throttle and collapse messages
//! - [`guide::priority`]: deliver urgent messages first
//! - [`guide::limits`]: rate limits, queue limits and pause
//! - [`guide::expiry`]: time to live and lateness
//! - [`guide::changing`]: cancel, reschedule, replace and look up messages
//! - [`guide::shards`]: shards and resharding
//!
//! The book in `shared/docs` of the repository has more, such as `guides/durability.md`, `guides/http.md`,
//! `guides/recurring.md` and `reference/guarantees.md`.

// The macros panic if the output is closed or full. Use `cli::remark` and `cli::print` of `lisa-service`.
#![warn(clippy::print_stdout, clippy::print_stderr)]
// Tests start tasks and share state as they like.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

mod admission;
#[cfg(feature = "http")]
mod batch_line;
mod batcher;
mod by_key;
#[cfg(feature = "cli")]
pub mod cli;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(doc)]
pub mod guide;
#[cfg(feature = "http")]
pub mod http;
mod message;
mod message_ref;
mod producer;
mod receipt;
#[cfg(feature = "http")]
pub mod sources;
mod spans;
mod stored;

pub use by_key::KeyOutcome;
pub use error::{InvalidField, SendError};
pub use message::NewMessage;
pub use message_ref::MessageRef;
pub use producer::{Producer, ProducerOptions, SendBuilder};
pub use receipt::Receipt;
pub use stored::{CancelOutcome, GetOutcome};

pub use lisa_core::broker::{
    Broker, FailedAttempt, FailedOutcome, ListedMessage, MessageInGroup, Payload, StoredMessage,
};
pub use lisa_core::connect::{ConnectError, ConnectOptions};
pub use lisa_core::durability::Durability;
pub use lisa_core::message::{
    HeaderName, HeaderValue, Headers, MergeKey, MessageId, MessageOptions, OrderingKey, Record,
};
pub use lisa_core::redis::{ConnectionSettings, RedisUrl, TlsSettings};
pub use lisa_core::retry::RetryPolicy;
pub use lisa_core::secret::Secret;
pub use lisa_core::state::{Blocked, End, GarbageReason, RescheduleOutcome, SendOutcome, State};
pub use lisa_core::time::{UnixMs, When};
pub use lisa_core::topic::{
    GarbageSettings, Group, InvalidName, Merge, MergeBy, Namespace, OnExpired, OnGarbage, OnLate,
    Rate, Size, Topic, TopicOf, TopicSettings,
};
pub use lisa_service::metrics::Metrics;
pub use lisa_service::spans::{ProcessContext, SpanOptions, Spans};
