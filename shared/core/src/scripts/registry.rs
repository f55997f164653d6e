//! Topics, managers, garbage jobs and tokens of a namespace.

pub(super) mod change_garbage_job;
pub(super) mod change_token;
pub(super) mod claim_topic;
pub(super) mod declare;
pub(super) mod heartbeat;
pub(super) mod note_action;
pub(super) mod note_counts;
pub(super) mod note_total;
pub(super) mod register;
pub(super) mod start_move_task;
