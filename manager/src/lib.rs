//! The manager of a delay relay: moves due messages to their streams, takes back deliveries whose lease is over, cleans,
//! and answers operators.
//!
//! Any number of managers may run; they share the work without a leader, and each may be killed at any point.

mod api;
pub mod cli;
pub mod combined;
pub mod dev;
mod garbage;
mod giving_up;
mod group;
mod groups;
mod jobs;
mod manager;
mod mover;
mod recurring;
mod schedule;
mod share;
#[cfg(feature = "test-util")]
pub mod testing;
mod verbs;
mod view;

pub use manager::Manager;
pub use schedule::{JobState, LastRun, Schedule};
pub use share::{Held, Share, Shares};
