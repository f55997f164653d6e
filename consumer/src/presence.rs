//! Reports to Redis that a feed's consumer is there, also while there is nothing to read or every permit is taken.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::feed::Feed;

/// How often it reports. The statistics count a consumer for three times as long.
const EVERY: Duration = Duration::from_secs(10);

/// Reports until the shutdown begins.
pub(crate) async fn run(feed: Arc<Feed>) {
    let reports = async {
        loop {
            let (process, topic) = (&feed.process, feed.topic());
            let group = feed.subscription.group();
            let announced = process
                .broker
                .announce(&topic, feed.shard, group, &process.name);
            if let Err(error) = announced.await {
                tracing::debug!(%error, subscription = %feed.subscription, shard = %feed.shard, "cannot report that the consumer is there");
            }
            sleep(EVERY).await;
        }
    };
    feed.draining().run_until_cancelled(reports).await;
}
