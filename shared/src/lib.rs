//! The domain of Lisa, and the only code that talks to Redis.
pub mod http;
pub mod link;
pub mod metrics;
pub mod secret;
pub mod shutdown;
pub mod supervise;
pub mod telemetry;
