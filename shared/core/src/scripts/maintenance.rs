//! Operations that the jobs of a manager run.

pub(super) mod clean;
pub(super) mod forget;
pub(super) mod heads;
pub(super) mod note_sample;
pub(super) mod observe;
pub(super) mod page;
pub(super) mod reclaim;
pub(super) mod stats;
