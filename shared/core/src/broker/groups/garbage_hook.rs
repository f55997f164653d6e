//! Operations of consumers on garbage hooks: messages that moved to garbage and whose hook has not run yet.

use std::time::Duration;

use crate::broker::list::GarbageInfo;
use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError, TopicHandle};
use crate::message::MessageId;
use crate::scripts::{
    EnableGarbageHook, FinishGarbageHook, TakeGarbageHooks, TakenGarbageHook, TakenGarbageHooks,
};
use crate::time::{UnixMs, millis};
use crate::topic::{Group, Shard};

/// The maximum number of hooks that one call takes.
const BATCH: usize = 100;

/// A message in garbage whose hook is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingHook {
    /// The message.
    pub id: MessageId,
    /// The time at which it moved to garbage.
    pub time: UnixMs,
    /// The reason; `None` if it is unreadable.
    pub garbage: Option<GarbageInfo>,
}

impl Broker {
    /// Enables the hook for messages that move to the group's garbage from now on.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn enable_garbage_hook(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
    ) -> Result<(), BrokerError> {
        let gone = |_| BrokerError::UnknownTopic(topic.name().clone());
        let keys = topic.group_keys(shard, group)?;
        let enable = EnableGarbageHook { group };
        if self.run(&keys, &enable).await?.is_err() {
            self.declare_again(topic).await?;
            self.run(&keys, &enable).await?.map_err(gone)?;
        }
        Ok(())
    }

    /// Takes up to `count` (at most 100) messages in garbage whose hook is due. Also returns whether more may be due. No
    /// other call gets them before `lease` has passed.
    ///
    /// The first call enables the hook for messages that move to the group's garbage from then on, not for those already
    /// there.
    ///
    /// # Errors
    /// [`BrokerError`]; some may already be taken. They come again after the lease.
    pub async fn take_garbage_hooks(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        count: usize,
        lease: Duration,
    ) -> Result<(Vec<PendingHook>, bool), BrokerError> {
        let take = TakeGarbageHooks {
            now: self.virtual_now(),
            group,
            batch: count.clamp(1, BATCH) as u16,
            lease,
        };
        let keys = topic.group_keys(shard, group)?;
        let taken = self.run(&keys, &take).await?;
        let taken = taken.map_err(|_| BrokerError::UnknownTopic(topic.name().clone()))?;
        let Some(TakenGarbageHooks { more, hooks }) = taken else {
            self.enable_garbage_hook(topic, shard, group).await?;
            // Only messages that move to garbage from now on have a hook.
            return Ok((Vec::new(), false));
        };
        let pending = |taken: TakenGarbageHook| PendingHook {
            id: taken.id,
            time: taken.time,
            garbage: GarbageInfo::parse(&taken.info),
        };
        Ok((hooks.into_iter().map(pending).collect(), more))
    }

    /// Keeps others from taking a hook for another `lease`, because it still runs. A finished hook stays finished.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn keep_garbage_hook(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        id: &MessageId,
        lease: Duration,
    ) -> Result<(), BrokerError> {
        let until = self.now_at(topic, shard).get() + millis(lease);
        let hooks = &topic.group_keys(shard, group)?.group.garbage_hook;
        let add = command("ZADD", hooks).arg(&["XX", "GT"]);
        self.ask(add.arg(until).arg(id.as_str())).await
    }

    /// Removes a hook that is done. Returns whether it was there. `time` is that of the [`PendingHook`]: a message that
    /// moved to garbage again since keeps its new hook.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn finish_garbage_hook(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        id: &MessageId,
        time: UnixMs,
    ) -> Result<bool, BrokerError> {
        let items = [(id.clone(), time)];
        let finish = FinishGarbageHook { items: &items };
        let keys = topic.group_keys(shard, group)?;
        let finished = self.run(&keys, &finish).await?;
        Ok(finished.map_err(|_| BrokerError::UnknownTopic(topic.name().clone()))? > 0)
    }
}
