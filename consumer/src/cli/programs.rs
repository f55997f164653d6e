//! Prepares the process of a consumer that starts programs: hides its memory from them, and reaps their orphans as PID 1.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use lisa_service::config::{Config, SinkConfig};
use lisa_service::telemetry;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};

/// Prepares this process if a subscription has a command sink. As PID 1, it then returns only if this process
/// must run the subscriptions itself, because the consumer could not be started as a child process.
pub(super) async fn prepare(config: &Config) {
    if !hide(config) || std::process::id() != 1 {
        return;
    }
    match init().await {
        Ok(code) => {
            telemetry::flush();
            std::process::exit(code);
        }
        Err(error) => {
            tracing::warn!(%error, "cannot reap orphans of command sinks as PID 1; run the container with --init");
        }
    }
}

/// Prevents other processes of this user from reading the memory and the environment of this one, which contain its secrets, if
/// a subscription has a command sink. The programs start with new memory, so this does not apply to them. Returns whether there
/// is such a sink.
pub(super) fn hide(config: &Config) -> bool {
    let mut subscriptions = config.consumer.subscriptions.iter();
    if !subscriptions.any(|subscription| matches!(subscription.sink, SinkConfig::Command(_))) {
        return false;
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
            tracing::warn!(%error, "cannot hide the environment of this process from the programs of command sinks");
        }
    }
    true
}

/// Runs the consumer as a child process, forwards signals to it, and reaps all orphans, which the kernel gives to PID 1. Returns
/// the exit code of the consumer.
///
/// Only this process waits for any child. The consumer waits for its own programs, so it gets each exit status.
///
/// # Errors
/// The consumer was not started.
async fn init() -> io::Result<i32> {
    let mut child_ended = signal(SignalKind::child())?;
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let consumer = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        // A Ctrl-C then reaches the consumer only through this process. A second signal would end the grace period.
        .process_group(0)
        .spawn()?;
    let consumer = Pid::from_child(&consumer);
    loop {
        if let Some(code) = reap(consumer) {
            return Ok(code);
        }
        let forwarded = tokio::select! {
            _ = child_ended.recv() => continue,
            _ = term.recv() => Signal::TERM,
            _ = int.recv() => Signal::INT,
            _ = hangup.recv() => Signal::HUP,
        };
        // Fails only if it has just ended, which is seen next.
        let _ = kill_process(consumer, forwarded);
    }
}

/// Reaps all children that have ended. Returns the exit code of the consumer once it has.
fn reap(consumer: Pid) -> Option<i32> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == consumer => {
                let killed = || status.terminating_signal().map_or(1, |signal| 128 + signal);
                return Some(status.exit_status().unwrap_or_else(killed));
            }
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return None,
            // Without children, the consumer is gone as well.
            Err(_) => return Some(1),
        }
    }
}
