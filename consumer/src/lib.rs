//! Reads messages through consumer groups, runs handlers, settles what they say.
pub mod handler;
pub mod sinks;
