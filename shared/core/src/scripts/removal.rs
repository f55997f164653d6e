//! Removing a topic.

pub(super) mod remove_shard;
pub(super) mod remove_topic;
pub(super) mod unregister;
