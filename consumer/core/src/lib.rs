//! The part of `lisa-consumer` that reads, handles and settles messages.
//!
//! Use `lisa-consumer` instead. It re-exports the public items of this crate, and of the sinks and the gateway, which are
//! separate crates built on this one.

// The macros panic if the output is closed or full. Use `cli::remark` and `cli::print` of `lisa-service`.
#![warn(clippy::print_stdout, clippy::print_stderr)]
// Tests start tasks and share state as they like.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

mod callbacks;
mod consumer;
mod delivery;
mod error;
pub mod handler;
mod outcome;
mod process;
mod report;
mod resting;
mod shared_reads;
mod subscription;
mod suspects;
pub mod target;
#[cfg(feature = "tokens")]
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
pub use lisa_service::spans::{ProcessContext, SpanOptions, Spans};
pub use lisa_service::supervise::Supervisor;

/// Items for the sinks, the gateway and the command line. They are not part of the public API and may change at any time.
#[doc(hidden)]
pub mod internals {
    pub use crate::consumer::start_settings;
    pub use crate::process::Process;
    pub use crate::report::Counters;
    pub use crate::resting::rest_pause;
    pub use crate::shared_reads::SharedReads;
    #[cfg(feature = "tokens")]
    pub use crate::token::{CONFIRM_EVERY, Claims, KeyCache, KeyError, TokenKey};
    pub use crate::worker::deliver::{decode, delivery, is_over, verdict};
    pub use crate::worker::fetch::{BLOCK, Reading, Source, read};
    pub use crate::worker::later::SHORTEST as SHORTEST_COMPLETION;
    pub use crate::worker::payload_limits::{Payloads, Sizes};
    pub use crate::worker::payloads::{Fetch, Part};
}
