//! The operations of an operator: functions whose results are the same JSON over HTTP and on the command line.

pub(crate) mod choose_group;
pub(crate) mod garbage;
pub(crate) mod groups;
pub(crate) mod messages;
pub(crate) mod topics;
