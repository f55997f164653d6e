//! The work of a shard's loop while its topic is resharded or removed, in addition to moving: migrates a retiring shard out,
//! and afterwards drops the keys of retired shards; removes the shards of a removed topic.

use std::time::Duration;

use lisa_core::broker::{
    Broker, BrokerError, Migration, MigrationStep, ShardRemoval, TopicHandle, unless_gone,
};
use lisa_core::topic::Shard;
use lisa_service::metrics::Metrics;
use tokio::time::Instant;

use crate::assignment::AssignedShard;

/// The time between the creation of new shards and the closing of the old ones. Consumers and managers read the registry
/// again within this time, so that no due message is on a stream without a reader.
const CLOSE_AFTER: Duration = Duration::from_secs(3);
/// The time that retired, empty shards are kept for processes that have not noticed the end. Every process reads the
/// registry again within this time.
const DROP_AFTER: Duration = Duration::from_secs(15);
/// The first pause before another pass over a shard whose last deliveries are in flight. Doubles up to [`AT_REST`] while
/// none of them ends.
const IN_FLIGHT: Duration = Duration::from_millis(50);
/// The interval between checks of a shard that has migrated everything, while other shards have not, or while it still
/// remembers ended ids.
const AT_REST: Duration = Duration::from_secs(1);

/// The progress of a shard's loop in a reshard.
#[derive(Debug, Default)]
pub(crate) struct Resharding {
    since: Option<Instant>,
    migration: Migration,
    pace: Pace,
}

impl Resharding {
    /// Takes one step, and returns the pause before the next one; `None` if due messages of the shard are to be moved as
    /// usual.
    pub(crate) async fn step(
        &mut self,
        broker: &Broker,
        metrics: &Metrics,
        assigned: &AssignedShard,
    ) -> Result<Option<Duration>, BrokerError> {
        let name = assigned.topic.name();
        let Some(topic) = broker.known(name) else {
            // It was removed, and the next heartbeat ends this loop.
            return Ok(Some(AT_REST));
        };
        if topic.removal().is_some() {
            return self.remove(broker, &topic, assigned.shard).await;
        }
        if !topic.is_retiring(assigned.shard) {
            return self.drop_retired_keys(broker, &topic, assigned).await;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < CLOSE_AFTER {
            return Ok(None);
        }
        let step = broker
            .migrate_out(&topic, assigned.shard, &mut self.migration)
            .await;
        let Some(step) = unless_gone(step)? else {
            return Ok(Some(AT_REST));
        };
        if step.count > 0 {
            metrics.migrated(name.as_str(), step.count);
        }
        Ok(Some(self.pace.after(step)))
    }

    /// Removes the shard once nothing is left in it. Until then, due messages are moved.
    async fn remove(
        &mut self,
        broker: &Broker,
        topic: &TopicHandle,
        shard: Shard,
    ) -> Result<Option<Duration>, BrokerError> {
        if self.since.is_some_and(|last| last.elapsed() < AT_REST) {
            return Ok(None);
        }
        self.since = Some(Instant::now());
        Ok(match broker.remove_shard(topic, shard).await? {
            ShardRemoval::Gone => Some(AT_REST),
            ShardRemoval::Left(_) => None,
        })
    }

    async fn drop_retired_keys(
        &mut self,
        broker: &Broker,
        topic: &TopicHandle,
        assigned: &AssignedShard,
    ) -> Result<Option<Duration>, BrokerError> {
        if topic.retired().is_none() || assigned.shard != topic.first_shard() {
            self.since = None;
            return Ok(None);
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= DROP_AFTER {
            self.since = None;
            broker.drop_retired_keys(topic).await?;
        }
        Ok(None)
    }
}

/// The pauses between steps.
#[derive(Debug, Default)]
struct Pace {
    /// The number of messages and deliveries left at the end of the last pass over the shard.
    left: u64,
    pause: Duration,
}

impl Pace {
    fn after(&mut self, step: MigrationStep) -> Duration {
        if step.more {
            return Duration::ZERO;
        }
        self.pause = match step.left {
            0 => AT_REST,
            left if left == self.left => (self.pause * 2).clamp(IN_FLIGHT, AT_REST),
            _ => IN_FLIGHT,
        };
        self.left = step.left;
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_with_deliveries_in_flight_is_checked_less_and_less_often_until_one_ends() {
        let mut pace = Pace::default();
        let mut after = |count, left, more| {
            let step = MigrationStep { count, left, more };
            pace.after(step).as_millis()
        };
        assert_eq!(after(50, 300, true), 0);
        let same = [200; 7].map(|left| after(0, left, false));
        assert_eq!(same, [50, 100, 200, 400, 800, 1000, 1000]);
        // A pass over a large shard takes several steps without a pause.
        assert_eq!((after(0, 200, true), after(0, 200, false)), (0, 1000));
        assert_eq!((after(0, 199, false), after(0, 199, false)), (50, 100));
        assert_eq!((after(1, 198, true), after(0, 198, false)), (0, 50));
        assert_eq!(after(0, 0, false), 1000);
    }
}
