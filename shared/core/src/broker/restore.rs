//! Restores topics and groups that are gone from Redis, as after a restore of older data or a `FLUSHALL`.

use std::sync::Arc;

use tokio::time::timeout;

use crate::broker::declare::Declare;
use crate::broker::reshard::shard_map::ShardMap;
use crate::broker::{Broker, BrokerError, TopicHandle};
use crate::scripts::Redirect;
use crate::topic::{Shard, Topic};

impl Broker {
    /// Restores a topic of which a call has found a shard undeclared. Of concurrent calls, one restores all shards, and the others wait
    /// for it: otherwise, each of them would declare and read all shards.
    pub(super) async fn restore(
        &self,
        handle: &TopicHandle,
        shard: Shard,
    ) -> Result<(), BrokerError> {
        let topic = handle.name();
        let lock = { self.inner.restoring.lock() }
            .entry(topic.clone())
            .or_default()
            .clone();
        let restored = match lock.try_lock() {
            Ok(_locked) => self.restore_all(handle, shard).await,
            Err(_) => match timeout(self.inner.call_timeout, lock.lock()).await {
                Ok(_locked) => match self.is_declared(handle, shard).await {
                    Ok(true) => Ok(()),
                    Ok(false) => self.restore_all(handle, shard).await,
                    Err(error) => Err(error),
                },
                Err(_) => Err(BrokerError::Changing(topic.clone())),
            },
        };
        drop(lock);
        let mut restoring = self.inner.restoring.lock();
        let is_last = { restoring.get(topic) }.is_some_and(|lock| Arc::strong_count(lock) == 1);
        if is_last {
            restoring.remove(topic);
        }
        restored
    }

    async fn restore_all(&self, handle: &TopicHandle, shard: Shard) -> Result<(), BrokerError> {
        let topic = handle.name();
        let there = self.load(topic).await?;
        let is_removed = { there.as_ref() }.is_some_and(|there| there.removal().is_some());
        if is_removed {
            let topic = topic.clone();
            return Err(BrokerError::ShardGone { topic, shard });
        }
        // A retired shard is gone for good, and the newest handle no longer has it.
        if there.is_none_or(|there| there.has(shard)) {
            tracing::warn!(%topic, "topic is gone from Redis; declaring it again");
            self.declare_again(handle).await?;
        }
        Ok(())
    }

    /// Restores a topic, or groups of it, with the newest settings known to this process. The group of an instance is
    /// restored by that instance.
    pub(super) async fn declare_again(&self, topic: &TopicHandle) -> Result<(), BrokerError> {
        let newest = self.known(topic.name());
        let newest = newest.as_deref().unwrap_or(topic);
        let settings = newest.settings();
        let mut map = ShardMap::of(newest.open());
        match self.load(topic.name()).await? {
            // It is there, on other shards than this process knew.
            Some(there) if there.open() != newest.open() => return Ok(()),
            Some(there) => map = there.shard_map(),
            // Processes may know it on different shards: the first of them decides.
            None if newest.open() > 0 => {
                let redirect = Redirect {
                    next: newest.open(),
                    restores: true,
                };
                map = ShardMap::of(self.redirect(topic.name(), &redirect).await?);
            }
            None => {}
        }
        let mut groups = settings.groups.clone();
        for group in newest.groups() {
            if !group.is_of_instance() && !groups.contains(group) {
                groups.push(group.clone());
            }
        }
        self.declare_groups(topic.name(), settings, &groups, Declare::Create, map)
            .await?;
        Ok(())
    }

    /// Declares every topic that this process knows and Redis does not, with the settings known to this process. Returns
    /// their names. A topic that cannot be declared is logged once and left out.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn redeclare_lost(&self) -> Result<Vec<Topic>, BrokerError> {
        // Read first: a topic is registered before this process knows it.
        let known = self.known_topics();
        let registered = self.registered().await?;
        let mut lost = Vec::new();
        for handle in known {
            let is_there = registered.contains_key(handle.name());
            // A topic whose server is unavailable has its turn when the server is back.
            if !is_there && self.is_within_reach(handle.name()) {
                match self.declare_again(&handle).await {
                    // It was removed; or another process restores it, and this one follows in its next turn.
                    Err(
                        BrokerError::UnknownTopic(_)
                        | BrokerError::Changing(_)
                        | BrokerError::Fixed { .. },
                    ) => {}
                    Err(error) if error.is_of_one_topic() => {
                        self.cannot_read(handle.name().as_str(), &error);
                    }
                    declared => {
                        declared?;
                        lost.push(handle.name().clone());
                    }
                }
            }
        }
        Ok(lost)
    }
}
