//! Changes to stored messages: cancel, reschedule, requeue, and purge; and the cleanup by the manager.

use crate::broker::reply::{Seen, command};
use crate::broker::shards::unless_gone;
use crate::broker::{Broker, BrokerError, MAX_GENERAL_BATCH, TopicHandle};
use crate::message::{EntryId, MessageId, OrderingKey};
use crate::scripts::{
    Before, Cancel, Clean, Cleaned, Forget, Forgotten, Purge, Requeue, Reschedule,
};
use crate::state::{CancelOutcome, RescheduleOutcome};
use crate::time::{UnixMs, When, millis};
use crate::topic::{Group, Shard};

/// The number of tombstones that one call drops: half a millisecond of Redis's time.
const FORGET_BATCH: u16 = 500;
/// The number of entries that one clean checks. Nearly all turn out to be fine.
const CLEAN_BATCH: u16 = 200;

/// A change to messages in garbage.
#[derive(Clone, Copy)]
enum Change {
    Requeue,
    Purge,
}

/// A message found in garbage.
struct InGarbage {
    /// Its index among the requested ids, and the index of the shard among the shards it may be on.
    order: (usize, usize),
    shard: Shard,
    /// True if the shard is retiring.
    is_retiring: bool,
    time: UnixMs,
}

impl InGarbage {
    /// Returns whether `before` is the same message, found on this shard or on the retiring shard that it has migrated
    /// from since.
    fn is_same_as(&self, before: &Self) -> bool {
        let is_there = before.shard == self.shard || before.is_retiring;
        before.order.0 == self.order.0 && before.time == self.time && is_there
    }
}

impl Broker {
    /// Cancels a message that is neither on the stream nor in garbage. Asks the shards in turn if neither the key nor
    /// the id determines the shard.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn cancel(
        &self,
        topic: &TopicHandle,
        id: &MessageId,
        key: Option<&OrderingKey>,
    ) -> Result<CancelOutcome, BrokerError> {
        let mut search = self.search(topic, id, key);
        while let Some(shard) = self.next_shard(&mut search).await? {
            let cancelled = self.cancel_on(topic, shard, id).await;
            match unless_gone(cancelled)? {
                None => {}
                Some(CancelOutcome::Unknown { end }) => search.end = search.end.or(end),
                Some(known) => return Ok(known),
            }
        }
        Ok(CancelOutcome::Unknown { end: search.end })
    }

    /// Cancels a message on one shard if it is neither on the stream nor in garbage.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn cancel_on(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        id: &MessageId,
    ) -> Result<CancelOutcome, BrokerError> {
        self.general(topic, shard, None, &Cancel { id }).await
    }

    /// Changes the due time of a message that is neither on the stream nor in garbage. Asks the shards in turn if
    /// neither the key nor the id determines the shard.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn reschedule(
        &self,
        topic: &TopicHandle,
        id: &MessageId,
        key: Option<&OrderingKey>,
        when: When,
    ) -> Result<RescheduleOutcome, BrokerError> {
        let mut search = self.search(topic, id, key);
        while let Some(shard) = self.next_shard(&mut search).await? {
            let rescheduled = self.reschedule_on(topic, shard, id, when).await;
            match unless_gone(rescheduled)? {
                None => {}
                Some(RescheduleOutcome::Unknown { end }) => search.end = search.end.or(end),
                Some(known) => return Ok(known),
            }
        }
        Ok(RescheduleOutcome::Unknown { end: search.end })
    }

    /// Changes the due time of a message on one shard if it is neither on the stream nor in garbage.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn reschedule_on(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        id: &MessageId,
        when: When,
    ) -> Result<RescheduleOutcome, BrokerError> {
        let call = Reschedule { id, when };
        self.general(topic, shard, None, &call).await
    }

    /// Requeues messages from a group's garbage (dead letters). Returns the number of requeued messages. Skips a message
    /// that has left garbage since it was seen, even if it came back.
    ///
    /// # Errors
    /// [`BrokerError`]; some may already be requeued. Calling again is safe.
    pub async fn requeue(
        &self,
        topic: &TopicHandle,
        group: &Group,
        seen: &[Seen],
    ) -> Result<u64, BrokerError> {
        self.change_garbage(topic, group, seen, Change::Requeue)
            .await
    }

    /// Purges messages from a group's garbage. Returns the number of purged messages. Skips a message that has left
    /// garbage since it was seen, even if it came back.
    ///
    /// # Errors
    /// [`BrokerError`]; some may already be purged. Calling again is safe.
    pub async fn purge(
        &self,
        topic: &TopicHandle,
        group: &Group,
        seen: &[Seen],
    ) -> Result<u64, BrokerError> {
        self.change_garbage(topic, group, seen, Change::Purge).await
    }

    async fn change_garbage(
        &self,
        topic: &TopicHandle,
        group: &Group,
        seen: &[Seen],
        change: Change,
    ) -> Result<u64, BrokerError> {
        let mut count = 0;
        let mut search = self.search_all(topic, seen.iter().map(|(id, _)| id));
        while let Some(shard) = self.next_shard(&mut search).await? {
            let handle = self.topic(topic.name()).await?;
            // A call changes nothing on a shard that does not have the message.
            let may_be_there = |(id, _): &&Seen| handle.shards_of(id, None).contains(&shard);
            let items: Vec<Seen> = seen.iter().filter(may_be_there).cloned().collect();
            for items in items.chunks(MAX_GENERAL_BATCH) {
                let group = Some(group);
                let changed = match change {
                    Change::Requeue => self.general(topic, shard, group, &Requeue { items }).await,
                    Change::Purge => self.general(topic, shard, group, &Purge { items }).await,
                };
                count += unless_gone(changed)?.unwrap_or(0);
            }
        }
        Ok(count)
    }

    /// Returns the given messages that are in a group's garbage, each with its garbage time.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn in_garbage(
        &self,
        topic: &TopicHandle,
        group: &Group,
        ids: &[MessageId],
    ) -> Result<Vec<Seen>, BrokerError> {
        let mut found: Vec<InGarbage> = Vec::new();
        let mut search = self.search_all(topic, ids);
        while let Some(shard) = self.next_shard(&mut search).await? {
            let handle = self.topic(topic.name()).await?;
            let Some(keys) = unless_gone(handle.group_keys(shard, group))? else {
                continue;
            };
            for (index, id) in ids.iter().enumerate() {
                let shards = handle.shards_of(id, None);
                let Some(rank) = shards.iter().position(|other| *other == shard) else {
                    continue;
                };
                let score = command("ZSCORE", &keys.group.garbage).arg(id.as_str());
                let Some(time) = self.ask(score).await? else {
                    continue;
                };
                let this = InGarbage {
                    order: (index, rank),
                    shard,
                    is_retiring: handle.is_retiring(shard),
                    time,
                };
                if !found.iter().any(|other| this.is_same_as(other)) {
                    found.push(this);
                }
            }
        }
        found.sort_by_key(|found| found.order);
        let seen = |found: InGarbage| Some((ids.get(found.order.0)?.clone(), found.time));
        Ok(found.into_iter().filter_map(seen).collect())
    }

    /// Purges up to 50 messages that have been in a group's garbage on a shard for longer than the topic keeps them.
    /// Returns the number of purged messages.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn purge_old(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
    ) -> Result<u64, BrokerError> {
        let keys = topic.group_keys(shard, group)?;
        let oldest = self
            .now_at(topic, shard)
            .get()
            .saturating_sub(millis(topic.settings().garbage.max_age));
        let range = command("ZRANGE", &keys.group.garbage)
            .arg("-inf")
            .arg(format!("({oldest}"))
            .arg(&["BYSCORE", "LIMIT", "0"])
            .arg(MAX_GENERAL_BATCH)
            .arg("WITHSCORES");
        let items = self.ask_seen(range).await?;
        if items.is_empty() {
            return Ok(0);
        }
        let call = Purge { items: &items };
        self.general(topic, shard, Some(group), &call).await
    }

    /// Recovers entries that were delivered to a group but that no consumer holds. Also retires the group of an instance
    /// that is gone, and makes the shard plain again once it uses no feature. Checks up to 200 entries.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn clean(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        after: Option<EntryId>,
    ) -> Result<Cleaned, BrokerError> {
        let call = Clean {
            after,
            batch: CLEAN_BATCH,
        };
        let cleaned = self.general(topic, shard, Some(group), &call).await?;
        let Cleaned {
            recovered, lost, ..
        } = cleaned;
        if recovered + lost > 0 {
            tracing::warn!(topic = %topic.name(), %shard, %group, recovered, lost, "found entries that no consumer held");
        }
        Ok(cleaned)
    }

    /// Drops up to 500 tombstones of a shard that are older than the dedup window, oldest first.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn forget(
        &self,
        topic: &TopicHandle,
        shard: Shard,
    ) -> Result<Forgotten, BrokerError> {
        let window = Before::Window(topic.settings().dedup_window);
        self.forget_old(topic, shard, window).await
    }

    /// Drops up to 500 tombstones of a shard that are older than an instant, oldest first, although the dedup window has not ended:
    /// the ids of these messages can be used again.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn forget_before(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        instant: UnixMs,
    ) -> Result<Forgotten, BrokerError> {
        self.forget_old(topic, shard, Before::Instant(instant))
            .await
    }

    async fn forget_old(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        before: Before,
    ) -> Result<Forgotten, BrokerError> {
        let call = Forget {
            now: self.virtual_now(),
            before,
            batch: FORGET_BATCH,
        };
        let unknown = |_| BrokerError::UnknownTopic(topic.name().clone());
        self.run(topic.keys(shard)?, &call).await?.map_err(unknown)
    }
}
