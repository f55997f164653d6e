//! Reads messages through consumer groups, runs handlers, settles what they say: the library behind `lisa-consumer`.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use lisa_consumer::{Consumer, Context, handler_fn};
//! # async fn example(broker: lisa_shared::broker::Broker) -> Result<(), Box<dyn std::error::Error>> {
//!
//! let report = Consumer::builder(broker)
//!     .group("billing")
//!     .topic("orders", handler_fn(|order: u64, _: Context| async move {
//!         println!("order {order} is due");
//!     }))
//!     .concurrency(64)
//!     .handler_timeout(Duration::from_secs(60))
//!     .build()?
//!     .run()
//!     .with_graceful_shutdown(async { _ = tokio::signal::ctrl_c().await })
//!     .await?;
//! println!("{} acked", report.acked);
//! # Ok(())
//! # }
//! ```
//!
//! It neither moves nor reclaims; that is the manager's.

pub mod cli;
mod consumer;
mod deliver;
mod feed;
mod fetch;
pub mod handler;
mod lease;
mod notices;
mod payloads;
mod presence;
mod report;
mod settle;
pub mod sinks;
mod subscription;
mod suspects;

pub use consumer::{Builder, Consumer, ConsumerError, DEFAULT_CONCURRENCY, DEFAULT_GRACE, Run};
pub use handler::{
    Context, Delivery, Handler, IntoOutcome, LeaseLost, MAX_RUN, Outcome, delivery_fn, handler_fn,
};
pub use report::RunReport;
pub use subscription::Subscription;
