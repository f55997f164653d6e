//! The engine of Lisa: messages, topics, the scripts, and the only code that talks to Redis.
//!
//! It reads no configuration file, serves no HTTP, and knows no metrics registry: metrics go through
//! [`broker::Observer`].

// The macros panic if the output is closed or full. Use `cli::remark` and `cli::print` of `lisa-service`.
#![warn(clippy::print_stdout, clippy::print_stderr)]
// Tests start tasks and share state as they like.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

mod backoff;
pub mod broker;
pub mod causes;
pub mod connect;
mod crc16;
pub mod durability;
pub mod fields;
mod keys;
pub mod message;
pub mod misspelling;
pub mod names;
#[cfg(feature = "openapi")]
pub mod openapi;
pub mod outage;
pub mod percent;
pub mod permissions;
pub mod redis;
pub mod retry;
mod scripts;
pub mod secret;
pub mod small_file;
pub mod state;
pub mod sync;
pub mod task;
pub mod time;
pub mod tls;
pub mod topic;

/// Does nothing: without the feature `openapi`, no type has a schema.
#[cfg(not(feature = "openapi"))]
#[doc(hidden)]
#[macro_export]
macro_rules! openapi_schema {
    ($($any:tt)*) => {};
}

/// Does nothing: without the feature `openapi`, there are no parameters.
#[cfg(not(feature = "openapi"))]
#[doc(hidden)]
#[macro_export]
macro_rules! openapi_query {
    ($($any:tt)*) => {};
}
