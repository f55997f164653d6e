//! Reports the state of a role to systemd: ready, alive, stopping. Does nothing unless `NOTIFY_SOCKET` is set, as systemd does for
//! `Type=notify`.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use lisa_core::outage::Outage;
use lisa_core::time::shorten_to;
use sd_notify::NotifyState;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::readiness::Readiness;
use crate::shutdown::Shutdown;
use crate::supervise::{Policy, Supervisor};

/// The longest interval between two checks of the state.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Starts the task that reports to systemd: readiness or the reason for its absence, watchdog pings while no task is stuck, and the
/// start of the shutdown of the process. The task ends with the role.
pub(super) fn start(
    supervisor: &Supervisor,
    readiness: &Readiness,
    role: &Shutdown,
    process: &Shutdown,
) {
    if !is_present() {
        return;
    }
    let watchdog = sd_notify::watchdog_enabled();
    let every = watchdog.map_or(LOOK_EVERY, |limit| LOOK_EVERY.min(limit / 3));
    let (health, readiness) = (supervisor.health(), readiness.clone());
    let (draining, process) = (role.draining().clone(), process.draining().clone());
    supervisor.spawn("systemd", Policy::restart(), move |heartbeat| {
        heartbeat.unlimited();
        let (health, readiness) = (health.clone(), readiness.clone());
        let (draining, process) = (draining.clone(), process.clone());
        async move {
            let mut outage = Outage::new("notify systemd");
            let mut reported = None;
            while !draining.is_cancelled() {
                // A line break would begin another assignment, and systemd ignores a message of more than 4096 bytes.
                let reasons = readiness.reasons().join("; ");
                let reasons = shorten_to(&reasons.replace(char::is_control, " "), 1000);
                let (mut states, mut status) = (Vec::new(), None);
                if reported.as_ref() != Some(&reasons) {
                    if reasons.is_empty() {
                        states.push(NotifyState::Ready);
                        status = Some("ready".to_owned());
                    } else {
                        status = Some(reasons.clone());
                    }
                }
                if watchdog.is_some() && health.is_green() {
                    states.push(NotifyState::Watchdog);
                }
                match draining.run_until_cancelled(notify(states, status)).await {
                    None => break,
                    Some(Ok(())) => {
                        outage.recovered();
                        reported = Some(reasons);
                    }
                    Some(Err(error)) => {
                        outage.failed(&error);
                    }
                }
                draining.run_until_cancelled(sleep(every)).await;
            }
            // After a reload, the process goes on.
            if !process.is_cancelled() {
                return Ok(());
            }
            let stopping = notify(vec![NotifyState::Stopping], Some("draining".to_owned()));
            // The shutdown does not depend on systemd.
            _ = timeout(LOOK_EVERY, stopping).await;
            Ok::<(), Infallible>(())
        }
    });
}

fn is_present() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Reports the start of a reload.
pub(super) async fn reloading() {
    let since = NotifyState::monotonic_usec_now().ok();
    let states = [NotifyState::Reloading].into_iter().chain(since);
    send(states.collect(), "reloading").await;
}

/// Reports the end of a reload, whatever its result.
pub(super) async fn reloaded() {
    send(vec![NotifyState::Ready], "ready").await;
}

/// Sends these states unless systemd is absent or busy: nothing depends on it.
async fn send(states: Vec<NotifyState<'static>>, status: &str) {
    if is_present() {
        _ = timeout(LOOK_EVERY, notify(states, Some(status.to_owned()))).await;
    }
}

/// Sends these states, on a thread of its own: a peer that does not read its socket blocks that thread, and no loop.
async fn notify(states: Vec<NotifyState<'static>>, status: Option<String>) -> io::Result<()> {
    if states.is_empty() && status.is_none() {
        return Ok(());
    }
    let sent = spawn_blocking(move || {
        let mut all: Vec<NotifyState<'_>> = states;
        all.extend(status.as_deref().map(NotifyState::Status));
        sd_notify::notify(&all)
    });
    sent.await.map_err(io::Error::other)?
}
