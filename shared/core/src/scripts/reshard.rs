//! Resharding: moving a topic to another number of shards.

pub(super) mod create_shard;
pub(super) mod drop_keys;
pub(super) mod finish_reshard;
pub(super) mod mark_retired;
pub(super) mod merge_counters;
pub(super) mod migrate_in;
pub(super) mod migrate_out;
pub(super) mod redirect;
