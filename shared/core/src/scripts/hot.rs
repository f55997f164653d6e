//! The hot path of a message: send, move when due, acknowledge, settle.

pub(super) mod ack;
pub(super) mod move_due;
pub(super) mod send;
pub(super) mod settle;
