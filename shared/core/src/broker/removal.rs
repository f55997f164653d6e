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
use crate::scripts::{
    self, Call, Register, Removal, RemovalBegun, RemoveShard, RemoveTopic, Unregister,
};
use crate::topic::{Shard, Topic};

/// The time for which a removal is remembered. Longer than a process that still knows the topic stays without Redis.
const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 3600);

/// The progress of the removal of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardRemoval {
    /// The messages that are still there, or the entries of the longest stream if those are more; for the first shard, the number of
    /// shards that come before it.
    Left(u64),
    /// The shard is gone; if it is the first one, so is the topic.
    Gone,
}

impl Broker {
    /// Begins the removal of a topic, or changes a drain to a removal by force. From then on, new messages are refused. The managers
    /// do the rest. Returns the way in which it is removed: a removal by force stays one. With an epoch, the topic is removed only if it
    /// is still at that epoch, or is already being removed in this way.
    ///
    /// # Errors
    /// [`BrokerError::Epoch`]; [`BrokerError::Resharding`]; [`BrokerError::Changing`] shortly after that; other [`BrokerError`]s. Calling
    /// again is safe.
    pub async fn remove_topic(
        &self,
        topic: &Topic,
        how: Removal,
        epoch: Option<u64>,
    ) -> Result<Removal, BrokerError> {
        let unknown = || BrokerError::UnknownTopic(topic.clone());
        let handle = self.load(topic).await?.ok_or_else(unknown)?;
        let (first, shards) = (handle.open(), handle.settings().shards);
        if handle.retired().is_some() {
            // The keys of its former shards are still to be dropped.
            return Err(BrokerError::Changing(topic.clone()));
        }
        let begun = self.begin_removal(&handle, Shard::new(first), how, epoch);
        let (how, epoch) = begun.await?.ok_or_else(unknown)?;
        // If this process stops now, the managers do the rest.
        self.register(topic, shards, epoch).await?;
        for shard in (first + 1..first + shards).map(Shard::new) {
            self.begin_removal(&handle, shard, how, None).await?;
        }
        match self.load(topic).await {
            Ok(_) => Ok(how),
            // They have done it.
            Err(BrokerError::UnknownTopic(_)) => {
                self.unregister(topic, epoch).await?;
                Ok(how)
            }
            Err(error) => Err(error),
        }
    }

    /// Marks one shard. Returns the way in which it is removed, and its epoch; `None` if it is gone.
    async fn begin_removal(
        &self,
        handle: &TopicHandle,
        shard: Shard,
        how: Removal,
        seen: Option<u64>,
    ) -> Result<Option<(Removal, u64)>, BrokerError> {
        let is_first = shard.get() == handle.open();
        let version = (!is_first).then_some(handle.life.version);
        let call = RemoveTopic { how, version, seen };
        let topic = handle.name().clone();
        let begun = self.run(handle.keys(shard)?, &call).await?;
        match begun.unwrap_or(RemovalBegun::Removed) {
            RemovalBegun::Removing { how, epoch } => Ok(Some((how, epoch))),
            RemovalBegun::Removed => Ok(None),
            RemovalBegun::Epoch(there) => Err(BrokerError::Epoch { topic, there }),
            RemovalBegun::Resharding(to) => Err(BrokerError::Resharding {
                topic,
                to: match to {
                    0 => handle.settings().shards,
                    to => to,
                },
            }),
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
            // It was created again.
            return Ok(ShardRemoval::Left(1));
        };
        let first = Shard::new(topic.open());
        if shard != first {
            return match self.begin_removal(topic, shard, how, None).await? {
                None => Ok(ShardRemoval::Gone),
                Some(_) => self.remove_keys(topic, shard, Duration::ZERO).await,
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
        self.remove_keys(topic, first, REMEMBERED_FOR).await
    }

    /// Returns what is left; for the first shard, unregisters the topic once nothing is.
    async fn remove_keys(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        keep: Duration,
    ) -> Result<ShardRemoval, BrokerError> {
        let call = RemoveShard { keep };
        let epoch = match self.general(topic, shard, None, &call).await {
            Ok((0, epoch)) => epoch,
            Ok((left, _)) => return Ok(ShardRemoval::Left(left)),
            // Another manager was faster.
            Err(BrokerError::UnknownTopic(_) | BrokerError::ShardGone { .. }) => topic.epoch(),
            Err(error) => return Err(error),
        };
        if !keep.is_zero() {
            self.unregister(topic.name(), epoch).await?;
            tracing::info!(topic = %topic.name(), "removed");
            // This process forgets it, or learns that it was created again.
            match self.load(topic.name()).await {
                Ok(_) | Err(BrokerError::UnknownTopic(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ShardRemoval::Gone)
    }

    /// Lists a topic that is being removed and is not listed, so that the managers go on: a failover can lose the end of a removal.
    pub(super) async fn resume_removal(&self, topic: &TopicHandle) -> Result<(), BrokerError> {
        let name = topic.name();
        let listed = command("HEXISTS", &self.inner.registry.topics).arg(name.as_str());
        if topic.removal().is_some() && !self.ask::<bool>(listed).await? {
            tracing::warn!(topic = %name, "a finished removal is unfinished again, for example after a failover; resuming it");
            let call = Register {
                topic: name,
                shards: topic.settings().shards,
                epoch: topic.epoch(),
                if_missing: true,
            };
            self.run_on_registry(&call).await?;
        }
        Ok(())
    }

    /// Removes the remains of an earlier topic of this name, which a failover has brought back, from a shard of the topic that is being
    /// declared. Returns false if the shard belongs to the latter.
    pub(super) async fn remove_leftover(
        &self,
        topic: &Topic,
        shard: Shard,
        new: &scripts::Declare<'_>,
    ) -> Result<bool, BrokerError> {
        let Some(version) = new.version else {
            return Ok(false);
        };
        // A removal of the present topic marks its first shard before the others, and a shard may have missed a change of its settings.
        let present = self.load(topic).await?;
        let is_current = |present: &Arc<TopicHandle>| {
            present.removal().is_none() && present.life.version == version
        };
        if !present.as_ref().is_some_and(is_current) {
            return Ok(false);
        }
        let conf = ShardKeys::new(&self.inner.namespace, topic, shard, &[]).conf;
        let groups: Option<String> = self.ask(command("HGET", &conf).arg("groups")).await?;
        let groups = self.groups_in(topic, &groups.unwrap_or_default())?;
        let keys = ShardKeys::new(&self.inner.namespace, topic, shard, &groups);
        let begin = RemoveTopic {
            how: Removal::Force,
            version: Some(version - 1),
            seen: None,
        };
        match self.run(&keys, &begin).await? {
            Ok(RemovalBegun::Removing { .. }) => {}
            _ => return Ok(false),
        }
        tracing::warn!(%topic, %shard, "a failover has brought back a shard of a removed topic; removing it");
        let keep = Duration::ZERO;
        let remove = Call {
            now: self.virtual_now(),
            groups: &keys.group_names,
            group: None,
            general: &RemoveShard { keep },
        };
        let removed = self.run(&keys, &remove).await?;
        Ok(removed.is_ok())
    }

    /// Takes a removed topic out of the registry, unless it was created again.
    pub(super) async fn unregister(&self, topic: &Topic, epoch: u64) -> Result<(), BrokerError> {
        self.run_on_registry(&Unregister { topic, epoch }).await?;
        Ok(())
    }
}
