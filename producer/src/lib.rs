//! Accepts messages for later delivery: the library behind `lisa-producer`, its HTTP interface and its command line.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! let producer = lisa_producer::Producer::connect("redis://127.0.0.1:6379").await?;
//! let receipt = producer
//!     .send("orders", &serde_json::json!({"order": 7}))
//!     .delay(Duration::from_secs(30 * 60))
//!     .id("order-7-timeout")
//!     .await?;
//! println!("{} is {}", receipt.id, receipt.outcome);
//! producer.cancel("orders", "order-7-timeout").await?;
//! # Ok(())
//! # }
//! ```

pub mod api;
mod by_key;
pub mod cli;
mod error;
mod fields;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod lanes;
mod line;
mod message_ref;
mod outgoing;
mod producer;
mod receipt;
mod stored;

pub use by_key::KeyOutcome;
pub use error::{Invalid, SendError};
pub use message_ref::MessageRef;
pub use outgoing::Outgoing;
pub use producer::{Producer, ProducerOptions, SendBuilder};
pub use receipt::Receipt;
pub use stored::{CancelOutcome, GetOutcome, StoredMessage};

pub use lisa_shared::broker::DeadLetter;
pub use lisa_shared::durability::Durability;
pub use lisa_shared::message::{Headers, MergeKey, MessageId, OrderingKey, Record};
pub use lisa_shared::retry::RetryPolicy;
pub use lisa_shared::state::{Blocked, End, GarbageReason, RescheduleOutcome, SendOutcome, State};
pub use lisa_shared::time::{UnixMs, When};
pub use lisa_shared::topic::{Topic, TopicSettings};

/// The examples of the documentation, which must compile.
#[cfg(doctest)]
#[doc = include_str!("../../shared/docs/ordering.md")]
#[doc = include_str!("../../shared/docs/merging.md")]
#[doc = include_str!("../../shared/docs/priority.md")]
#[doc = include_str!("../../shared/docs/limits.md")]
#[doc = include_str!("../../shared/docs/expiry.md")]
#[doc = include_str!("../../shared/docs/changing.md")]
#[doc = include_str!("../../shared/docs/shards.md")]
struct Documentation;
