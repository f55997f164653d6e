//! What each way to run Redis promises: TLS, users with few rights, Sentinel, Cluster. `make conformance` runs these and
//! the scenarios on each of them.

mod harness;
mod tls;
mod users;

use std::time::Duration;

/// For what has no promise: generous, since CI machines are small and busy.
const SOON: Duration = Duration::from_secs(20);
