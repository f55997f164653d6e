//! Refreshes the gauges of each topic: messages by state, and the conservation error.
//!
//! Exactly one manager exports a topic: the one that holds its first shard.

use std::collections::BTreeMap;

use lisa_shared::broker::{GroupStats, TopicStats};
use lisa_shared::metrics::Metrics;
use lisa_shared::topic::{Group, Shard, Topic};
use serde::Serialize;
use tokio::sync::Mutex;

use super::{Damage, JobError, Tools};

/// What one run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// Topics counted.
    pub(crate) topics: u64,
    /// Messages that the sums cannot account for; 0.
    pub(crate) conservation_error: u64,
}

pub(crate) struct Statistics {
    tools: Tools,
    /// What was exported by the last run.
    exported: Mutex<BTreeMap<Topic, Exported>>,
}

/// What was exported of a topic.
struct Exported {
    groups: Vec<Group>,
    conservation_error: u64,
}

impl Statistics {
    pub(crate) fn new(tools: Tools) -> Self {
        Self {
            tools,
            exported: Mutex::default(),
        }
    }

    /// Counts the topics whose first shard is this manager's.
    ///
    /// # Errors
    /// Redis could not be asked: the gauges keep what they show. Or a topic is damaged: its gauges are gone.
    pub(crate) async fn run_once(&self) -> Result<Report, JobError> {
        let mut damage = Damage::default();
        let mut report = Report::default();
        let mut exported = self.exported.lock().await;
        let mut counted = BTreeMap::new();
        let share = self.tools.shares.now();
        let mine = share.held.iter().filter(|held| held.shard == Shard::new(0));
        for held in mine {
            let counts = self.tools.broker.stats(&held.topic).await;
            let Some(stats) = damage.beside(held.topic.name(), counts)? else {
                continue;
            };
            report.topics += 1;
            report.conservation_error += stats.conservation_error;
            export(&self.tools.metrics, &stats);
            tell(&stats, exported.get(&stats.topic));
            let groups = stats.groups.into_iter().map(|group| group.group);
            let export = Exported {
                groups: groups.collect(),
                conservation_error: stats.conservation_error,
            };
            counted.insert(stats.topic, export);
        }
        for (topic, before) in exported.iter() {
            forget(&self.tools.metrics, topic, before, counted.get(topic));
        }
        *exported = counted;
        damage.report(report)
    }
}

/// Logs a conservation error when it changes.
fn tell(stats: &TopicStats, before: Option<&Exported>) {
    let error = stats.conservation_error;
    if error > 0 && before.map(|before| before.conservation_error) != Some(error) {
        tracing::error!(
            topic = %stats.topic,
            conservation_error = error,
            counters = ?stats.counters,
            "messages are unaccounted for"
        );
    }
}

fn export(metrics: &Metrics, stats: &TopicStats) {
    let topic = stats.topic.as_str();
    metrics.topic_messages(topic, "", "waiting", stats.waiting);
    metrics.conservation_error(topic, stats.conservation_error);
    for group in &stats.groups {
        for (state, count) in states(group) {
            metrics.topic_messages(topic, group.group.as_str(), state, count);
        }
    }
}

/// Drops the gauges that this run did not refresh: all of a topic, or those of groups that are gone.
fn forget(metrics: &Metrics, topic: &Topic, before: &Exported, now: Option<&Exported>) {
    if now.is_none() {
        metrics.forget_messages(topic.as_str(), "", "waiting");
        metrics.forget_conservation_error(topic.as_str());
    }
    let is_gone = |group: &&Group| !now.is_some_and(|now| now.groups.contains(group));
    for group in before.groups.iter().filter(is_gone) {
        for state in STATES {
            metrics.forget_messages(topic.as_str(), group.as_str(), state);
        }
    }
}

const STATES: [&str; 6] = [
    "backlog",
    "parked",
    "ready",
    "in_flight",
    "retry",
    "garbage",
];

fn states(group: &GroupStats) -> impl Iterator<Item = (&'static str, u64)> {
    let GroupStats {
        backlog,
        parked,
        ready,
        in_flight,
        retry,
        garbage,
        ..
    } = *group;
    STATES
        .into_iter()
        .zip([backlog, parked, ready, in_flight, retry, garbage])
}
