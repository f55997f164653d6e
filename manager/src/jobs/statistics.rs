//! Refreshes the metrics of each topic: messages by state and those that become due soon, event counts, paused and retiring
//! groups, consumers, the age of due and ready messages (consumer lag), the conservation error and missing records. Writes the same
//! counts to the snapshot of all topics, one call for up to 100 topics that have changed.
//!
//! Exactly one manager exports a topic: the one that holds its first shard. A topic without messages is not counted again
//! until something in it has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::{
    Broker, BrokerError, Counts, GroupStats, IdleMark, Recheck, Sample, TopicHandle, TopicStats,
};
use lisa_core::fields::Size;
use lisa_core::sync::Mutex as SyncMutex;
use lisa_core::time::{UnixMs, millis};
use lisa_core::topic::Topic;
use lisa_service::config::HistoryConfig;
use lisa_service::metrics::TopicReading;
use serde::Serialize;
use tokio::sync::Mutex;
use utoipa::ToSchema;

use super::history::History;
use super::round::Round;
use super::{JobError, Tools};

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
    written: Mutex<Written>,
    history: Mutex<History>,
}

/// The part of the snapshot that this manager has written.
#[derive(Default)]
struct Written {
    /// The packed counts of each topic.
    counts: BTreeMap<Topic, String>,
    /// The number of runs since all topics were written, and what is left over was removed.
    age: u32,
}

/// The exported data of a topic.
struct Exported {
    reading: Arc<TopicReading>,
    /// The mark read just before the topic was counted, if it held no messages.
    mark: Option<IdleMark>,
    /// The number of runs since the topic was counted.
    age: u32,
    /// The counts as the snapshot has them, and the time at which they were found.
    packed: String,
    found: UnixMs,
    /// The counts as the history has them.
    sample: String,
}

/// The periods of the gauge of messages that become due.
const DUE_WITHIN: [(&str, Duration); 3] = [
    ("1m", Duration::from_mins(1)),
    ("1h", Duration::from_hours(1)),
    ("24h", Duration::from_hours(24)),
];

/// The number of runs in which an unchanged topic is counted once.
const COUNT_EVERY: u32 = 12;

impl Exported {
    /// Returns the mark and its part to check in this run, or `None` if the topic must be counted in any case.
    fn mark(&self) -> Option<(&IdleMark, Recheck)> {
        let part = match self.age % 4 {
            0 => Recheck::Flags,
            2 => Recheck::Consumers,
            _ => Recheck::Nothing,
        };
        let mark = self.mark.as_ref().filter(|_| self.age + 1 < COUNT_EVERY);
        mark.map(|mark| (mark, part))
    }

    /// Returns the exported data for one more run, at which the topic was found unchanged.
    fn again(&self, now: UnixMs) -> Self {
        Self {
            reading: self.reading.clone(),
            mark: self.mark.clone(),
            age: self.age + 1,
            packed: self.packed.clone(),
            found: now,
            sample: self.sample.clone(),
        }
    }
}

impl Statistics {
    pub(crate) fn new(tools: Tools, history: HistoryConfig) -> Self {
        Self {
            tools,
            exported: Mutex::default(),
            written: Mutex::default(),
            history: Mutex::new(History::new(history)),
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

    /// Returns how many waiting messages of a topic become due within each of [`DUE_WITHIN`]. Costs nothing if none waits.
    async fn due(
        &self,
        topic: &TopicHandle,
        stats: &TopicStats,
        now: UnixMs,
    ) -> Result<Vec<(&'static str, u64)>, BrokerError> {
        let ends = DUE_WITHIN.map(|(_, within)| UnixMs::new(now.get() + millis(within)));
        let counts = match stats.waiting {
            0 => vec![0; ends.len()],
            _ => self.tools.broker.waiting_before(topic, &ends).await?,
        };
        let periods = DUE_WITHIN.iter().map(|(within, _)| *within);
        Ok(periods.zip(counts).collect())
    }

    /// Counts the topics whose first shard this manager holds.
    ///
    /// # Errors
    /// A server did not answer: the gauges of its topics keep their values. Or a topic is damaged: it has no gauges.
    pub(crate) async fn run_once(&self) -> Result<Report, JobError> {
        let mut round = Round::new("statistics", &self.tools);
        let managers = self.tools.assignments.now().managers.len();
        self.tools.metrics.managers(managers);
        let mut report = Report::default();
        let mut exported = self.exported.lock().await;
        let mut counted = BTreeMap::new();
        let assignment = self.tools.assignments.now();
        let mine: Vec<_> = assignment
            .shards
            .iter()
            .filter(|assigned| assigned.is_first())
            .collect();
        let first: Vec<_> = mine.clone();
        let handles: Vec<_> = mine
            .iter()
            .map(|assigned| assigned.current(&self.tools.broker))
            .collect();
        let idle = self.still_idle(&handles, &exported).await;
        let (same, changed): (Vec<_>, Vec<_>) = mine
            .into_iter()
            .zip(handles.iter().cloned())
            .partition(|(_, handle)| idle.contains(handle.name()));
        for (assigned, handle) in same {
            let now = self.tools.broker.now_at(&handle, assigned.shard);
            let before = exported.get(handle.name());
            if let Some(same) = before.map(|before| before.again(now)) {
                report.topics += 1;
                report.conservation_error += same.reading.stats.conservation_error;
                counted.insert(handle.name().clone(), same);
            }
        }
        let (changed, handles): (Vec<_>, Vec<_>) = changed.into_iter().unzip();
        let marks = self.tools.broker.idle_marks(&handles).await;
        let damages = SyncMutex::new(BTreeMap::<Topic, String>::new());
        let calls = changed.iter().map(|assigned| {
            let (assigned, damages, exported) = (*assigned, &damages, &exported);
            let counting = async move {
                let topic = &assigned.topic;
                let counted = self.tools.broker.stats_at(topic).await;
                let (stats, at) = counted.inspect_err(|error| {
                    if let Some(damage) = damage_of(error) {
                        damages.lock().insert(topic.name().clone(), damage);
                    }
                })?;
                let due = self.due(topic, &stats, at).await?;
                let current = assigned.current(&self.tools.broker);
                let settings = current.settings();
                log(&stats, exported.get(&stats.topic));
                let reading = TopicReading {
                    stats,
                    due,
                    max_messages: settings.max_messages,
                    max_bytes: settings.max_bytes.map(Size::get),
                };
                Ok((reading, at))
            };
            (&*assigned.topic, counting)
        });
        let calls: Vec<_> = calls.collect();
        let answers = round.of_topics(calls).await;
        let damages = std::mem::take(&mut *damages.lock());
        let damaged = changed.iter().filter_map(|assigned| {
            let name = assigned.topic.name();
            let now = self.tools.broker.now_at(&assigned.topic, assigned.shard);
            Some((name, now, Counts::pack(Err(damages.get(name)?), now)))
        });
        let damaged: Vec<_> = damaged.collect();
        for ((assigned, mark), answer) in changed.iter().zip(marks).zip(answers) {
            let Some((reading, at)) = answer else {
                if round.is_away(&assigned.topic)
                    && let Some(before) = exported.remove(assigned.topic.name())
                {
                    counted.insert(assigned.topic.name().clone(), before);
                }
                continue;
            };
            let stats = &reading.stats;
            report.topics += 1;
            report.conservation_error += stats.conservation_error;
            let export = Exported {
                packed: Counts::pack(Ok((stats, assigned.topic.settings())), at),
                found: at,
                sample: Sample::new(stats, at).pack(),
                mark,
                age: 0,
                reading: Arc::new(reading),
            };
            counted.insert(assigned.topic.name().clone(), export);
        }
        let readings = counted.values().map(|counted| counted.reading.clone());
        self.tools.metrics.topics(readings.collect());
        let counts = counted
            .iter()
            .map(|(topic, counted)| (topic, counted.found, counted.packed.as_str()));
        let damaged = damaged.iter();
        let damaged = damaged.map(|(topic, at, packed)| (*topic, *at, packed.as_str()));
        let counts: Vec<_> = counts.chain(damaged).collect();
        let mut written = self.written.lock().await;
        let manager = self.tools.assignments.name();
        let broker = &self.tools.broker;
        let wrote = written
            .write(broker, manager, &counts, round.is_complete())
            .await;
        let samples = first.into_iter().filter_map(|assigned| {
            let counted = counted.get(assigned.topic.name())?;
            Some((assigned, counted.found, counted.sample.as_str()))
        });
        let mut history = self.history.lock().await;
        history.note(&mut round, &self.tools.broker, samples).await;
        let is_first = assignment.managers.first().map(String::as_str) == Some(manager);
        let noted = match is_first {
            true => history.note_total(broker, &assignment).await,
            false => Ok(None),
        };
        match &noted {
            Ok(None) if is_first => {}
            Ok(age) => self.tools.metrics.snapshot_age(*age),
            Err(_) => self.tools.metrics.snapshot_age(None),
        }
        *exported = counted;
        let report = round.report(report)?;
        wrote?;
        noted?;
        Ok(report)
    }
}

/// Returns the reason why a topic cannot be counted, if its stored data is at fault.
fn damage_of(error: &BrokerError) -> Option<String> {
    (error.is_of_one_topic() && !error.is_gone()).then(|| error.to_string())
}

impl Written {
    /// Writes the counts that differ from those written before. Writes all of them once in [`COUNT_EVERY`] runs, in case
    /// that the snapshot was lost. Also writes all of them after an incomplete run: without a complete one, the unchanged
    /// ones would look outdated.
    async fn write(
        &mut self,
        broker: &Broker,
        manager: &str,
        counts: &[(&Topic, UnixMs, &str)],
        is_complete: bool,
    ) -> Result<(), BrokerError> {
        self.age += 1;
        let is_turn = self.age >= COUNT_EVERY;
        let before = std::mem::take(&mut self.counts);
        let is_written = |(topic, _, packed): &&(&Topic, UnixMs, &str)| {
            let before = before.get(*topic).map(String::as_str);
            !is_turn && is_complete && before == Some(*packed)
        };
        let changed: Vec<_> = counts
            .iter()
            .filter(|count| !is_written(count))
            .copied()
            .collect();
        broker.note_counts(manager, &changed, is_complete).await?;
        if is_turn {
            broker.prune_snapshot(manager).await?;
            self.age = 0;
        }
        let counts = counts.iter();
        self.counts = counts
            .map(|(topic, _, packed)| ((*topic).clone(), (*packed).to_owned()))
            .collect();
        Ok(())
    }
}

/// The age of the oldest ready message at which a group that no consumer has ever read is logged.
const UNREAD: Duration = Duration::from_secs(60);

/// Logs a conservation error when it changes, and logs each group that no consumer has ever read once.
fn log(stats: &TopicStats, before: Option<&Exported>) {
    let error = stats.conservation_error;
    if error > 0 && before.map(|before| before.reading.stats.conservation_error) != Some(error) {
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
        if !before.is_some_and(|before| before.reading.stats.groups.iter().any(same)) {
            tracing::warn!(
                topic = %stats.topic, group = %group.group, ready = group.ready,
                "no consumer has ever read this group; start one, or drop the group"
            );
        }
    }
}
