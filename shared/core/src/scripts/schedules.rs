//! Schedules: their definitions, their progress, and which of them are to be taken when.

pub(super) mod note_fires;
pub(super) mod pause_schedule;
pub(super) mod put_schedule;
pub(super) mod remove_schedule;
pub(super) mod take_fires;
