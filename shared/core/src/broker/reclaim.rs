//! Reclaims deliveries whose lease (visibility timeout) has expired.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use redis::Value;

use crate::broker::pull::SHORT_LEASES;
use crate::broker::reply::{command, or_empty};
use crate::broker::{Broker, BrokerError, TopicHandle};
use crate::keys::{GroupView, Key};
use crate::message::{EntryId, MessageId};
use crate::scripts::{Reclaim, ReclaimItem};
use crate::state::Reclaimed;
use crate::time::millis;
use crate::topic::{Group, Shard};

/// The maximum number of deliveries that one call reclaims.
const BATCH: usize = 50;
/// The tolerance for the estimate of Redis's clock, in ms.
const SLACK: u64 = 1000;

/// A pending entry, its consumer, the time since it was last renewed in ms, and its delivery count.
type Listed = (EntryId, Value, u64, u64);

/// The time before the end of a lease from which a reclaim tells it: more than the second between two runs.
pub const ENDS_SOON: Duration = Duration::from_millis(1200);

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

/// The deliveries of one reclaim, up to 50.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReclaimPage {
    /// The number of deliveries by outcome.
    pub report: ReclaimReport,
    /// The last entry that was examined, to continue after it.
    pub last: Option<EntryId>,
    /// The time until the next lease ends, if that is within [`ENDS_SOON`] and known. A hint: another one may end before.
    pub next_end: Option<Duration>,
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
        let page = self.reclaim_after(topic, shard, group, ahead, None).await?;
        Ok(page.report)
    }

    /// Reclaims like [`Broker::reclaim`], but skips the entries up to `after`.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn reclaim_after(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        ahead: bool,
        after: Option<EntryId>,
    ) -> Result<ReclaimPage, BrokerError> {
        let begun = Instant::now();
        let keys = topic.group_keys(shard, group)?;
        let (entries, mut page) = self.overdue(topic, keys, group, ahead, after).await?;
        // If the request waited for Redis to come back, consumers get time to renew before its result counts.
        let disturbed = self.inner.connection.at(&keys.group.ready).disturbed_at();
        if entries.is_empty() || disturbed.is_some_and(|at| at >= begun) {
            return Ok(page);
        }
        let items = self.reclaim_items(topic, shard, keys, &entries).await?;
        let call = Reclaim {
            lease: topic.settings().lease,
            items: &items,
        };
        let report = &mut page.report;
        report.more = entries.len() == BATCH;
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
        if page.report.garbage > 0 {
            self.wake_forwarder(topic, shard).await;
        }
        Ok(page)
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

    /// Lists up to `limit` deliveries of a group on a shard that are in flight, from the one after an entry. Each has its
    /// message, unless its entry is gone or damaged.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn in_flight_after(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        after: Option<EntryId>,
        limit: usize,
    ) -> Result<Vec<(EntryId, Option<MessageId>)>, BrokerError> {
        let ready = &topic.group_keys(shard, group)?.group.ready;
        let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
        let pending = self.pending(ready, group, &from, "+", limit).await?;
        let entries: Vec<EntryId> = pending.into_iter().map(|(entry, _)| entry).collect();
        let reads = self.entries_at(ready, &entries).await?;
        let ids = reads.into_iter().map(|read| read.and_then(|read| read.id));
        Ok(entries.into_iter().zip(ids).collect())
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

    /// Lists pending entries that have been idle for a lease, each with its delivery count. Also returns the last one that is as old as
    /// a lease, and when the next lease ends.
    async fn overdue(
        &self,
        topic: &TopicHandle,
        keys: GroupView<'_>,
        group: &Group,
        ahead: bool,
        after: Option<EntryId>,
    ) -> Result<(Vec<(EntryId, u64)>, ReclaimPage), BrokerError> {
        let lease = millis(topic.settings().lease);
        let idle_for = |time: u64, from: &str, to: &str| {
            let pending = command("XPENDING", &keys.group.ready).arg(group.as_str());
            let pending = pending.arg("IDLE").arg(time);
            pending.arg(&[from, to]).arg(BATCH)
        };
        let idle = |from: &str, to: &str| idle_for(lease, from, to);
        // An entry cannot be idle for longer than it exists: this bound saves Redis from walking all younger ones. The
        // estimate of its clock gets some slack. Entries from the future exist after its clock stepped back; their ids say
        // nothing about their age.
        let server = self.inner.connection.at(&keys.group.ready);
        let now = server.clock().now_ms();
        let (oldest, future) = (now.saturating_sub(lease) + SLACK, now + SLACK);
        let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
        // A delivery whose lease is shorter than the topic's may be over before its entry is that old.
        let short = idle("-", "+").arg(SHORT_LEASES);
        let mut commands = vec![short, idle(&from, &oldest.to_string())];
        if ahead {
            commands.push(idle(&future.to_string(), "+"));
        }
        // Those whose leases end soon.
        let soon = lease.saturating_sub(millis(ENDS_SOON));
        let youngest = now.saturating_sub(soon) + SLACK;
        let lists_of_overdue = commands.len();
        commands.push(idle_for(soon, "-", "+").arg(SHORT_LEASES));
        commands.push(idle_for(soon, "-", &youngest.to_string()));
        let lists: Vec<Vec<Listed>> = or_empty(self.ask_all(&server, commands).await)?;
        let (lists, soon) = lists.split_at(lists_of_overdue.min(lists.len()));
        let ends = soon
            .iter()
            .flatten()
            .map(|(_, _, idle, _)| lease.saturating_sub(*idle));
        let next_end = ends.filter(|left| *left > 0).min();
        let mut page = ReclaimPage {
            last: after,
            next_end: next_end.map(Duration::from_millis),
            ..ReclaimPage::default()
        };
        let (mut seen, mut overdue) = (HashSet::new(), Vec::new());
        for (index, list) in lists.iter().enumerate() {
            for &(entry, _, _, count) in list {
                if overdue.len() == BATCH {
                    return Ok((overdue, page));
                }
                if index == 1 {
                    page.last = Some(entry);
                }
                if seen.insert(entry) {
                    overdue.push((entry, count));
                }
            }
        }
        Ok((overdue, page))
    }

    /// Applies the retry policy to each entry, from its fields and the head of its message's record.
    async fn reclaim_items(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        keys: GroupView<'_>,
        overdue: &[(EntryId, u64)],
    ) -> Result<Vec<ReclaimItem>, BrokerError> {
        // The script keeps a delivery whose own lease goes on, so its record, which may be large, is not read.
        let now = self.now_at(topic, shard).get();
        let is_held = |count: u64| count > 2 && count > now + SLACK;
        let ended: Vec<_> = overdue
            .iter()
            .filter_map(|&(entry, count)| (!is_held(count)).then_some(entry))
            .collect();
        let reads = self.entries_at(&keys.group.ready, &ended).await?;
        let ids: Vec<_> = reads
            .iter()
            .flatten()
            .filter_map(|read| read.id.clone())
            .collect();
        let mut heads = self.heads(topic, shard, &ids).await?.into_iter();
        let mut reads = reads.into_iter();
        let settings = topic.settings();
        Ok(overdue
            .iter()
            .map(|&(entry, count)| {
                let read = if is_held(count) {
                    None
                } else {
                    reads.next().flatten()
                };
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
