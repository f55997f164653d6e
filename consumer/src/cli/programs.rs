//! Prepares the process of a consumer that starts programs: hides its memory from them.

use lisa_service::config::{Config, SinkConfig};

/// Prepares this process if a subscription has a command sink.
pub(super) fn prepare(config: &Config) {
    let mut subscriptions = config.consumer.subscriptions.iter();
    if !subscriptions.any(|subscription| matches!(subscription.sink, SinkConfig::Command { .. })) {
        return;
    }
    hide();
}

/// Forbids other processes of this user to read the memory and the environment of this one, which have its secrets. The
/// programs start with a new memory, so this does not apply to them.
fn hide() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
            tracing::warn!(%error, "cannot hide the environment of this process from the programs of command sinks");
        }
    }
}
