//! What users and operators ask: cancel, reschedule, requeue, purge, pause; and the manager: clean.

use redis::Value;

use super::deliver::{command, text};
use super::each_shard::unless_gone;
use super::{Broker, BrokerError, MAX_FULL_BATCH, TopicHandle};
use crate::message::{EntryId, MessageId, OrderingKey};
use crate::scripts::{
    Cancel, Clean, Cleaned, Forget, Forgotten, Purge, Requeue, Reschedule, unexpected,
};
use crate::state::{CancelOutcome, RescheduleOutcome};
use crate::time::{UnixMs, When, millis};
use crate::topic::{Group, Shard};

/// Tombstones that one call drops: half a millisecond of Redis's time.
const FORGET_BATCH: u16 = 500;
/// What one clean looks at: nearly all of it only to find that nothing is wrong.
const CLEAN_BATCH: u16 = 200;

/// A message in garbage, with the time that was seen: it fences a requeue or purge against a
/// message that came back to garbage since.
pub(super) type Seen = (MessageId, UnixMs);

/// What becomes of messages in garbage.
#[derive(Clone, Copy)]
enum Change {
    Requeue,
    Purge,
}

/// A message that was found in garbage.
struct InGarbage {
    /// Which of those asked for it is, and which of its shards this is.
    order: (usize, usize),
    shard: Shard,
    /// Whether the shard is being given up.
    is_leaving: bool,
    time: UnixMs,
}

impl InGarbage {
    /// Whether it was found before, there or on the shard that it came from meanwhile.
    fn is_same_as(&self, before: &Self) -> bool {
        let is_there = before.shard == self.shard || before.is_leaving;
        before.order.0 == self.order.0 && before.time == self.time && is_there
    }
}

impl Broker {
    /// Removes a message that is not on the stream and not in garbage. If neither its key nor its id tells the shard,
    /// the shards are asked in turn.
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
        self.general(topic, shard, None, &Cancel { id }).await
    }

    /// Gives a message that is not on the stream and not in garbage another due time. If neither its key nor its id
    /// tells the shard, the shards are asked in turn.
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
        let call = Reschedule { id, when };
        self.general(topic, shard, None, &call).await
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
        self.change_garbage(topic, group, seen, Change::Requeue)
            .await
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
            // Asking a shard that has not got one changes nothing there.
            let may_be_there = |(id, _): &&Seen| handle.shards_of(id, None).contains(&shard);
            let items: Vec<Seen> = seen.iter().filter(may_be_there).cloned().collect();
            for items in items.chunks(MAX_FULL_BATCH) {
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
        let mut found: Vec<InGarbage> = Vec::new();
        let mut search = self.search_all(topic, ids);
        while let Some(shard) = self.next_shard(&mut search).await? {
            let handle = self.topic(topic.name()).await?;
            let Some(keys) = unless_gone(handle.group_keys(shard, group))? else {
                continue;
            };
            for (place, id) in ids.iter().enumerate() {
                let shards = handle.shards_of(id, None);
                let Some(rank) = shards.iter().position(|other| *other == shard) else {
                    continue;
                };
                let mut cmd = command("ZSCORE", &keys.group.garbage);
                cmd.arg(id.as_str());
                let score = self.call(&keys.group.garbage, &cmd).await?;
                let Some(time) = score_ms(&score)? else {
                    continue;
                };
                let this = InGarbage {
                    order: (place, rank),
                    shard,
                    is_leaving: handle.is_leaving(shard),
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

    /// Purges up to 200 messages of a shard that were in a group's garbage for longer than
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
            .now_at(topic, shard)
            .get()
            .saturating_sub(millis(topic.settings().garbage.max_age));
        let mut cmd = command("ZRANGE", &keys.group.garbage);
        cmd.arg("-inf").arg(format!("({oldest}")).arg("BYSCORE");
        cmd.arg("LIMIT")
            .arg(0)
            .arg(MAX_FULL_BATCH)
            .arg("WITHSCORES");
        let items = pairs(&self.call(&keys.group.garbage, &cmd).await?)?;
        if items.is_empty() {
            return Ok(0);
        }
        let call = Purge { items: &items };
        self.general(topic, shard, Some(group), &call).await
    }

    /// Recovers entries that were delivered to a group and are held by nobody, retires the group of an instance that is
    /// gone, and makes the shard plain again if it uses no feature any more. Looks at up to 200 entries.
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
            tracing::warn!(topic = %topic.name(), %shard, %group, recovered, lost, "found entries that nobody held");
        }
        Ok(cleaned)
    }

    /// Drops up to 500 tombstones of a shard that are older than the dedup window, the oldest first.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn forget(
        &self,
        topic: &TopicHandle,
        shard: Shard,
    ) -> Result<Forgotten, BrokerError> {
        let call = Forget {
            now: self.virtual_now(),
            dedup: topic.settings().dedup_window,
            batch: FORGET_BATCH,
        };
        let unknown = |_| BrokerError::UnknownTopic(topic.name().clone());
        self.run(topic.keys(shard)?, &call).await?.map_err(unknown)
    }
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

/// Reads members that are messages, with their times.
pub(super) fn pairs(value: &Value) -> Result<Vec<Seen>, BrokerError> {
    let wrong = |got: &dyn std::fmt::Debug| BrokerError::Reply {
        what: "ZRANGE",
        error: unexpected("messages with times", got),
    };
    members(value)?
        .into_iter()
        .map(|(member, score)| {
            let id = id_in(member).parse().map_err(|_| wrong(&member))?;
            let time = score_ms(score)?.ok_or_else(|| wrong(score))?;
            Ok((id, time))
        })
        .collect()
}

/// Reads members with their scores: flat in RESP2, nested in RESP3.
pub(super) fn members(value: &Value) -> Result<Vec<(&str, &Value)>, BrokerError> {
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
        .map(|pair| Ok((text(pair[0]).map_err(|_| wrong(pair[0]))?, pair[1])))
        .collect()
}

/// The id in a member: behind the arrival of a message with options.
pub(super) fn id_in(member: &str) -> &str {
    match member.strip_prefix('~') {
        Some(rest) => rest.get(12..).unwrap_or_default(),
        None => member,
    }
}
