//! Tells Redis how deliveries ended: gathers what is there, without added wait, into one call.
//!
//! While Redis works on a call, the next is gathered in the queue. Settling is fenced by the entry id, so a call is
//! repeated until Redis answers, and leases are renewed until then: work that is done is not done again, unless the
//! leases cannot be renewed either.

use std::sync::Arc;
use std::time::Duration;

use lisa_shared::broker::{MAX_BATCH, Settlement, Verdict};
use lisa_shared::state::{GarbageReason, Settled};
use tokio::sync::mpsc;

use crate::feed::Feed;
use crate::lease::Lease;

/// The pauses between calls that failed.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Settles what comes through the queue, until it is closed and empty.
pub(crate) async fn run(feed: Arc<Feed>, mut queue: mpsc::Receiver<(Settlement, Lease)>) {
    let mut queued = Vec::with_capacity(MAX_BATCH);
    while queue.recv_many(&mut queued, MAX_BATCH).await > 0 {
        // Handlers that are about to end together are told together.
        tokio::task::yield_now().await;
        while queued.len() < MAX_BATCH
            && let Ok(settlement) = queue.try_recv()
        {
            queued.push(settlement);
        }
        let (batch, leases): (Vec<Settlement>, Vec<Lease>) = queued.drain(..).unzip();
        settle(&feed, &batch).await;
        drop(leases);
    }
}

/// Settles a batch; repeats the call while Redis may yet take it.
async fn settle(feed: &Feed, batch: &[Settlement]) {
    let broker = &feed.process.broker;
    let mut pause = FIRST_PAUSE;
    loop {
        let topic = feed.topic();
        let group = feed.subscription.group();
        let settled = broker.settle(&topic, feed.shard, group, batch);
        match feed.too_late.run_until_cancelled(settled).await {
            None => {
                tracing::warn!(count = batch.len(), subscription = %feed.subscription, "redis could not be told: the messages come again after their lease");
                feed.process.tally.unsettled(batch.len());
                return;
            }
            Some(Ok(settled)) => {
                if pause > FIRST_PAUSE {
                    tracing::info!(subscription = %feed.subscription, shard = %feed.shard, "settling again");
                }
                for (settlement, settled) in batch.iter().zip(settled) {
                    count(feed, settlement, settled);
                }
                return;
            }
            Some(Err(error)) if error.is_retryable() => {
                if pause == FIRST_PAUSE {
                    tracing::warn!(%error, subscription = %feed.subscription, shard = %feed.shard, "cannot settle: trying on");
                }
                let pausing = tokio::time::sleep(pause);
                let _ = feed.too_late.run_until_cancelled(pausing).await;
                let longest = LONGEST_PAUSE.min(topic.settings().lease / 4);
                pause = (pause * 2).min(longest.max(FIRST_PAUSE));
            }
            Some(Err(error)) => {
                tracing::error!(%error, count = batch.len(), subscription = %feed.subscription, "cannot settle: the messages come again after their lease");
                feed.process.tally.unsettled(batch.len());
                return;
            }
        }
    }
}

/// Counts one settled delivery. One that was settled by a call whose reply was lost counts as stale.
fn count(feed: &Feed, settlement: &Settlement, settled: Settled) {
    feed.process.tally.settled(settled);
    if settled == Settled::Garbage {
        feed.buried.notify_one();
    }
    let (topic, group) = (feed.subscription.topic(), feed.subscription.group());
    if let Some(metrics) = &feed.process.metrics {
        metrics.delivered(topic.as_str(), group.as_str(), settled.as_str());
    }
    match (settled, &settlement.verdict) {
        (Settled::Garbage, Verdict::Reject { error }) => {
            tracing::warn!(%topic, %group, id = %settlement.id, reason = %GarbageReason::Rejected, error, "into garbage");
        }
        (Settled::Garbage, Verdict::Retry { error, .. }) => {
            tracing::warn!(%topic, %group, id = %settlement.id, reason = %GarbageReason::Exhausted, error, "into garbage");
        }
        (Settled::Garbage, Verdict::Expired) => {
            tracing::warn!(%topic, %group, id = %settlement.id, reason = %GarbageReason::Expired, "into garbage");
        }
        (Settled::Lost, _) => {
            tracing::warn!(%topic, %group, id = %settlement.id, "the payload was missing: dropped");
        }
        _ => {}
    }
}
