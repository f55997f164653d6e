//! What the manager asks about deliveries whose lease is over.

use std::time::Instant;

use redis::Value;

use super::deliver::{command, entry_id, parse_entry};
use super::{Broker, BrokerError, TopicHandle};
use crate::keys::{GroupView, Key};
use crate::link::LinkErrorKind;
use crate::message::EntryId;
use crate::retry::policy;
use crate::scripts::{Reclaim, ReclaimItem, unexpected};
use crate::state::Reclaimed;
use crate::time::millis;
use crate::topic::{Group, Shard};

/// The most deliveries that one call takes back.
const BATCH: usize = 50;

/// What one look at the pending deliveries did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimReport {
    /// Into retry.
    pub retry: u64,
    /// Into garbage: attempts used up.
    pub garbage: u64,
    /// Dropped: their next attempt would be too late.
    pub expired: u64,
    /// Dropped: entry or payload were missing.
    pub lost: u64,
    /// Settled or renewed meanwhile.
    pub kept: u64,
    /// Whether there may be more.
    pub more: bool,
}

impl Broker {
    /// Takes back up to 50 deliveries of a group on a shard whose lease is over.
    ///
    /// With `ahead`, entries whose ids lie in the future are looked at, too. They are there after
    /// Redis's clock stepped back; to ask for them now and then is enough.
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
        // Where the question waited for Redis to come back, consumers get time to renew before the answer counts.
        let disturbed = self.inner.link.at(&keys.group.ready).disturbed_at();
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
            }
        }
        Ok(report)
    }

    /// Gives the number of deliveries of a group on a shard that are in flight; none without the group.
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

    /// Gives the number of a stream's entries that a group has read and not settled; none without the group.
    pub(super) async fn pending_count(
        &self,
        ready: &Key,
        group: &Group,
    ) -> Result<u64, BrokerError> {
        let mut cmd = command("XPENDING", ready);
        cmd.arg(group.as_str());
        let reply = match self.call(ready, &cmd).await {
            Err(error) if error.kind == LinkErrorKind::NoGroup => return Ok(0),
            reply => reply?,
        };
        match &reply {
            Value::Array(summary) => match summary.first() {
                Some(Value::Int(count)) => u64::try_from(*count).ok(),
                _ => None,
            },
            _ => None,
        }
        .ok_or_else(|| BrokerError::Reply {
            what: "XPENDING",
            error: unexpected("a summary", &reply),
        })
    }

    /// Lists pending entries that were idle for a lease.
    async fn overdue(
        &self,
        topic: &TopicHandle,
        keys: GroupView<'_>,
        group: &Group,
        ahead: bool,
    ) -> Result<Vec<EntryId>, BrokerError> {
        let lease = millis(topic.settings().lease);
        let idle = |from: &str, to: &str| {
            let mut cmd = command("XPENDING", &keys.group.ready);
            cmd.arg(group.as_str()).arg("IDLE").arg(lease);
            cmd.arg(from).arg(to).arg(BATCH);
            cmd
        };
        // An entry cannot be idle for longer than it exists: this bound saves Redis from walking
        // over all younger ones. The estimate of its clock gets a second of slack. Entries from the
        // future are there after its clock stepped back; their ids say nothing about their age.
        let server = self.inner.link.at(&keys.group.ready);
        let now = server.clock().now_ms();
        let (oldest, future) = (now.saturating_sub(lease) + 1000, now + 1000);
        let mut pipeline = redis::Pipeline::with_capacity(2);
        pipeline.add_command(idle("-", &oldest.to_string()));
        if ahead {
            pipeline.add_command(idle(&future.to_string(), "+"));
        }
        let replies = match server.pipeline(&pipeline, self.inner.patience).await {
            Err(error) if error.kind == LinkErrorKind::NoGroup => return Ok(Vec::new()),
            replies => replies?,
        };
        let wrong = |error| BrokerError::Reply {
            what: "XPENDING",
            error,
        };
        let mut entries = Vec::new();
        for reply in &replies {
            let Value::Array(rows) = reply else {
                return Err(wrong(unexpected("pending entries", reply)));
            };
            for row in rows {
                match row {
                    Value::Array(fields) if !fields.is_empty() => {
                        entries.push(entry_id(&fields[0]).map_err(wrong)?);
                    }
                    other => return Err(wrong(unexpected("a pending entry", other))),
                }
            }
        }
        entries.truncate(BATCH);
        Ok(entries)
    }

    /// Finds what the policy says for each entry, from its fields and the head of its message's record.
    async fn reclaim_items(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        keys: GroupView<'_>,
        entries: &[EntryId],
    ) -> Result<Vec<ReclaimItem>, BrokerError> {
        let mut pipeline = redis::Pipeline::with_capacity(entries.len());
        for entry in entries {
            let mut cmd = command("XRANGE", &keys.group.ready);
            cmd.arg(entry.to_string()).arg(entry.to_string());
            pipeline.add_command(cmd);
        }
        let server = self.inner.link.at(&keys.group.ready);
        let replies = server.pipeline(&pipeline, self.inner.patience).await?;
        let mut reads = Vec::with_capacity(entries.len());
        for reply in &replies {
            let found = match reply {
                Value::Array(found) => found.first(),
                _ => None,
            };
            let read = found.map(parse_entry).transpose();
            reads.push(read.map_err(|error| BrokerError::Reply {
                what: "XRANGE",
                error,
            })?);
        }
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
                // One that cannot be read is tried again as the topic says, and rejected by its consumer.
                let head = has_id.then(|| heads.next()).flatten().unwrap_or_default();
                ReclaimItem {
                    entry,
                    delay: policy(&head, settings).next_delay(attempt),
                    max_attempts: head.max_attempts.unwrap_or(settings.max_attempts),
                }
            })
            .collect())
    }
}
