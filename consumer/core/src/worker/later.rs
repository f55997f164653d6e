//! Deliveries that are completed later: by a worker elsewhere, which settles them at a gateway.
//!
//! The time to complete is kept in Redis, as the lease of a pulled delivery is: see decision 0030. This process then has no
//! part in the delivery any more.

use std::time::Duration;

use lisa_core::broker::TopicHandle;
use lisa_core::message::{MessageId, Record};
use lisa_core::state::Attempt;
use tokio::time::sleep;

use crate::delivery::MAX_RUN;
use crate::worker::lease::Lease;
use crate::worker::state::ShardWorker;

/// The delay of a message whose token cannot be made.
pub(super) const AGAIN: Duration = Duration::from_secs(1);
/// The shortest time to complete a delivery.
pub const SHORTEST: Duration = Duration::from_secs(1);
/// The interval between counts of the messages in flight, while there are too many.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// The key of the tokens cannot be read now.
pub(super) struct NoKey;

/// Makes the token of a delivery.
#[cfg(feature = "tokens")]
pub(super) async fn token(
    worker: &ShardWorker,
    topic: &TopicHandle,
    delivery: (&MessageId, &Attempt),
    record: &Record,
) -> Result<Option<String>, NoKey> {
    let process = &worker.process;
    let group = worker.subscription.group();
    match process.token_key.get(&process.broker).await {
        Ok(key) => {
            let claims = crate::token::Claims::of(topic, group, worker.shard, delivery, record);
            Ok(Some(key.seal(&claims)))
        }
        Err(error) => {
            let (id, subscription) = (delivery.0, &worker.subscription);
            tracing::warn!(%error, %id, %subscription, "cannot make the token of a delivery; retrying");
            Err(NoKey)
        }
    }
}

/// Makes no token: a build without a gateway and webhooks has no use for it.
#[cfg(not(feature = "tokens"))]
pub(super) async fn token(
    _: &ShardWorker,
    _: &TopicHandle,
    _: (&MessageId, &Attempt),
    _: &Record,
) -> Result<Option<String>, NoKey> {
    Ok(None)
}

/// Sets the time `within` in which a delivery must be completed. Then waits until at most `most` messages are in flight: as long
/// as this waits, the delivery keeps its permit.
///
/// If the process stops before Redis has confirmed the time, the message is delivered again after the lease of the topic.
pub(super) async fn run(
    worker: &ShardWorker,
    topic: &TopicHandle,
    lease: Lease,
    within: Duration,
    most: usize,
) {
    let stopped = worker.stop.cancelled();
    let work = async {
        let entry = [lease.entry()];
        let mut outage = worker.outage("set the time to complete a delivery");
        let (process, group) = (&worker.process, worker.subscription.group());
        let within = within.clamp(SHORTEST, MAX_RUN);
        // From now on, neither a renewal nor the end of a trial touches the delivery.
        drop(lease);
        let leased = loop {
            let alone = worker.leases.confirming.lock().await;
            let leased =
                process
                    .broker
                    .lease(topic, worker.shard, group, &process.name, &entry, within);
            match leased.await {
                Ok(leased) => break leased,
                Err(error) if error.is_retryable() => {
                    drop(alone);
                    sleep(outage.failed(&error)).await;
                }
                Err(error) => {
                    tracing::error!(%error, subscription = %worker.subscription, "cannot set the time to complete a delivery; it is delivered again after its lease");
                    return;
                }
            }
        };
        outage.recovered();
        if leased.held.is_empty() {
            return worker.count_stale();
        }
        if let Some(metrics) = &process.metrics {
            metrics.completed_later(topic.name().as_str(), group.as_str());
        }
        // A shutdown does not wait for others to complete their deliveries.
        let room = wait_for_room(worker, topic, most as u64);
        worker.draining().run_until_cancelled(room).await;
    };
    tokio::select! {
        biased;
        () = stopped => {}
        () = work => {}
    }
}

/// Waits until at most `most` messages are in flight.
async fn wait_for_room(worker: &ShardWorker, topic: &TopicHandle, most: u64) {
    let (process, group) = (&worker.process, worker.subscription.group());
    let mut outage = worker.outage("count the messages in flight");
    loop {
        match process.broker.in_flight(topic, worker.shard, group).await {
            Ok(count) if count <= most => return,
            Ok(_) => sleep(COUNT_EVERY).await,
            Err(error) if error.is_retryable() => sleep(outage.failed(&error)).await,
            Err(_) => return,
        }
    }
}
