//! Drops what nothing refers to: old tombstones, garbage past its age, consumers long gone; recovers entries nobody holds;
//! removes groups that are retired.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lisa_shared::broker::{Broker, BrokerError, Removed, Retirement};
use lisa_shared::message::EntryId;
use lisa_shared::topic::{Group, Shard, Topic};
use serde::Serialize;
use tokio::sync::Mutex;

use super::round::Round;
use super::{JobError, Tools};
use crate::share::Held;

/// Calls for each group of a shard in one run: a long stream is looked through over several runs.
const MAX_CALLS: usize = 50;
/// The pause after each call that removes a batch, so that movers and senders come in between.
const PAUSE: Duration = Duration::from_millis(1);
/// A consumer that holds nothing and did nothing for so long does not come back under this name.
const CONSUMER_IDLE: Duration = Duration::from_secs(3600);

/// What one run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// Shards looked through, with all their groups.
    pub(crate) shards: u64,
    /// Tombstones dropped: ended ids whose dedup window is over.
    pub(crate) tombstones: u64,
    /// Garbage purged for its age.
    pub(crate) purged: u64,
    /// Consumers forgotten.
    pub(crate) consumers: u64,
    /// Groups removed from a shard: drained, dropped, or of an instance that is gone.
    pub(crate) groups: u64,
    /// Messages dropped with them.
    pub(crate) dropped: u64,
}

pub(crate) struct Clean {
    tools: Tools,
    cursors: Mutex<Cursors>,
}

/// What may take many calls. They take turns, a batch each, so that the millions of one topic do not hold up the others.
enum Chore<'a> {
    /// Drop tombstones.
    Forget {
        held: &'a Held,
        /// How many are to be dropped still, once that is known.
        left: Option<u64>,
    },
    /// Purge garbage past its age.
    PurgeOld { held: &'a Held, group: &'a Group },
    /// Remove a retiring group, as far as that can be done now.
    Remove { held: &'a Held, group: &'a Group },
}

impl<'a> Chore<'a> {
    fn held(&self) -> &'a Held {
        match self {
            Self::Forget { held, .. } | Self::PurgeOld { held, .. } | Self::Remove { held, .. } => {
                held
            }
        }
    }
}

/// Where to go on in each stream.
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
    /// A topic is damaged, or a server did not answer: the next run goes on there.
    pub(crate) async fn run_once(&self) -> Result<Report, JobError> {
        let mut round = Round::new("clean", &self.tools);
        let mut report = Report::default();
        let mut cursors = self.cursors.lock().await;
        let share = self.tools.shares.now();
        cursors.retain(|(topic, shard, group), _| {
            share.held.iter().any(|held| {
                held.topic.name() == topic
                    && held.shard == *shard
                    && held.topic.groups().contains(group)
            })
        });
        let mut chores = VecDeque::new();
        for held in &share.held {
            let mut whole = true;
            chores.push_back(Chore::Forget { held, left: None });
            for group in held.topic.groups() {
                if self.tools.is_draining() {
                    return round.report(report);
                }
                let cleaned = self.clean_group(held, group, &mut cursors);
                let retiring = round.of_shard(held, cleaned).await;
                whole &= retiring.is_some();
                if retiring == Some(true) {
                    chores.push_back(Chore::Remove { held, group });
                }
                chores.push_back(Chore::PurgeOld { held, group });
                let dropped = drop_idle(&self.tools.broker, held, group);
                report.consumers += round.of_shard(held, dropped).await.unwrap_or(0);
            }
            report.shards += u64::from(whole);
        }
        while let Some(mut chore) = chores.pop_front() {
            if self.tools.is_draining() {
                break;
            }
            let held = chore.held();
            let done = self.do_some(&mut chore, &mut report);
            if round.of_shard(held, done).await == Some(false) {
                chores.push_back(chore);
                tokio::time::sleep(PAUSE).await;
            }
        }
        round.report(report)
    }

    /// Removes one batch, and says whether that was the last one.
    async fn do_some(
        &self,
        chore: &mut Chore<'_>,
        report: &mut Report,
    ) -> Result<bool, BrokerError> {
        let broker = &self.tools.broker;
        match chore {
            Chore::Forget { held, left } => {
                let forgotten = broker.forget(&held.topic, held.shard).await?;
                report.tombstones += forgotten.dropped;
                // What grows old meanwhile is the next run's.
                let rest = left.map_or(forgotten.left, |left: u64| {
                    forgotten.left.min(left.saturating_sub(forgotten.dropped))
                });
                *left = Some(rest);
                Ok(rest == 0)
            }
            Chore::PurgeOld { held, group } => {
                let purged = broker.purge_old(&held.topic, held.shard, group).await?;
                report.purged += purged;
                Ok(purged == 0)
            }
            Chore::Remove { held, group } => {
                let removed = broker.remove_group(&held.topic, held.shard, group).await?;
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

    /// Cleans a group, and says whether it is to be removed.
    async fn clean_group(
        &self,
        held: &Held,
        group: &Group,
        cursors: &mut Cursors,
    ) -> Result<bool, BrokerError> {
        let (topic, shard) = held.place();
        let place = (topic, shard, group.clone());
        let mut retiring = None;
        for _ in 0..MAX_CALLS {
            let after = cursors.get(&place).copied();
            let cleaned = self
                .tools
                .broker
                .clean(&held.topic, held.shard, group, after)
                .await;
            let cleaned = cleaned?;
            match cleaned.last {
                Some(last) => cursors.insert(place.clone(), last),
                None => cursors.remove(&place),
            };
            retiring = cleaned.retiring;
            // Nobody will look at what is dropped.
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

async fn drop_idle(broker: &Broker, held: &Held, group: &Group) -> Result<u64, BrokerError> {
    let mut dropped = 0;
    for consumer in broker
        .idle_consumers(&held.topic, held.shard, group, CONSUMER_IDLE)
        .await?
    {
        if broker
            .drop_consumer(&held.topic, held.shard, group, &consumer)
            .await?
        {
            dropped += 1;
        }
    }
    Ok(dropped)
}
