//! The HTTP plumbing of every role: a listener that slow, greedy or broken clients cannot hurt.
//!
//! Knows connections, bodies, errors, tokens and the operators' endpoints; the routes themselves
//! belong to the roles.

pub mod auth;
pub mod body;
mod cross_site;
mod guard;
pub mod ops;
pub mod problem;
mod reads;
mod serve;
mod socket;
mod stream;

use std::time::Duration;

pub use cross_site::{CrossSite, HostName, InvalidHostName, InvalidOrigin, Origin};
pub use problem::{Problem, ProblemCode};
pub use reads::Reads;
pub use serve::serve;
pub use socket::Socket;

/// What one listener puts up with.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Connections served at a time; further ones wait, all but one in the operating system's queue.
    pub max_connections: usize,
    /// While others wait: the age from which a connection is closed after its response, and the longest time in which it
    /// may take 256 KiB of that.
    pub turn: Duration,
    /// Longest time from the first byte of a request to the end of its headers; for the first
    /// request, from the accept.
    pub header_timeout: Duration,
    /// Longest time a kept-alive connection may stay idle between requests.
    pub idle_timeout: Duration,
    /// Longest time a client may refuse to take any byte of a response.
    pub write_timeout: Duration,
    /// After a request whose body was not read to its end: how long the rest is thrown away, so
    /// that the client sees the response instead of a reset.
    pub linger: Duration,
    /// Bytes of the request target and all header names and values together. Their number is
    /// bounded too: at most 100 lines.
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
