//! Removes a topic with all its keys, while it may be in use.
//!
//! The first shard decides: once it is marked, no process declares or changes the topic, and each shard accepts no new messages. The
//! managers then remove the other shards, the first one last. It leaves a record for [`REMEMBERED_FOR`], from which every process that
//! still knows the topic learns that it was removed, and was not lost.

use std::sync::Arc;
use std::time::Duration;

use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError, TopicHandle};
use crate::keys::ShardKeys;
use crate::scripts::{BuryTopic, Removal, RemovalBegun, RemoveShard, RemoveTopic, Unregister};
use crate::topic::{Shard, Topic};

/// The time for which a removal is remembered. Longer than a process that still knows the topic stays without Redis.
const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 3600);

/// The progress of the removal of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardRemoval {
    /// The messages and entries that are still there, or shards that come before this one.
    Left(u64),
    /// The shard is gone; if it is the first one, so is the topic.
    Gone,
}

impl Broker {
    /// Begins the removal of a topic, or changes a drain to a removal by force. From then on, new messages are refused. The managers
    /// do the rest.
    ///
    /// # Errors
    /// [`BrokerError::Resharding`]; other [`BrokerError`]s. Calling again is safe.
    pub async fn remove_topic(
        &self,
        topic: &Topic,
        how: Removal,
    ) -> Result<Arc<TopicHandle>, BrokerError> {
        let unknown = || BrokerError::UnknownTopic(topic.clone());
        let handle = self.load(topic).await?.ok_or_else(unknown)?;
        let mut epoch = 0;
        for shard in (handle.open()..handle.open() + handle.settings().shards).map(Shard::new) {
            let now = self.begin_removal(&handle, shard, how).await?;
            if shard.get() == handle.open() {
                epoch = now;
            }
        }
        self.register(topic, handle.settings().shards, epoch)
            .await?;
        self.load(topic).await?.ok_or_else(unknown)
    }

    /// Marks one shard. Returns its epoch.
    async fn begin_removal(
        &self,
        handle: &TopicHandle,
        shard: Shard,
        how: Removal,
    ) -> Result<u64, BrokerError> {
        let topic = || handle.name().clone();
        let begun = self.run(handle.keys(shard)?, &RemoveTopic { how }).await?;
        match begun.map_err(|_| BrokerError::UnknownTopic(topic()))? {
            RemovalBegun::Removing { epoch, .. } => Ok(epoch),
            RemovalBegun::Resharding => Err(BrokerError::Resharding {
                topic: topic(),
                to: handle.settings().shards,
            }),
            RemovalBegun::Removed => Err(BrokerError::UnknownTopic(topic())),
        }
    }

    /// Removes a shard of a topic that is being removed, if it can go already.
    ///
    /// # Errors
    /// [`BrokerError`]; calling again is safe.
    pub async fn remove_shard(
        &self,
        topic: &TopicHandle,
        shard: Shard,
    ) -> Result<ShardRemoval, BrokerError> {
        let Some(how) = topic.removal() else {
            return Ok(ShardRemoval::Left(1));
        };
        let first = Shard::new(topic.open());
        if shard != first {
            return match self.begin_removal(topic, shard, how).await {
                Err(BrokerError::UnknownTopic(_)) => Ok(ShardRemoval::Gone),
                Err(error) => Err(error),
                Ok(_) => self.remove_keys(topic, shard, Duration::ZERO).await,
            };
        }
        let mut others = 0;
        for shard in topic.shards().filter(|shard| *shard != first) {
            let there = command("HEXISTS", &topic.keys(shard)?.conf).arg("epoch");
            others += self.ask::<u64>(there).await?;
        }
        if others > 0 {
            return Ok(ShardRemoval::Left(others));
        }
        let removed = self.remove_keys(topic, first, REMEMBERED_FOR).await?;
        if removed == ShardRemoval::Gone {
            self.finish_removal(topic).await?;
        }
        Ok(removed)
    }

    async fn remove_keys(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        keep: Duration,
    ) -> Result<ShardRemoval, BrokerError> {
        let call = RemoveShard { keep };
        match self.general(topic, shard, None, &call).await {
            Ok(0) => Ok(ShardRemoval::Gone),
            // Another manager was faster.
            Err(BrokerError::UnknownTopic(_) | BrokerError::ShardGone { .. }) => {
                Ok(ShardRemoval::Gone)
            }
            Ok(left) => Ok(ShardRemoval::Left(left)),
            Err(error) => Err(error),
        }
    }

    /// Takes a topic without shards out of the registry, and out of the memory of this process.
    async fn finish_removal(&self, topic: &TopicHandle) -> Result<(), BrokerError> {
        // The first shard has a higher epoch than this process knows if a group joined in the meantime.
        let keys = |shard| ShardKeys::new(&self.inner.namespace, topic.name(), shard, &[]);
        let first = keys(Shard::new(topic.open()));
        let epoch: Option<u64> = self.ask(command("HGET", &first.conf).arg("epoch")).await?;
        let epoch = epoch.unwrap_or_default().max(topic.epoch());
        if topic.open() > 0 {
            let call = BuryTopic {
                epoch,
                keep: REMEMBERED_FOR,
            };
            let buried = self.run(&keys(Shard::new(0)), &call).await?;
            buried.map_err(|_| BrokerError::UnknownTopic(topic.name().clone()))?;
        }
        self.unregister(topic.name(), epoch).await?;
        tracing::info!(topic = %topic.name(), "removed");
        // This process forgets it.
        match self.load(topic.name()).await {
            Ok(_) | Err(BrokerError::UnknownTopic(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes a removed topic out of the registry, unless it was created again.
    pub(super) async fn unregister(&self, topic: &Topic, epoch: u64) -> Result<(), BrokerError> {
        self.run_on_registry(&Unregister { topic, epoch }).await?;
        Ok(())
    }
}
