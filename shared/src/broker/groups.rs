//! The groups of a topic: pause and resume, retire and remove; and the group of one running consumer.

use std::sync::Arc;

use super::{Broker, BrokerError, MAX_FULL_BATCH, TopicHandle};
use crate::scripts::{
    Join, Joined, Pause, PauseGroup, Refusal, RemoveGroup, Removed, Retire, Retired, Retirement,
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
        loop {
            let topic = self.newest(topic).await?;
            for shard in topic.shards() {
                let call = Pause { paused };
                let done = self.general(&topic, shard, None, &call).await;
                changed |= self.unless_gone(&topic, shard, done)? == Some(true);
            }
            if !self.has_moved(&topic).await? {
                return Ok(changed);
            }
        }
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
        loop {
            let topic = self.newest(topic).await?;
            for shard in topic.shards() {
                let call = PauseGroup { paused };
                let done = self.general(&topic, shard, Some(group), &call).await;
                changed |= self.unless_gone(&topic, shard, done)? == Some(true);
            }
            if !self.has_moved(&topic).await? {
                return Ok(changed);
            }
        }
    }

    /// Lets a group get nothing new any more, so that [`Broker::remove_group`] can remove it; `None` takes that
    /// back. Does nothing if no other group would be left.
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
        loop {
            let topic = self.newest(topic).await?;
            for shard in topic.shards() {
                let call = Retire { how };
                let done = self.general(&topic, shard, Some(group), &call).await;
                match self.unless_gone(&topic, shard, done)? {
                    None | Some(Retired::Same) => {}
                    Some(Retired::Done) => retired = Retired::Done,
                    Some(Retired::Last) => return Ok(Retired::Last),
                }
            }
            if !self.has_moved(&topic).await? {
                return Ok(retired);
            }
        }
    }

    /// Gives a topic with the shards that it has now: what is told to all of them must reach those that were opened
    /// since this process heard of it.
    pub(super) async fn newest(
        &self,
        topic: &TopicHandle,
    ) -> Result<Arc<TopicHandle>, BrokerError> {
        let known = self.topic(topic.name()).await?;
        if self.has_moved(&known).await? {
            return Ok(self.load(topic.name()).await?.unwrap_or(known));
        }
        Ok(known)
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
        let call = RemoveGroup {
            batch: MAX_FULL_BATCH as u16,
        };
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
        for shard in topic.shards() {
            let handle = self.topic(topic.name()).await?;
            let keys = handle.keys_of_new_group(&self.inner.namespace, shard, group);
            let call = Join {
                now: self.virtual_now(),
                group,
            };
            let joined = match self.run(&keys.group(0), &call).await? {
                Ok(joined) => joined,
                Err(Refusal::Undeclared) => {
                    self.declare_again(&handle).await?;
                    self.run(&keys.group(0), &call)
                        .await?
                        .map_err(|_| BrokerError::UnknownTopic(topic.name().clone()))?
                }
                Err(_) => return Err(BrokerError::Changing(topic.name().clone())),
            };
            match joined {
                Joined::Member { new, epoch } => {
                    if new || handle.index(handle.keys(shard)?, group).is_err() {
                        self.reload_groups(&handle, shard).await?;
                    }
                    if new && !handle.is_leaving(shard) {
                        newest = newest.max(epoch);
                    }
                }
                Joined::Retiring => return Ok(Membership::Lapsed),
            }
        }
        if newest > 0 {
            self.register(topic.name(), topic.settings().shards, newest)
                .await?;
        }
        Ok(Membership::Member)
    }
}
