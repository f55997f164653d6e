//! The domain of Lisa, and the only code that talks to Redis.
pub mod broker;
pub mod config;
pub mod http;
mod keys;
pub mod link;
pub mod message;
pub mod metrics;
mod permissions;
pub mod retry;
pub mod role;
mod scripts;
pub mod secret;
pub mod shutdown;
pub mod state;
pub mod supervise;
pub mod telemetry;
pub mod time;
pub mod topic;
