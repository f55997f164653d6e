//! Reclaims deliveries whose lease (visibility timeout) has expired.

use std::collections::HashSet;
use std::time::Instant;

use redis::Value;

use crate::broker::pull::SHORT_LEASES;
use crate::broker::reply::{Pending, command, or_empty};
use crate::broker::{Broker, BrokerError, TopicHandle};
use crate::keys::{GroupView, Key};
use crate::message::EntryId;
use crate::scripts::{Reclaim, ReclaimItem};
use crate::state::Reclaimed;
use crate::time::millis;
use crate::topic::{Group, Shard};

/// The maximum number of deliveries that one call reclaims.
const BATCH: usize = 50;

/// The result of one reclaim: the number of deliveries by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimReport {
    /// Moved to retry.
    pub retry: u64,
    /// Moved to garbage: no attempts left.
    pub garbage: u64,
    /// Dropped: the next attempt would be too late.
    pub expired: u64,
    /// Dropped: the entry or the payload is missing.
    pub lost: u64,
    /// Kept: settled or renewed in the meantime.
    pub kept: u64,
    /// Kept: pulled, and their own leases have not ended.
    pub held: u64,
    /// True if there may be more.
    pub more: bool,
}

impl Broker {
    /// Reclaims up to 50 deliveries of a group on a shard whose lease has expired.
    ///
    /// With `ahead`, also checks entries whose ids lie in the future. They exist after Redis's clock stepped back, so an
    /// occasional check is enough.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn reclaim(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        ahead: bool,
    ) -> Result<ReclaimReport, BrokerError> {
        let begun = Instant::now();
        let keys = topic.group_keys(shard, group)?;
        let entries = self.overdue(topic, keys, group, ahead).await?;
        // If the request waited for Redis to come back, consumers get time to renew before its result counts.
        let disturbed = self.inner.connection.at(&keys.group.ready).disturbed_at();
        if entries.is_empty() || disturbed.is_some_and(|at| at >= begun) {
            return Ok(ReclaimReport::default());
        }
        let items = self.reclaim_items(topic, shard, keys, &entries).await?;
        let call = Reclaim {
            lease: topic.settings().lease,
            items: &items,
        };
        let mut report = ReclaimReport {
            more: entries.len() == BATCH,
            ..ReclaimReport::default()
        };
        for outcome in self.general(topic, shard, Some(group), &call).await? {
            match outcome {
                Reclaimed::Retry { .. } => report.retry += 1,
                Reclaimed::Garbage => report.garbage += 1,
                Reclaimed::Expired => report.expired += 1,
                Reclaimed::Lost => report.lost += 1,
                Reclaimed::Kept => report.kept += 1,
                Reclaimed::Held => report.held += 1,
            }
        }
        Ok(report)
    }

    /// Returns the number of deliveries of a group on a shard that are in flight; 0 if the stream lost its group.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn in_flight(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
    ) -> Result<u64, BrokerError> {
        let keys = topic.group_keys(shard, group)?;
        self.pending_count(&keys.group.ready, group).await
    }

    /// Returns the number of a stream's entries that a group has read and not settled; 0 if the stream lost its group.
    pub(super) async fn pending_count(
        &self,
        ready: &Key,
        group: &Group,
    ) -> Result<u64, BrokerError> {
        let summary = command("XPENDING", ready).arg(group.as_str());
        let (count, ..): (u64, Value, Value, Value) = or_empty(self.ask(summary).await)?;
        Ok(count)
    }

    /// Lists pending entries that have been idle for a lease.
    async fn overdue(
        &self,
        topic: &TopicHandle,
        keys: GroupView<'_>,
        group: &Group,
        ahead: bool,
    ) -> Result<Vec<EntryId>, BrokerError> {
        let lease = millis(topic.settings().lease);
        let idle = |from: &str, to: &str| {
            let pending = command("XPENDING", &keys.group.ready).arg(group.as_str());
            let pending = pending.arg("IDLE").arg(lease);
            pending.arg(&[from, to]).arg(BATCH)
        };
        // An entry cannot be idle for longer than it exists: this bound saves Redis from walking all younger ones. The
        // estimate of its clock gets a second of slack. Entries from the future exist after its clock stepped back;
        // their ids say nothing about their age.
        let server = self.inner.connection.at(&keys.group.ready);
        let now = server.clock().now_ms();
        let (oldest, future) = (now.saturating_sub(lease) + 1000, now + 1000);
        // A delivery whose lease is shorter than the topic's may be over before its entry is that old.
        let short = idle("-", "+").arg(SHORT_LEASES);
        let mut commands = vec![short, idle("-", &oldest.to_string())];
        if ahead {
            commands.push(idle(&future.to_string(), "+"));
        }
        let pending: Vec<Vec<Pending>> = or_empty(self.ask_all(&server, commands).await)?;
        let mut seen = HashSet::new();
        let entries = pending.into_iter().flatten().map(|(entry, ..)| entry);
        let entries = entries.filter(|entry| seen.insert(*entry));
        Ok(entries.take(BATCH).collect())
    }

    /// Applies the retry policy to each entry, from its fields and the head of its message's record.
    async fn reclaim_items(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        keys: GroupView<'_>,
        entries: &[EntryId],
    ) -> Result<Vec<ReclaimItem>, BrokerError> {
        let reads = self.entries_at(&keys.group.ready, entries).await?;
        let ids: Vec<_> = reads
            .iter()
            .flatten()
            .filter_map(|read| read.id.clone())
            .collect();
        let mut heads = self.heads(topic, shard, &ids).await?.into_iter();
        let settings = topic.settings();
        Ok(entries
            .iter()
            .zip(reads)
            .map(|(&entry, read)| {
                let attempt = read.as_ref().map_or(1, |read| read.attempt.number);
                let has_id = read.is_some_and(|read| read.id.is_some());
                // A message whose record is unreadable is retried by the topic's policy, and its consumer rejects it.
                let head = has_id.then(|| heads.next()).flatten().unwrap_or_default();
                ReclaimItem {
                    entry,
                    delay: head.retry_policy(&settings.retry).next_delay(attempt),
                    max_attempts: head.max_attempts.unwrap_or(settings.max_attempts),
                }
            })
            .collect())
    }
}
