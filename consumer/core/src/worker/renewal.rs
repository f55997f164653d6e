//! Renews the leases of a worker, and confirms one before its handler starts.

use crate::worker::lease::End;
use crate::worker::lease::Lease;
use crate::worker::state::ShardWorker;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

impl Lease {
    /// Waits until the lease is either confirmed or known to be lost.
    async fn settled(&self, worker: &ShardWorker) -> End<()> {
        let known = || self.known(worker.topic().settings().lease, Instant::now());
        loop {
            if let Some(end) = known() {
                return end;
            }
            let _one = worker.leases.confirming.lock().await;
            if known().is_none()
                && let Err(error) = renew(worker).await
            {
                tracing::debug!(%error, subscription = %worker.subscription, "cannot confirm leases; retrying");
                sleep(CONFIRM_AGAIN).await;
            }
        }
    }

    /// Confirms that this worker still holds the delivery, before its handler starts.
    pub(crate) async fn ensure(&self, worker: &ShardWorker, now: Instant) -> End<()> {
        if worker.draining().is_cancelled() {
            return End::Stopped;
        } else if let Some(end) = self.known(worker.topic().settings().lease, now) {
            return end;
        }
        tokio::select! {
            biased;
            () = worker.draining().cancelled() => End::Stopped,
            () = worker.stop.cancelled() => End::Stopped,
            end = Box::pin(self.settled(worker)) => end,
        }
    }
}

/// The pause before another try to confirm leases.
const CONFIRM_AGAIN: Duration = Duration::from_millis(100);

/// Renews the worker's leases until the future is dropped.
pub(crate) async fn run(worker: Arc<ShardWorker>) {
    let mut outage = worker.outage("renew leases");
    loop {
        let lease = worker.topic().settings().lease;
        let pause = if outage.is_on() {
            lease / 10
        } else {
            lease / 3
        };
        sleep(pause.max(Duration::from_millis(100))).await;
        let _alone = worker.leases.confirming.lock().await;
        match renew(&worker).await {
            Ok(()) => outage.recovered(),
            Err(error) => {
                outage.failed(&error);
            }
        }
    }
}

/// Renews all held leases, and cancels those that are lost.
pub(crate) async fn renew(worker: &ShardWorker) -> Result<(), lisa_core::broker::BrokerError> {
    let asked = worker.leases.entries();
    if asked.is_empty() {
        return Ok(());
    }
    let (process, group) = (&worker.process, worker.subscription.group());
    let seen = Instant::now();
    let confirmed = process
        .broker
        .keep(&worker.topic(), worker.shard, group, &process.name, &asked)
        .await?;
    let lost = worker.leases.confirm(&asked, confirmed, seen);
    if lost > 0 {
        tracing::warn!(lost, subscription = %worker.subscription, shard = %worker.shard, "leases lost; their messages are delivered again");
    }
    Ok(())
}
