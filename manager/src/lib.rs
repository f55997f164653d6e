#![doc = include_str!("../README.md")]
//!
//! Runnable programs are in `manager/examples` of the repository: `relay` (all roles in one process), `recurring` and
//! `testing`.
//!
//! # Cargo features
//!
//! None is enabled by default.
//!
//! | feature | adds |
//! |---|---|
//! | `keda` | the external scaler for KEDA: `manager.keda` in the configuration |
//! | `test-util` | `testing::TestRelay`, for the tests of other programs: a private Redis and a virtual clock |
//!
//! # Guides
//!
//! In `shared/docs` of the repository: `guides/recurring.md`, `guides/testing-your-app.md`, `operate/deploy.md`,
//! `operate/monitoring.md` and `reference/configuration.md`.

// The macros panic if the output is closed or full. Use `cli::remark` and `cli::print` of `lisa-service`.
#![warn(clippy::print_stdout, clippy::print_stderr)]
// Tests start tasks and share state as they like.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

mod api;
mod assignment;
pub mod cli;
pub mod combined;
mod dashboard;
pub mod dev;
mod forwarder;
mod garbage_jobs;
mod jobs;
#[cfg(feature = "keda")]
mod keda;
mod manager;
mod mover;
mod operations;
mod recurring;
mod reshard;
mod size;
#[cfg(feature = "test-util")]
pub mod testing;
mod wakes;

pub use assignment::{AssignedShard, Assignment, Assignments};
pub use jobs::scheduler::{JobScheduler, JobState, LastRun};
pub use manager::Manager;

pub use lisa_service::config::{Config, LoadOptions};
pub use lisa_service::cron::{Cron, TimeZone};
pub use lisa_service::recurring::{MessageTemplate, PutScheduleError, RecurringMessage};
pub use lisa_service::role::{Runtime, StartError};
pub use lisa_service::shutdown::Shutdown;
