//! Refreshes the metrics of each topic: messages by state, event counts, paused and retiring groups, consumers, the age
//! of due and ready messages (consumer lag), and the conservation error.
//!
//! Exactly one manager exports a topic: the one that holds its first shard. A topic without messages is not counted again
//! until something in it has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::{GroupStats, IdleMark, Recheck, TopicHandle, TopicStats};
use lisa_core::topic::Topic;
use lisa_service::metrics::Metrics;
use serde::Serialize;
use tokio::sync::Mutex;
use utoipa::ToSchema;

use super::round::Round;
use super::{JobError, Tools};
use crate::operations::groups;

/// The report of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = StatisticsReport)]
pub(crate) struct Report {
    /// Topics counted.
    pub(crate) topics: u64,
    /// Messages that the counters do not account for; should be 0.
    pub(crate) conservation_error: u64,
}

pub(crate) struct Statistics {
    tools: Tools,
    /// The data that the last run exported.
    exported: Mutex<BTreeMap<Topic, Exported>>,
}

/// The exported data of a topic.
struct Exported {
    groups: Vec<GroupStats>,
    conservation_error: u64,
    /// The mark read just before the topic was counted, if it held no messages.
    mark: Option<IdleMark>,
    /// The number of runs since the topic was counted.
    age: u32,
}

/// The number of runs in which an unchanged topic is counted once.
const COUNT_EVERY: u32 = 12;

impl Exported {
    /// Returns the mark and its part to check in this run, or `None` if the topic must be counted in any case.
    fn mark(&self) -> Option<(&IdleMark, Recheck)> {
        let part = match self.age % 2 {
            0 => Recheck::Flags,
            _ => Recheck::Consumers,
        };
        let mark = self.mark.as_ref().filter(|_| self.age + 1 < COUNT_EVERY);
        mark.map(|mark| (mark, part))
    }

    /// Returns the exported data for one more run.
    fn again(&self) -> Self {
        Self {
            groups: self.groups.clone(),
            conservation_error: self.conservation_error,
            mark: self.mark.clone(),
            age: self.age + 1,
        }
    }
}

impl Statistics {
    pub(crate) fn new(tools: Tools) -> Self {
        Self {
            tools,
            exported: Mutex::default(),
        }
    }

    /// Returns the topics that need not be counted again.
    async fn still_idle(
        &self,
        handles: &[Arc<TopicHandle>],
        exported: &BTreeMap<Topic, Exported>,
    ) -> BTreeSet<Topic> {
        let known = |handle: &Arc<TopicHandle>| {
            let mark = exported.get(handle.name()).and_then(Exported::mark)?;
            Some((handle.clone(), mark))
        };
        let (topics, marks): (Vec<_>, Vec<_>) = handles.iter().filter_map(known).unzip();
        let still = self.tools.broker.still_idle(&topics, &marks).await;
        let still = topics.iter().zip(still).filter(|(_, still)| *still);
        still.map(|(topic, _)| topic.name().clone()).collect()
    }

    /// Counts the topics whose first shard this manager holds.
    ///
    /// # Errors
    /// A server did not answer: the gauges of its topics keep their values. Or a topic is damaged: its gauges are removed.
    pub(crate) async fn run_once(&self) -> Result<Report, JobError> {
        let mut round = Round::new("statistics", &self.tools);
        let mut report = Report::default();
        let mut exported = self.exported.lock().await;
        let mut counted = BTreeMap::new();
        let assignment = self.tools.assignments.now();
        let mine: Vec<_> = assignment
            .shards
            .iter()
            .filter(|assigned| assigned.is_first())
            .collect();
        let handles: Vec<_> = mine
            .iter()
            .map(|assigned| assigned.current(&self.tools.broker))
            .collect();
        let idle = self.still_idle(&handles, &exported).await;
        let (same, changed): (Vec<_>, Vec<_>) = mine
            .into_iter()
            .zip(handles.iter().cloned())
            .partition(|(_, handle)| idle.contains(handle.name()));
        for (_, handle) in same {
            if let Some(same) = exported.get(handle.name()).map(Exported::again) {
                report.topics += 1;
                report.conservation_error += same.conservation_error;
                counted.insert(handle.name().clone(), same);
            }
        }
        let (changed, handles): (Vec<_>, Vec<_>) = changed.into_iter().unzip();
        let marks = self.tools.broker.idle_marks(&handles).await;
        for (assigned, mark) in changed.into_iter().zip(marks) {
            let counting = async {
                let stats = self.tools.broker.stats(&assigned.topic).await?;
                let has_limit = assigned.topic.settings().max_bytes.is_some();
                export(&self.tools.metrics, &stats, has_limit);
                log(&stats, exported.get(&stats.topic));
                Ok(stats)
            };
            let Some(stats) = round.of_topic(&assigned.topic, counting).await else {
                if round.is_away(&assigned.topic)
                    && let Some(before) = exported.remove(assigned.topic.name())
                {
                    counted.insert(assigned.topic.name().clone(), before);
                }
                continue;
            };
            report.topics += 1;
            report.conservation_error += stats.conservation_error;
            let export = Exported {
                groups: stats.groups,
                conservation_error: stats.conservation_error,
                mark,
                age: 0,
            };
            counted.insert(stats.topic, export);
        }
        for (topic, before) in exported.iter() {
            forget(&self.tools.metrics, topic, before, counted.get(topic));
        }
        *exported = counted;
        round.report(report)
    }
}

/// The age of the oldest ready message at which a group that no consumer has ever read is logged.
const UNREAD: Duration = Duration::from_secs(60);

/// Logs a conservation error when it changes, and logs each group that no consumer has ever read once.
fn log(stats: &TopicStats, before: Option<&Exported>) {
    let error = stats.conservation_error;
    if error > 0 && before.map(|before| before.conservation_error) != Some(error) {
        tracing::error!(
            topic = %stats.topic,
            conservation_error = error,
            counters = ?stats.counters,
            "messages are unaccounted for"
        );
    }
    let is_unread = |group: &GroupStats| {
        group.never_read && Duration::from_millis(group.oldest_ready_age_ms) >= UNREAD
    };
    for group in stats.groups.iter().filter(|group| is_unread(group)) {
        let same = |before: &GroupStats| before.group == group.group && is_unread(before);
        if !before.is_some_and(|before| before.groups.iter().any(same)) {
            tracing::warn!(
                topic = %stats.topic, group = %group.group, ready = group.ready,
                "no consumer has ever read this group; start one, or drop the group"
            );
        }
    }
}

fn export(metrics: &Metrics, stats: &TopicStats, has_limit: bool) {
    let topic = stats.topic.as_str();
    metrics.topic_messages(topic, "", "waiting", stats.waiting);
    metrics.topic_stored(topic, stats.stored);
    metrics.topic_tombstones(topic, stats.tombstones);
    metrics.topic_paused(topic, "", stats.paused);
    metrics.topic_oldest_due_age(topic, "", Duration::from_millis(stats.overdue_ms));
    metrics.conservation_error(topic, stats.conservation_error);
    for event in EVENTS {
        let count = stats.counters.get(event).copied().unwrap_or(0);
        metrics.topic_events(topic, event, u64::try_from(count).unwrap_or(0));
    }
    if has_limit {
        metrics.topic_bytes(topic, stats.bytes);
    } else {
        metrics.forget_bytes(topic);
    }
    for group in &stats.groups {
        let name = group.group.as_str();
        metrics.topic_paused(topic, name, group.paused);
        metrics.topic_retiring(topic, name, group.retiring.is_some());
        metrics.topic_unconfigured(topic, name, group.unconfigured);
        metrics.topic_consumers(topic, name, group.consumers);
        let age = Duration::from_millis;
        metrics.topic_oldest_due_age(topic, name, age(group.oldest_due_age_ms));
        metrics.topic_oldest_ready_age(topic, name, age(group.oldest_ready_age_ms));
        for (state, count) in groups::counts_of(group) {
            metrics.topic_messages(topic, name, state, count);
        }
    }
}

/// Removes the metrics that this run did not refresh: all of a topic, or those of removed groups.
fn forget(metrics: &Metrics, topic: &Topic, before: &Exported, now: Option<&Exported>) {
    let topic = topic.as_str();
    if now.is_none() {
        metrics.forget_messages(topic, "", "waiting");
        metrics.forget_group(topic, "");
        metrics.forget_stored(topic);
        metrics.forget_tombstones(topic);
        metrics.forget_bytes(topic);
        metrics.forget_conservation_error(topic);
        for event in EVENTS {
            metrics.forget_events(topic, event);
        }
    }
    let is_gone = |group: &&GroupStats| {
        let still = |now: &Exported| now.groups.iter().any(|other| other.group == group.group);
        !now.is_some_and(still)
    };
    for group in before.groups.iter().filter(is_gone) {
        metrics.forget_group(topic, group.group.as_str());
        for (state, _) in groups::counts_of(group) {
            metrics.forget_messages(topic, group.group.as_str(), state);
        }
    }
}

/// The counters in Redis that are exported, each from 0 on: all those that only grow.
const EVENTS: [&str; 17] = [
    "accepted",
    "duplicates",
    "merged",
    "acked",
    "retried",
    "deferred",
    "rejected",
    "exhausted",
    "reclaimed",
    "recovered",
    "requeued",
    "cancelled",
    "expired",
    "lapsed",
    "purged",
    "lost",
    "dropped",
];
