//! Settles deliveries in Redis: collects queued outcomes into one call, without an added wait.
//!
//! While Redis works on a call, the queue collects the next batch. The entry id fences each settlement, so a call can be
//! repeated until Redis answers. Leases are renewed until then: finished work is not repeated unless renewals fail, too.

use std::sync::Arc;

use lisa_core::broker::{BrokerError, MAX_BATCH, Settlement, Verdict};
use lisa_core::outage::Outage;
use lisa_core::state::{GarbageReason, Settled};
use lisa_service::spans::Span;
use tokio::sync::mpsc;

use crate::worker::lease::Lease;
use crate::worker::state::{Queued, ShardWorker};

/// Settles outcomes from the queue until it is closed and empty.
pub(crate) async fn run(worker: Arc<ShardWorker>, mut queue: mpsc::Receiver<Queued>) {
    let mut outage = worker.outage("settle messages");
    let mut queued = Vec::with_capacity(MAX_BATCH);
    while queue.recv_many(&mut queued, MAX_BATCH).await > 0 {
        // Lets handlers that are about to end join this batch.
        tokio::task::yield_now().await;
        while queued.len() < MAX_BATCH
            && let Ok(settlement) = queue.try_recv()
        {
            queued.push(settlement);
        }
        let mut batch = Vec::with_capacity(queued.len());
        let (leases, spans): (Vec<Lease>, Vec<Option<Span>>) = queued
            .drain(..)
            .map(|queued| {
                batch.push(queued.settlement);
                (queued.lease, queued.span)
            })
            .unzip();
        let settled = settle(&worker, &batch, &mut outage).await;
        for (index, span) in spans.iter().enumerate() {
            let Some(span) = span else { continue };
            match settled.get(index) {
                None => span.failed("unavailable"),
                Some(Settled::Stale) => span.failed("stale"),
                Some(_) => {}
            }
        }
        drop(leases);
    }
}

/// Settles a batch, and returns what became of each delivery. Repeats the call after a retryable error, until the worker must make
/// no further calls; then nothing is returned.
async fn settle(worker: &ShardWorker, batch: &[Settlement], outage: &mut Outage) -> Vec<Settled> {
    let broker = &worker.process.broker;
    loop {
        let topic = worker.topic();
        let group = worker.subscription.group();
        let settled = broker.settle(&topic, worker.shard, group, batch);
        match worker.too_late.run_until_cancelled(settled).await {
            None => {
                tracing::warn!(count = batch.len(), subscription = %worker.subscription, "cannot settle before the process ends; messages are delivered again after their lease");
                worker.process.counters.unsettled(batch.len());
                return Vec::new();
            }
            Some(Ok(settled)) => {
                outage.recovered();
                for (settlement, settled) in batch.iter().zip(&settled) {
                    count(worker, settlement, *settled);
                }
                return settled;
            }
            Some(Err(error)) if is_removed(worker, &error) => {
                for settlement in batch {
                    count(worker, settlement, Settled::Stale);
                }
                return vec![Settled::Stale; batch.len()];
            }
            Some(Err(error)) if error.is_retryable() => {
                let pause = outage.failed(&error).min(topic.settings().lease / 4);
                let pausing = tokio::time::sleep(pause);
                let _ = worker.too_late.run_until_cancelled(pausing).await;
            }
            Some(Err(error)) => {
                tracing::error!(%error, count = batch.len(), subscription = %worker.subscription, "cannot settle; messages are delivered again after their lease");
                worker.process.counters.unsettled(batch.len());
                return Vec::new();
            }
        }
    }
}

/// Returns whether the deliveries no longer exist, because their topic was removed.
fn is_removed(worker: &ShardWorker, error: &BrokerError) -> bool {
    let known = || worker.process.broker.known(worker.subscription.topic());
    match error {
        BrokerError::UnknownTopic(_) => true,
        BrokerError::ShardGone { .. } => known().is_none_or(|topic| topic.removal().is_some()),
        _ => false,
    }
}

/// Counts one settled delivery. A delivery that a call settled whose reply was lost counts as stale.
fn count(worker: &ShardWorker, settlement: &Settlement, settled: Settled) {
    worker.process.counters.settled(settled);
    if settled == Settled::Garbage {
        worker.garbage_added.notify_one();
    }
    if let Some(metrics) = &worker.metrics {
        metrics.ended(settled);
    }
    let (topic, group) = (worker.subscription.topic(), worker.subscription.group());
    match (settled, &settlement.verdict) {
        (Settled::Garbage, Verdict::Reject { error }) => {
            tracing::warn!(%topic, %group, id = %settlement.id, reason = %GarbageReason::Rejected, error, "moved to garbage");
        }
        (Settled::Garbage, Verdict::Retry { error, .. }) => {
            tracing::warn!(%topic, %group, id = %settlement.id, reason = %GarbageReason::Exhausted, error, "moved to garbage");
        }
        (Settled::Garbage, Verdict::Expired) => {
            tracing::warn!(%topic, %group, id = %settlement.id, reason = %GarbageReason::Expired, "moved to garbage");
        }
        (Settled::Lost, _) => {
            tracing::warn!(%topic, %group, id = %settlement.id, "payload missing; message dropped");
        }
        _ => {}
    }
}
