//! Examination and repair of a shard.

pub(super) mod examine;
pub(super) mod recount;
pub(super) mod repair;
pub(super) mod walk;
