//! Operations on groups: pause and resume, retire and remove, and join, which makes the group of one running consumer.

pub(crate) mod garbage_hook;

use crate::broker::execute::Tries;
use crate::broker::shards::unless_gone;
use crate::broker::{Broker, BrokerError, MAX_GENERAL_BATCH, TopicHandle};
use crate::scripts::{
    Join, Joined, Pause, PauseGroup, RemoveGroup, Removed, Retire, Retired, Retirement,
};
use crate::topic::{Group, Shard};

/// The state of the group of one running consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// The group is there for `instance_ttl` from now.
    Member,
    /// The consumer was silent for longer than that, and its group is being removed. It must join under another name.
    Lapsed,
}

impl Broker {
    /// Pauses or resumes a topic. Returns whether that changed anything. While a topic is paused, messages are accepted
    /// but none becomes ready.
    ///
    /// # Errors
    /// [`BrokerError`]; some shards may already be changed. Calling again is safe.
    pub async fn pause(&self, topic: &TopicHandle, paused: bool) -> Result<bool, BrokerError> {
        let mut changed = false;
        let mut shards = self.all_shards(topic);
        while let Some((topic, shard)) = shards.next().await? {
            let done = self.general(&topic, shard, None, &Pause { paused }).await;
            changed |= unless_gone(done)? == Some(true);
        }
        Ok(changed)
    }

    /// Pauses or resumes one group of a topic. Returns whether that changed anything. Messages that become due meanwhile
    /// gather in the group's backlog. Other groups are not affected.
    ///
    /// # Errors
    /// [`BrokerError`]; some shards may already be changed. Calling again is safe.
    pub async fn pause_group(
        &self,
        topic: &TopicHandle,
        group: &Group,
        paused: bool,
    ) -> Result<bool, BrokerError> {
        let mut changed = false;
        let mut shards = self.all_shards(topic);
        while let Some((topic, shard)) = shards.next().await? {
            let call = PauseGroup { paused };
            let done = self.general(&topic, shard, Some(group), &call).await;
            changed |= unless_gone(done)? == Some(true);
        }
        Ok(changed)
    }

    /// Retires a group: it gets no new messages, so that [`Broker::remove_group`] can remove it. `None` cancels the
    /// retirement. If no other group gets messages, due messages wait for one.
    ///
    /// # Errors
    /// [`BrokerError`]; some shards may already be changed. Calling again is safe.
    pub async fn retire(
        &self,
        topic: &TopicHandle,
        group: &Group,
        how: Option<Retirement>,
    ) -> Result<Retired, BrokerError> {
        let mut retired = Retired::Same;
        let mut shards = self.all_shards(topic);
        while let Some((topic, shard)) = shards.next().await? {
            let call = Retire { how };
            let done = self.general(&topic, shard, Some(group), &call).await;
            if unless_gone(done)? == Some(Retired::Done) {
                retired = Retired::Done;
            }
        }
        Ok(retired)
    }

    /// Removes a retiring group from a shard. If its messages are to be dropped, drops a batch of them first.
    ///
    /// # Errors
    /// [`BrokerError`]; part of it may already be removed. Calling again is safe.
    pub async fn remove_group(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
    ) -> Result<Removed, BrokerError> {
        let batch = MAX_GENERAL_BATCH as u16;
        self.remove_group_by(topic, shard, group, batch).await
    }

    /// Does the same as [`Broker::remove_group`], with a batch of 1 to 50 messages.
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
            tracing::info!(topic = %topic.name(), %shard, %group, "group removed");
            let newest = self.topic(topic.name()).await?;
            self.reload_groups(&newest, shard).await?;
            if !newest.is_retiring(shard) {
                self.register(topic.name(), topic.settings().shards, epoch)
                    .await?;
            }
        }
        Ok(removed)
    }

    /// Creates the group of one running consumer on all shards, or reports that the consumer still runs. The group gets
    /// the messages that become due from then on.
    ///
    /// # Errors
    /// [`BrokerError`]; the group may already be on some shards. Calling again is safe.
    pub async fn join(
        &self,
        topic: &TopicHandle,
        group: &Group,
    ) -> Result<Membership, BrokerError> {
        let mut newest = 0;
        let mut shards = self.all_shards(topic);
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
                    if new && !handle.is_retiring(shard) {
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
