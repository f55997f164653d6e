//! Operations on one message by its sender or an operator.

pub(super) mod ack_late;
pub(super) mod cancel;
pub(super) mod hide;
pub(super) mod lookup;
pub(super) mod purge;
pub(super) mod requeue;
pub(super) mod reschedule;
