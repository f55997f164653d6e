//! Consumer groups: join, pause, retire, remove, parked messages, and the garbage hook.

pub(super) mod drop_consumer;
pub(super) mod enable_garbage_hook;
pub(super) mod finish_garbage_hook;
pub(super) mod join;
pub(super) mod parked_keys;
pub(super) mod pause;
pub(super) mod remove_group;
pub(super) mod retire;
pub(super) mod take_garbage_hooks;
pub(super) mod take_parked;
