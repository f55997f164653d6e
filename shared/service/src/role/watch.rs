//! The tasks that watch the certificate of a role and its connection to Redis.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use tokio::time::sleep;

use crate::http::tls::Tls;
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;
use crate::supervise::{Policy, Supervisor};
use lisa_core::redis::Connection;

/// The interval at which the gauges of the connection are refreshed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Keeps the certificate of the listeners up to date.
pub(super) fn certificate(
    supervisor: &Supervisor,
    tls: &Tls,
    metrics: &Metrics,
    shutdown: &Shutdown,
) {
    let (tls, metrics) = (tls.clone(), metrics.clone());
    let draining = shutdown.draining().clone();
    supervisor.spawn("certificate", Policy::restart(), move |heartbeat| {
        heartbeat.unlimited();
        let (tls, metrics, draining) = (tls.clone(), metrics.clone(), draining.clone());
        async move {
            let renewing = tls.renew_when_changed(&metrics);
            draining.run_until_cancelled(renewing).await;
            Ok::<(), Infallible>(())
        }
    });
}

/// Keeps the gauges of the connection up to date.
pub(super) fn connection(
    supervisor: &Supervisor,
    connection: &Connection,
    metrics: &Metrics,
    shutdown: &Shutdown,
) {
    let (connection, metrics, shutdown) = (connection.clone(), metrics.clone(), shutdown.clone());
    supervisor.spawn("connection", Policy::restart(), move |heartbeat| {
        let (connection, metrics, shutdown) =
            (connection.clone(), metrics.clone(), shutdown.clone());
        async move {
            let mut status = connection.status();
            while !shutdown.draining().is_cancelled() {
                metrics.redis_up(connection.is_up());
                if let Some(skew) = connection.clock().skew() {
                    metrics.clock_skew(-skew.as_secs_f64());
                }
                heartbeat.ok();
                tokio::select! {
                    _ = status.changed() => {}
                    () = sleep(LOOK_EVERY) => {}
                    () = shutdown.draining().cancelled() => {}
                }
            }
            Ok::<(), io::Error>(())
        }
    });
}
