//! What strangers send to the listeners: half of everything, too much of everything, and nonsense. Whatever it is, it is
//! answered with a 4xx or closed within a bound, the process stays small, and whoever behaves is served meanwhile.
//!
//! The listener's own tests are beside its code; here are the real programs, with many clients at a time.

mod bodies;
mod browsers;
mod crowds;
mod framing;
mod heads;
mod logs;
mod tokens;
mod victim;

use std::time::Duration;

use victim::{Answer, Victim};

/// How long what should be quick may take on a small and busy machine.
const SOON: Duration = Duration::from_secs(20);
