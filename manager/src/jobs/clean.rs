//! Drops old tombstones, garbage past its maximum age and consumers that are long gone. Recovers entries that no consumer
//! holds, and removes retiring groups.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lisa_core::broker::{Broker, BrokerError, Removed, Retirement};
use lisa_core::message::EntryId;
use lisa_core::topic::{Group, Shard, Topic};
use serde::Serialize;
use tokio::sync::Mutex;
use utoipa::ToSchema;

use super::round::Round;
use super::{JobError, Tools};
use crate::assignment::AssignedShard;

/// The largest number of calls for each group of a shard in one run. A long stream is cleaned over several runs.
const MAX_CALLS: usize = 50;
/// The pause after each call that removes a batch, so that calls of movers and senders run in between.
const PAUSE: Duration = Duration::from_millis(1);
/// The idle time after which a consumer that holds nothing is dropped: it does not come back under this name.
const CONSUMER_IDLE: Duration = Duration::from_secs(3600);

/// The report of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = CleanReport)]
pub(crate) struct Report {
    /// Shards cleaned, with all their groups.
    pub(crate) shards: u64,
    /// Tombstones dropped: ended ids whose dedup window has passed.
    pub(crate) tombstones: u64,
    /// Messages purged from garbage because of their age.
    pub(crate) purged: u64,
    /// Consumers dropped.
    pub(crate) consumers: u64,
    /// Reports of processes removed: the processes are gone.
    pub(crate) workers: u64,
    /// Groups removed from a shard: drained, dropped, or of an instance that is gone.
    pub(crate) groups: u64,
    /// Messages dropped with these groups.
    pub(crate) dropped: u64,
}

pub(crate) struct Clean {
    tools: Tools,
    cursors: Mutex<Cursors>,
}

/// Work that may take many calls. Chores take turns, one batch each, so that the millions of one topic do not delay the
/// others.
enum Chore<'a> {
    /// Drop tombstones.
    Forget {
        assigned: &'a AssignedShard,
        /// The number of tombstones that this run still drops, once it is known.
        left: Option<u64>,
    },
    /// Purge garbage past its age.
    PurgeOld {
        assigned: &'a AssignedShard,
        group: &'a Group,
    },
    /// Remove a retiring group, as far as possible now.
    Remove {
        assigned: &'a AssignedShard,
        group: &'a Group,
    },
}

impl<'a> Chore<'a> {
    fn assigned(&self) -> &'a AssignedShard {
        match self {
            Self::Forget { assigned, .. }
            | Self::PurgeOld { assigned, .. }
            | Self::Remove { assigned, .. } => assigned,
        }
    }
}

/// The entry after which to continue in each stream.
type Cursors = BTreeMap<(Topic, Shard, Group), EntryId>;

impl Clean {
    pub(crate) fn new(tools: Tools) -> Self {
        Self {
            tools,
            cursors: Mutex::default(),
        }
    }

    /// Cleans the shards of this manager.
    ///
    /// # Errors
    /// A topic is damaged, or a server did not answer. The next run continues there.
    pub(crate) async fn run_once(&self) -> Result<Report, JobError> {
        let mut round = Round::new("clean", &self.tools);
        let mut report = Report::default();
        let mut cursors = self.cursors.lock().await;
        let assignment = self.tools.assignments.now();
        if assignment.managers.first().map(String::as_str) == Some(self.tools.assignments.name()) {
            match self.tools.broker.clean_workers().await {
                Ok(workers) => report.workers = workers,
                // They are only in the way of operators, and the next run tries again.
                Err(error) => tracing::debug!(%error, "cannot remove reports of processes"),
            }
        }
        cursors.retain(|(topic, shard, group), _| {
            assignment.shards.iter().any(|assigned| {
                assigned.topic.name() == topic
                    && assigned.shard == *shard
                    && assigned.topic.groups().contains(group)
            })
        });
        let mut chores = VecDeque::new();
        let tidy = self.tidy_topics(&assignment.shards).await;
        for assigned in &assignment.shards {
            if tidy.contains(assigned.topic.name()) {
                report.shards += 1;
                continue;
            }
            let mut whole = true;
            chores.push_back(Chore::Forget {
                assigned,
                left: None,
            });
            for group in assigned.topic.groups() {
                if self.tools.is_draining() {
                    return round.report(report);
                }
                let cleaned = self.clean_group(assigned, group, &mut cursors);
                let retiring = round.of_shard(assigned, cleaned).await;
                whole &= retiring.is_some();
                if retiring == Some(true) {
                    chores.push_back(Chore::Remove { assigned, group });
                }
                chores.push_back(Chore::PurgeOld { assigned, group });
                let dropped = drop_idle(&self.tools.broker, assigned, group);
                report.consumers += round.of_shard(assigned, dropped).await.unwrap_or(0);
            }
            report.shards += u64::from(whole);
        }
        while let Some(mut chore) = chores.pop_front() {
            if self.tools.is_draining() {
                break;
            }
            let assigned = chore.assigned();
            let done = self.do_some(&mut chore, &mut report);
            if round.of_shard(assigned, done).await == Some(false) {
                chores.push_back(chore);
                tokio::time::sleep(PAUSE).await;
            }
        }
        round.report(report)
    }

    /// Returns the topics of these shards that have nothing to clean.
    async fn tidy_topics(&self, shards: &[AssignedShard]) -> BTreeSet<Topic> {
        let topics: BTreeMap<&Topic, _> = shards
            .iter()
            .map(|assigned| (assigned.topic.name(), assigned.current(&self.tools.broker)))
            .collect();
        let handles: Vec<_> = topics.values().cloned().collect();
        let marks = self.tools.broker.idle_marks(&handles).await;
        let tidy = topics.into_keys().zip(marks).filter_map(|(name, mark)| {
            mark.is_some_and(|mark| mark.is_tidy())
                .then(|| name.clone())
        });
        tidy.collect()
    }

    /// Removes one batch. Returns whether that was the last one.
    async fn do_some(
        &self,
        chore: &mut Chore<'_>,
        report: &mut Report,
    ) -> Result<bool, BrokerError> {
        let broker = &self.tools.broker;
        match chore {
            Chore::Forget { assigned, left } => {
                let forgotten = broker.forget(&assigned.topic, assigned.shard).await?;
                report.tombstones += forgotten.dropped;
                // Tombstones that expire in the meantime are left to the next run.
                let rest = left.map_or(forgotten.left, |left: u64| {
                    forgotten.left.min(left.saturating_sub(forgotten.dropped))
                });
                *left = Some(rest);
                Ok(rest == 0)
            }
            Chore::PurgeOld { assigned, group } => {
                let purged = broker
                    .purge_old(&assigned.topic, assigned.shard, group)
                    .await?;
                report.purged += purged;
                Ok(purged == 0)
            }
            Chore::Remove { assigned, group } => {
                let removed = broker
                    .remove_group(&assigned.topic, assigned.shard, group)
                    .await?;
                let (Removed::More { dropped } | Removed::Gone { dropped, .. }) = removed else {
                    return Ok(true);
                };
                report.dropped += dropped;
                let is_gone = matches!(removed, Removed::Gone { .. });
                report.groups += u64::from(is_gone);
                Ok(is_gone)
            }
        }
    }

    /// Cleans a group. Returns whether it is to be removed.
    async fn clean_group(
        &self,
        assigned: &AssignedShard,
        group: &Group,
        cursors: &mut Cursors,
    ) -> Result<bool, BrokerError> {
        let (topic, shard) = assigned.id();
        let key = (topic, shard, group.clone());
        let mut retiring = None;
        for _ in 0..MAX_CALLS {
            let after = cursors.get(&key).copied();
            let cleaned = self
                .tools
                .broker
                .clean(&assigned.topic, assigned.shard, group, after)
                .await;
            let cleaned = cleaned?;
            match cleaned.last {
                Some(last) => cursors.insert(key.clone(), last),
                None => cursors.remove(&key),
            };
            retiring = cleaned.retiring;
            // The entries of a group that is dropped need no cleaning.
            if cleaned.last.is_none()
                || retiring == Some(Retirement::Drop)
                || self.tools.is_draining()
            {
                break;
            }
        }
        Ok(retiring.is_some())
    }
}

async fn drop_idle(
    broker: &Broker,
    assigned: &AssignedShard,
    group: &Group,
) -> Result<u64, BrokerError> {
    let mut dropped = 0;
    for consumer in broker
        .idle_consumers(&assigned.topic, assigned.shard, group, CONSUMER_IDLE)
        .await?
    {
        if broker
            .drop_consumer(&assigned.topic, assigned.shard, group, &consumer)
            .await?
        {
            dropped += 1;
        }
    }
    Ok(dropped)
}
