//! Reports the state of a role to systemd: ready, alive, stopping. Does nothing unless `NOTIFY_SOCKET` is set, as systemd does for
//! `Type=notify`.

use std::convert::Infallible;
use std::time::Duration;

use lisa_core::outage::Outage;
use lisa_core::time::shorten_to;
use sd_notify::NotifyState;
use tokio::time::sleep;

use super::readiness::Readiness;
use crate::shutdown::Shutdown;
use crate::supervise::{Policy, Supervisor};

/// The longest interval between two checks of the state.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Starts the task that reports to systemd: readiness or the reason for its absence, watchdog pings while no task is stuck, and the
/// start of the shutdown.
pub(super) fn start(supervisor: &Supervisor, readiness: &Readiness, shutdown: &Shutdown) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let watchdog = sd_notify::watchdog_enabled();
    let every = watchdog.map_or(LOOK_EVERY, |limit| LOOK_EVERY.min(limit / 3));
    let (health, readiness) = (supervisor.health(), readiness.clone());
    let draining = shutdown.draining().clone();
    supervisor.spawn("systemd", Policy::restart(), move |heartbeat| {
        let (health, readiness, draining) = (health.clone(), readiness.clone(), draining.clone());
        async move {
            let mut outage = Outage::new("notify systemd");
            let mut reported = None;
            while !draining.is_cancelled() {
                // A line break would begin another assignment, and systemd ignores a message of more than 4096 bytes.
                let reasons = readiness.reasons().join("; ");
                let reasons = shorten_to(&reasons.replace(char::is_control, " "), 1000);
                let mut state = Vec::new();
                if reported.as_ref() != Some(&reasons) {
                    state.push(NotifyState::Status(match reasons.as_str() {
                        "" => "ready",
                        reasons => reasons,
                    }));
                    if reasons.is_empty() {
                        state.push(NotifyState::Ready);
                    }
                }
                if watchdog.is_some() && health.is_green() {
                    state.push(NotifyState::Watchdog);
                }
                let notified = match state.is_empty() {
                    true => Ok(()),
                    false => sd_notify::notify(&state),
                };
                match notified {
                    Ok(()) => {
                        outage.recovered();
                        reported = Some(reasons);
                    }
                    Err(error) => {
                        outage.failed(&error);
                    }
                }
                heartbeat.ok();
                draining.run_until_cancelled(sleep(every)).await;
            }
            let state = [NotifyState::Stopping, NotifyState::Status("draining")];
            if let Err(error) = sd_notify::notify(&state) {
                outage.failed(&error);
            }
            Ok::<(), Infallible>(())
        }
    });
}
