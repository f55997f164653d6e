//! What users and operators ask: cancel, reschedule, requeue, purge, pause; and the manager: clean.

use std::collections::BTreeMap;

use redis::Value;

use super::deliver::{command, text};
use super::{Broker, BrokerError, MAX_BATCH, TopicHandle};
use crate::message::{EntryId, MessageId};
use crate::scripts::{Cancel, Clean, CleanReply, Pause, Purge, Requeue, Reschedule, unexpected};
use crate::state::{CancelOutcome, RescheduleOutcome};
use crate::time::{UnixMs, When, millis};
use crate::topic::{Group, Shard};

/// A message in garbage, with the time that was seen: it fences a requeue or purge against a
/// message that came back to garbage since.
pub(super) type Seen = (MessageId, UnixMs);

impl Broker {
    /// Removes a message that is not on the stream and not in garbage. If its id does not tell the
    /// shard, the shards are asked in turn.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn cancel(
        &self,
        topic: &TopicHandle,
        id: &MessageId,
    ) -> Result<CancelOutcome, BrokerError> {
        let mut ended = None;
        for shard in topic.shards_of(id) {
            match self.cancel_on(topic, shard, id).await? {
                CancelOutcome::Unknown { end } => ended = ended.or(end),
                known => return Ok(known),
            }
        }
        Ok(CancelOutcome::Unknown { end: ended })
    }

    /// Removes a message of one shard that is not on the stream and not in garbage.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn cancel_on(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        id: &MessageId,
    ) -> Result<CancelOutcome, BrokerError> {
        let (group, keys) = topic.first_group(shard);
        let call = Cancel {
            now: self.virtual_now(),
            group,
            id,
        };
        self.run(&keys, &call).await
    }

    /// Gives a message that is not on the stream and not in garbage another due time. If its id does
    /// not tell the shard, the shards are asked in turn.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn reschedule(
        &self,
        topic: &TopicHandle,
        id: &MessageId,
        when: When,
    ) -> Result<RescheduleOutcome, BrokerError> {
        let mut ended = None;
        for shard in topic.shards_of(id) {
            match self.reschedule_on(topic, shard, id, when).await? {
                RescheduleOutcome::Unknown { end } => ended = ended.or(end),
                known => return Ok(known),
            }
        }
        Ok(RescheduleOutcome::Unknown { end: ended })
    }

    /// Gives a message of one shard that is not on the stream and not in garbage another due time.
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
        let (_, keys) = topic.first_group(shard);
        let call = Reschedule {
            now: self.virtual_now(),
            id,
            when,
        };
        self.run(&keys, &call).await
    }

    /// Delivers messages in a group's garbage again; gives how many. One that moved on since it was seen stays.
    ///
    /// # Errors
    /// [`BrokerError`]; some may be requeued then, and calling again is safe.
    pub async fn requeue(
        &self,
        topic: &TopicHandle,
        group: &Group,
        seen: &[Seen],
    ) -> Result<u64, BrokerError> {
        let mut count = 0;
        for (shard, items) in by_shard(topic, seen) {
            let keys = topic.group_keys(shard, group)?;
            for items in items.chunks(MAX_BATCH) {
                let call = Requeue {
                    now: self.virtual_now(),
                    group,
                    items,
                };
                count += self.run(&keys, &call).await?;
            }
        }
        Ok(count)
    }

    /// Removes messages in a group's garbage; gives how many. One that moved on since it was seen stays.
    ///
    /// # Errors
    /// [`BrokerError`]; some may be purged then, and calling again is safe.
    pub async fn purge(
        &self,
        topic: &TopicHandle,
        group: &Group,
        seen: &[Seen],
    ) -> Result<u64, BrokerError> {
        let mut count = 0;
        for (shard, items) in by_shard(topic, seen) {
            let keys = topic.group_keys(shard, group)?;
            for items in items.chunks(MAX_BATCH) {
                let call = Purge {
                    now: self.virtual_now(),
                    group,
                    items,
                };
                count += self.run(&keys, &call).await?;
            }
        }
        Ok(count)
    }

    /// Gives those of the messages that are in a group's garbage, with their times.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn in_garbage(
        &self,
        topic: &TopicHandle,
        group: &Group,
        ids: &[MessageId],
    ) -> Result<Vec<Seen>, BrokerError> {
        let mut seen = Vec::new();
        let places = ids
            .iter()
            .flat_map(|id| topic.shards_of(id).map(move |shard| (id, shard)));
        for (id, shard) in places {
            let keys = topic.group_keys(shard, group)?;
            let mut cmd = command("ZSCORE", &keys.group.garbage);
            cmd.arg(id.as_str());
            let score = self.inner.link.call(&cmd, self.inner.patience).await?;
            if let Some(time) = score_ms(&score)? {
                seen.push((id.clone(), time));
            }
        }
        Ok(seen)
    }

    /// Purges up to [`MAX_BATCH`] messages of a shard that were in a group's garbage for longer than
    /// the topic keeps them; gives how many.
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
            .now()
            .get()
            .saturating_sub(millis(topic.settings().garbage.max_age));
        let mut cmd = command("ZRANGE", &keys.group.garbage);
        cmd.arg("-inf").arg(format!("({oldest}")).arg("BYSCORE");
        cmd.arg("LIMIT").arg(0).arg(MAX_BATCH).arg("WITHSCORES");
        let items = pairs(&self.inner.link.call(&cmd, self.inner.patience).await?)?;
        if items.is_empty() {
            return Ok(0);
        }
        let call = Purge {
            now: self.virtual_now(),
            group,
            items: &items,
        };
        self.run(&keys, &call).await
    }

    /// Drops tombstones of a shard that are older than the dedup window, and recovers entries that
    /// were delivered to a group and are held by nobody. Looks at up to [`MAX_BATCH`] of each; gives where to
    /// go on, and whether more tombstones are old.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn clean(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        after: Option<EntryId>,
    ) -> Result<(Option<EntryId>, bool), BrokerError> {
        let call = Clean {
            now: self.virtual_now(),
            group,
            window: topic.settings().dedup_window,
            after,
            batch: MAX_BATCH as u16,
        };
        let CleanReply {
            tombstones,
            recovered,
            lost,
            more_tombstones,
            last,
        } = self.run(&topic.group_keys(shard, group)?, &call).await?;
        if recovered + lost > 0 {
            tracing::warn!(topic = %topic.name(), %shard, %group, recovered, lost, "found entries that nobody held");
        }
        tracing::trace!(topic = %topic.name(), %shard, %group, tombstones, "cleaned");
        Ok((last, more_tombstones))
    }

    /// Stops a topic, or lets it go on; says whether that changed anything. While it is paused
    /// messages are accepted and nothing new becomes ready.
    ///
    /// # Errors
    /// [`BrokerError`]; some shards may be changed then, and calling again is safe.
    pub async fn pause(&self, topic: &TopicHandle, paused: bool) -> Result<bool, BrokerError> {
        let mut changed = false;
        for shard in topic.shards() {
            let keys = topic.keys(shard);
            changed |= self.run_declared(topic, keys, &Pause { paused }).await?;
        }
        Ok(changed)
    }
}

/// Groups messages by where they may live. Asking a shard that has not got one changes nothing there.
fn by_shard(topic: &TopicHandle, seen: &[Seen]) -> BTreeMap<Shard, Vec<Seen>> {
    let mut shards: BTreeMap<Shard, Vec<Seen>> = BTreeMap::new();
    for item in seen {
        for shard in topic.shards_of(&item.0) {
            shards.entry(shard).or_default().push(item.clone());
        }
    }
    shards
}

/// Reads a score, which is a whole number of milliseconds in every zset of ours.
pub(super) fn score_ms(value: &Value) -> Result<Option<UnixMs>, BrokerError> {
    let ms = match value {
        Value::Nil => return Ok(None),
        Value::Double(score) if *score >= 0.0 => Some(*score as u64),
        other => text(other).ok().and_then(|text| text.parse().ok()),
    };
    let wrong = || BrokerError::Reply {
        what: "a score",
        error: unexpected("milliseconds", value),
    };
    ms.map(|ms| Some(UnixMs::new(ms))).ok_or_else(wrong)
}

/// Reads members with their scores: flat in RESP2, nested in RESP3.
pub(super) fn pairs(value: &Value) -> Result<Vec<Seen>, BrokerError> {
    let wrong = |got: &Value| BrokerError::Reply {
        what: "ZRANGE",
        error: unexpected("members with scores", got),
    };
    let Value::Array(items) = value else {
        return Err(wrong(value));
    };
    let flat: Vec<&Value> = items
        .iter()
        .flat_map(|item| match item {
            Value::Array(pair) => pair.iter().collect(),
            other => vec![other],
        })
        .collect();
    flat.chunks_exact(2)
        .map(|pair| {
            let id = text(pair[0])
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| wrong(pair[0]))?;
            let time = score_ms(pair[1])?.ok_or_else(|| wrong(pair[1]))?;
            Ok((id, time))
        })
        .collect()
}
