//! Reports to Redis that a worker's consumer is alive, even while there is nothing to read or every permit is taken.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::worker::state::ShardWorker;

/// The interval between reports. The statistics count a consumer for three times as long.
const EVERY: Duration = Duration::from_secs(10);

/// Reports until the shutdown begins.
pub(crate) async fn run(worker: Arc<ShardWorker>) {
    let reports = async {
        loop {
            let (process, topic) = (&worker.process, worker.topic());
            let group = worker.subscription.group();
            let announced = process
                .broker
                .announce(&topic, worker.shard, group, &process.name);
            if let Err(error) = announced.await {
                tracing::debug!(%error, subscription = %worker.subscription, shard = %worker.shard, "cannot report that the consumer is alive; retrying");
            }
            sleep(EVERY).await;
        }
    };
    worker.draining().run_until_cancelled(reports).await;
}
