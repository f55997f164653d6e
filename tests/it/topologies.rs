//! What each way to run Redis promises: TLS, users with few rights, Sentinel, Cluster. `make conformance` runs these and
//! the scenarios on each of them.

mod harness;
