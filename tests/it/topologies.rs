//! The promises of each way to run Redis: TLS, users with few rights, Sentinel, Cluster. `make conformance` runs these
//! and the scenarios on each of them.

mod cluster;
mod harness;
mod load;
mod managers;
mod migrating;
mod removal;
mod reshard;
mod sentinel;
mod slots;
mod tls;
mod users;

use lisa_tests::SOON;

/// Returns whether tests may take half a minute: `LISA_TEST_LONG=1`, as `make conformance` sets it.
pub(crate) fn is_long() -> bool {
    std::env::var("LISA_TEST_LONG").is_ok_and(|value| value == "1")
}
