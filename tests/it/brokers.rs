//! The promises of sinks and sources on real message brokers. `make brokers` runs these tests, with the long ones.

mod servers;

use std::time::Duration;

/// The limit for everything without a promise: generous, since CI machines are small and busy.
const SOON: Duration = Duration::from_secs(60);
