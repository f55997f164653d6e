//! The groups of a topic: pause and resume, retire and remove; and the group of one running consumer.

use super::each_shard::unless_gone;
use super::run::Tries;
use super::{Broker, BrokerError, MAX_FULL_BATCH, TopicHandle};
use crate::scripts::{
    Join, Joined, Pause, PauseGroup, RemoveGroup, Removed, Retire, Retired, Retirement,
};
use crate::topic::{Group, Shard};

/// Whether the group of a running consumer is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// It is, for `instance_ttl` from now.
    Member,
    /// It was silent for longer than that and goes away: the consumer must join under another name.
    Lapsed,
}

impl Broker {
    /// Stops a topic, or lets it go on; says whether that changed anything. While it is paused
    /// messages are accepted and nothing new becomes ready.
    ///
    /// # Errors
    /// [`BrokerError`]; some shards may be changed then, and calling again is safe.
    pub async fn pause(&self, topic: &TopicHandle, paused: bool) -> Result<bool, BrokerError> {
        let mut changed = false;
        let mut shards = self.each_shard(topic);
        while let Some((topic, shard)) = shards.next().await? {
            let done = self.general(&topic, shard, None, &Pause { paused }).await;
            changed |= unless_gone(done)? == Some(true);
        }
        Ok(changed)
    }

    /// Stops one group of a topic, or lets it go on; says whether that changed anything. What becomes due
    /// for it meanwhile gathers in its backlog; the other groups do not notice.
    ///
    /// # Errors
    /// [`BrokerError`]; some shards may be changed then, and calling again is safe.
    pub async fn pause_group(
        &self,
        topic: &TopicHandle,
        group: &Group,
        paused: bool,
    ) -> Result<bool, BrokerError> {
        let mut changed = false;
        let mut shards = self.each_shard(topic);
        while let Some((topic, shard)) = shards.next().await? {
            let call = PauseGroup { paused };
            let done = self.general(&topic, shard, Some(group), &call).await;
            changed |= unless_gone(done)? == Some(true);
        }
        Ok(changed)
    }

    /// Lets a group get nothing new any more, so that [`Broker::remove_group`] can remove it; `None` takes that
    /// back. Where no other group gets messages, what becomes due waits for one.
    ///
    /// # Errors
    /// [`BrokerError`]; some shards may be changed then, and calling again is safe.
    pub async fn retire(
        &self,
        topic: &TopicHandle,
        group: &Group,
        how: Option<Retirement>,
    ) -> Result<Retired, BrokerError> {
        let mut retired = Retired::Same;
        let mut shards = self.each_shard(topic);
        while let Some((topic, shard)) = shards.next().await? {
            let call = Retire { how };
            let done = self.general(&topic, shard, Some(group), &call).await;
            if unless_gone(done)? == Some(Retired::Done) {
                retired = Retired::Done;
            }
        }
        Ok(retired)
    }

    /// Removes a retiring group from a shard; first, in batches, what it still has, if that shall be dropped.
    ///
    /// # Errors
    /// [`BrokerError`]; part of it may be removed then, and calling again is safe.
    pub async fn remove_group(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
    ) -> Result<Removed, BrokerError> {
        let batch = MAX_FULL_BATCH as u16;
        self.remove_group_by(topic, shard, group, batch).await
    }

    /// The same, with a batch of 1 to 50 messages.
    ///
    /// # Errors
    /// As [`Broker::remove_group`].
    pub async fn remove_group_by(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        batch: u16,
    ) -> Result<Removed, BrokerError> {
        let call = RemoveGroup { batch };
        let removed = self.general(topic, shard, Some(group), &call).await?;
        if let Removed::Gone { epoch, .. } = removed {
            tracing::info!(topic = %topic.name(), %shard, %group, "the group is removed");
            let newest = self.topic(topic.name()).await?;
            self.reload_groups(&newest, shard).await?;
            if !newest.is_leaving(shard) {
                self.register(topic.name(), topic.settings().shards, epoch)
                    .await?;
            }
        }
        Ok(removed)
    }

    /// Makes the group of one running consumer on all shards, or tells that the consumer still runs. It gets what
    /// becomes due from then on.
    ///
    /// # Errors
    /// [`BrokerError`]; it may be on some shards then, and calling again is safe.
    pub async fn join(
        &self,
        topic: &TopicHandle,
        group: &Group,
    ) -> Result<Membership, BrokerError> {
        let mut newest = 0;
        let mut shards = self.each_shard(topic);
        while let Some((handle, shard)) = shards.next().await? {
            let Some(joined) = unless_gone(self.join_on(&handle, shard, group).await)? else {
                continue;
            };
            match joined {
                Joined::Member { new, epoch } => {
                    let is_known = handle.index(handle.keys(shard)?, group).is_ok();
                    if new || !is_known {
                        unless_gone(self.reload_groups(&handle, shard).await)?;
                    }
                    if new && !handle.is_leaving(shard) {
                        newest = newest.max(epoch);
                    }
                }
                Joined::Retiring => return Ok(Membership::Lapsed),
            }
        }
        if newest > 0 {
            let shards = self.topic(topic.name()).await?.settings().shards;
            self.register(topic.name(), shards, newest).await?;
        }
        Ok(Membership::Member)
    }

    async fn join_on(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
    ) -> Result<Joined, BrokerError> {
        let keys = topic.keys_of_new_group(&self.inner.namespace, shard, group);
        let keys = keys.group(group).ok_or_else(|| topic.has_no(group))?;
        let call = Join {
            now: self.virtual_now(),
            group,
        };
        let mut tries = Tries::new(topic);
        loop {
            match self.run(&keys, &call).await? {
                Ok(joined) => return Ok(joined),
                Err(refusal) => self.recover(&mut tries, topic, shard, refusal).await?,
            }
            self.topic(topic.name()).await?.keys(shard)?;
        }
    }
}
