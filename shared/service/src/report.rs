//! Reports a process to Redis, so that operators see who works on what.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lisa_core::broker::{Broker, REPORT_EVERY, WorkerReport};
use lisa_core::connect::host_name;
use lisa_core::time::UnixMs;
use tokio::time::{sleep, timeout};

use crate::shutdown::Shutdown;
use crate::supervise::{Policy, Supervisor};

/// The number of reports after which the lateness of deliveries is reported, too.
const LATENESS_EVERY: u32 = 3;
/// The time limit for removing the report at shutdown. Without it, the report is removed a minute later.
const REMOVE_WITHIN: Duration = Duration::from_millis(500);

/// Starts the task that reports a process under this name until the shutdown begins. `fill` adds to each report what the
/// process does at that moment.
pub fn start(
    supervisor: &Supervisor,
    shutdown: &Shutdown,
    broker: &Broker,
    role: &'static str,
    name: &str,
    fill: impl Fn(&mut WorkerReport) + Send + Sync + 'static,
) {
    let (broker, shutdown) = (broker.clone(), shutdown.clone());
    let (name, fill): (Arc<str>, _) = (name.into(), Arc::new(fill));
    let (host, since) = (host_name(), Instant::now());
    let report = move |broker: &Broker| {
        let age = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut report = WorkerReport {
            role: role.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: host.clone(),
            pid: std::process::id(),
            started: UnixMs::new(broker.now().get().saturating_sub(age)),
            ..WorkerReport::default()
        };
        fill(&mut report);
        report
    };
    let report = Arc::new(report);
    supervisor.spawn(
        format!("report:{role}"),
        Policy::restart(),
        move |heartbeat| {
            heartbeat.unlimited();
            let (broker, shutdown, name) = (broker.clone(), shutdown.clone(), name.clone());
            let report = report.clone();
            async move {
                let reports = async {
                    for count in 1_u32.. {
                        // Nothing depends on it. Other tasks report that Redis is unavailable.
                        if let Err(error) = broker.report_worker(&name, report(&broker)).await {
                            tracing::debug!(%error, "cannot report this process; retrying");
                        }
                        if count % LATENESS_EVERY == 0 {
                            report_lateness(&broker).await;
                        }
                        sleep(REPORT_EVERY).await;
                    }
                };
                shutdown.draining().run_until_cancelled(reports).await;
                let _ = timeout(REMOVE_WITHIN, report_lateness(&broker)).await;
                if let Ok(Err(error)) = timeout(REMOVE_WITHIN, broker.forget_worker(&name)).await {
                    tracing::debug!(%error, "cannot remove the report of this process");
                }
                Ok::<(), Infallible>(())
            }
        },
    );
}

/// Adds the lateness of the deliveries of this process to the history of their topics.
async fn report_lateness(broker: &Broker) {
    if let Err(error) = broker.report_lateness().await {
        tracing::debug!(%error, "cannot report the lateness of deliveries");
    }
}
