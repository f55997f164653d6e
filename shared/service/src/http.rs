//! The HTTP layer of every role: a listener that slow, greedy or broken clients cannot harm.
//!
//! Handles connections, bodies, errors, tokens and the operational endpoints. All other routes belong to the roles.

mod accept;
pub mod auth;
pub mod batch;
pub mod body;
pub mod client;
mod cross_site;
mod description;
mod failure;
mod fields;
mod guard;
#[cfg(feature = "http2")]
mod http2;
pub mod json;
pub mod ops;
pub mod problem;
mod reads;
mod serve;
pub mod share;
mod socket;
mod stream;
pub mod tls;
mod unread;

use std::time::Duration;

pub use cross_site::{CrossSite, HostName, InvalidHostName, InvalidOrigin, Origin};
pub use description::{
    GroupPath, MessagePath, SchedulePath, TokenPath, TopicPath, WithoutQuery, describe,
    header_name, with_description,
};
pub use fields::{Query, read_fields, read_fields_over, read_object};
pub use guard::{SQS_ROUTES, check_coding, names_action, unknown_route};
#[cfg(feature = "http2")]
pub use http2::{admit_connection, serve_http2};
pub use problem::{Problem, ProblemCode};
pub use reads::{ReadSlot, Reads};
pub use serve::{Routes, serve};
pub use socket::Socket;
pub use stream::ends_with_client;
pub use unread::Unread;

/// The description of the header `Lisa-Key` of a request about one message.
pub const KEY_OF_MESSAGE: &str = "The ordering key of the message, or its merge key if it has no ordering key: finds a message with a caller-supplied id directly, without querying every shard";

/// The limits of one listener.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// The number of connections served at a time. Further ones wait, all but one in the operating system's queue.
    pub max_connections: usize,
    /// While other clients wait: the age from which a connection is closed after its current response, and the longest time
    /// in which its client must read each 256 KiB of that response.
    pub turn: Duration,
    /// The longest time from the first byte of a request to the end of its headers. For the first request, it starts when
    /// the connection is served.
    pub header_timeout: Duration,
    /// The longest time that a connection may stay idle between requests.
    pub idle_timeout: Duration,
    /// The longest time in which a client reads no byte of a response.
    pub write_timeout: Duration,
    /// The longest time for discarding the rest of a request body that was not read to its end. Otherwise the client could
    /// see a reset instead of the response.
    pub linger: Duration,
    /// The maximum size of the request target and all header names and values together, in bytes. At most 100 header lines
    /// are allowed, too.
    pub max_header_bytes: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            max_connections: 10_000,
            turn: Duration::from_secs(10),
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            linger: Duration::from_secs(10),
            max_header_bytes: 16 * 1024,
        }
    }
}

#[cfg(test)]
mod tests;
