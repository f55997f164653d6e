//! Drops what nothing refers to: old tombstones, garbage past its age, consumers long gone; recovers entries nobody holds;
//! removes groups that are retired.

use std::collections::BTreeMap;
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
/// A consumer that holds nothing and did nothing for so long does not come back under this name.
const CONSUMER_IDLE: Duration = Duration::from_secs(3600);

/// What one run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// Shards looked through, with all their groups.
    pub(crate) shards: u64,
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
        'shards: for held in &share.held {
            let mut whole = true;
            for group in held.topic.groups() {
                let cleaned = self.clean_group(held, group, &mut cursors);
                let retiring = round.of_shard(held, cleaned).await;
                whole &= retiring.is_some();
                if retiring == Some(true) {
                    let removed = self.remove(held, group, &mut report);
                    round.of_shard(held, removed).await;
                }
                let purged = round.of_shard(held, self.purge_old(held, group)).await;
                report.purged += purged.unwrap_or(0);
                let dropped = drop_idle(&self.tools.broker, held, group);
                report.consumers += round.of_shard(held, dropped).await.unwrap_or(0);
                if self.tools.is_draining() {
                    break 'shards;
                }
            }
            report.shards += u64::from(whole);
        }
        round.report(report)
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
            let done = cleaned.last.is_none() && !cleaned.more_tombstones;
            // Nobody will look at what is dropped.
            if done || retiring == Some(Retirement::Drop) || self.tools.is_draining() {
                break;
            }
        }
        Ok(retiring.is_some())
    }

    /// Removes a retiring group, as far as that can be done now.
    async fn remove(
        &self,
        held: &Held,
        group: &Group,
        report: &mut Report,
    ) -> Result<(), BrokerError> {
        let broker = &self.tools.broker;
        while !self.tools.is_draining() {
            match broker.remove_group(&held.topic, held.shard, group).await? {
                Removed::More { dropped } => report.dropped += dropped,
                Removed::Gone { dropped, .. } => {
                    report.dropped += dropped;
                    report.groups += 1;
                    break;
                }
                Removed::Kept => break,
            }
        }
        Ok(())
    }

    async fn purge_old(&self, held: &Held, group: &Group) -> Result<u64, BrokerError> {
        let broker = &self.tools.broker;
        let mut purged = 0;
        loop {
            let count = broker.purge_old(&held.topic, held.shard, group).await?;
            purged += count;
            if count == 0 || self.tools.is_draining() {
                return Ok(purged);
            }
        }
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
