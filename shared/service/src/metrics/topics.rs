//! The metrics of topics and their groups, as a manager read them last. A scrape shows what is in the newest reading, so
//! nothing has to be removed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::{COUNTERS, GroupStats, TopicStats};
use lisa_core::sync::Mutex;
use lisa_core::topic::Topic;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::{Metrics, signed};

/// The counts of a topic.
#[derive(Clone, Debug)]
pub struct TopicReading {
    /// The counts by state.
    pub stats: TopicStats,
    /// The number of waiting messages that become due within each period: `1m`, `1h` and `24h`.
    pub due: Vec<(&'static str, u64)>,
    /// The largest number of stored messages, if it is limited.
    pub max_messages: Option<u64>,
    /// The largest size of the stored records in bytes, if it is limited.
    pub max_bytes: Option<u64>,
}

/// The faults that the last examination of a topic found and did not repair, by code.
pub type Findings = BTreeMap<&'static str, u64>;

impl Metrics {
    /// Replaces the counts of the topics that this process reports.
    pub fn topics(&self, readings: Vec<Arc<TopicReading>>) {
        *self.families.topics.readings.lock() = readings;
    }

    /// Replaces the faults of the topics that this process has examined.
    pub fn doctor_findings(&self, findings: BTreeMap<Topic, Findings>) {
        *self.families.topics.findings.lock() = Arc::new(findings);
    }
}

/// The newest readings, which a scrape encodes.
#[derive(Debug, Default)]
pub(super) struct Topics {
    readings: Mutex<Vec<Arc<TopicReading>>>,
    findings: Mutex<Arc<BTreeMap<Topic, Findings>>>,
}

/// The labels of a series after that of its topic, and its value.
type Series<'r> = Vec<(Vec<(&'static str, &'r str)>, Value)>;

enum Value {
    Count(u64),
    /// In milliseconds.
    Age(u64),
    /// Never decreases.
    Total(u64),
}
use Value::{Age, Count, Total};

/// A metric of topics: its name, its meaning, and its series in the reading of one.
type Family = (
    &'static str,
    &'static str,
    for<'r> fn(&'r TopicReading) -> Series<'r>,
);

const FAMILIES: [Family; 16] = [
    (
        "topic_messages",
        "Number of messages by state (garbage: dead letters); group is empty for state waiting.",
        |topic| {
            let waiting = vec![("group", ""), ("state", "waiting")];
            let mut series = vec![(waiting, Count(topic.stats.waiting))];
            for group in &topic.stats.groups {
                series.extend(group.by_state().map(|(state, count)| {
                    let labels = vec![("group", group.group.as_str()), ("state", state.as_str())];
                    (labels, Count(count))
                }));
            }
            series
        },
    ),
    (
        "topic_events",
        "Number of events of a topic's messages since the topic was declared, as counted by Redis.",
        |topic| {
            let events = COUNTERS.iter().filter(|counter| counter.is_event);
            let series = events.map(|event| {
                let count = topic.stats.counters.get(event.name).copied().unwrap_or(0);
                let count = u64::try_from(count).unwrap_or(0);
                (vec![("event", event.name)], Total(count))
            });
            series.collect()
        },
    ),
    (
        "topic_stored",
        "Number of stored messages, each counted once for all its groups.",
        |topic| one(Count(topic.stats.stored)),
    ),
    (
        "topic_due",
        "Number of waiting messages that become due within a period: 1m, 1h or 24h; those that are due already count, too.",
        |topic| {
            let due = topic.due.iter();
            let series = due.map(|(within, count)| (vec![("within", *within)], Count(*count)));
            series.collect()
        },
    ),
    (
        "topic_bytes",
        "Size of the stored records in bytes; only exported if max_bytes is set.",
        |topic| {
            topic
                .max_bytes
                .map_or(Vec::new(), |_| one(Count(topic.stats.bytes)))
        },
    ),
    (
        "topic_max_messages",
        "Largest number of stored messages of a topic; only exported if max_messages is set.",
        |topic| {
            topic
                .max_messages
                .map_or(Vec::new(), |most| one(Count(most)))
        },
    ),
    (
        "topic_max_bytes",
        "Largest size of a topic's stored records and tombstones in bytes; only exported if max_bytes is set.",
        |topic| topic.max_bytes.map_or(Vec::new(), |most| one(Count(most))),
    ),
    (
        "topic_tombstones",
        "Number of ids of ended messages that are remembered for the dedup window (tombstones).",
        |topic| one(Count(topic.stats.tombstones)),
    ),
    (
        "topic_paused",
        "Pause of a group: 1 if paused, else 0; group is empty for the topic.",
        |topic| {
            let of_topic = (vec![("group", "")], Count(topic.stats.paused.into()));
            let groups = of_groups(topic, |group| Count(group.paused.into()));
            [vec![of_topic], groups].into_iter().flatten().collect()
        },
    ),
    (
        "topic_retiring",
        "Retirement of a group: 1 if it is being drained or dropped, else 0.",
        |topic| of_groups(topic, |group| Count(group.retiring.is_some().into())),
    ),
    (
        "topic_unconfigured",
        "Group without configuration: 1 if the managers' file does not name it (it still gets all messages), else 0.",
        |topic| of_groups(topic, |group| Count(group.unconfigured.into())),
    ),
    (
        "topic_consumers",
        "Number of consumers of a group that reported within the last 30 s.",
        |topic| of_groups(topic, |group| Count(group.consumers)),
    ),
    (
        "topic_oldest_due_age",
        "Age of the oldest due message that no consumer holds, in seconds since it was due; group is empty for the topic.",
        |topic| {
            let of_topic = (vec![("group", "")], Age(topic.stats.overdue_ms));
            let groups = of_groups(topic, |group| Age(group.oldest_due_age_ms));
            [vec![of_topic], groups].into_iter().flatten().collect()
        },
    ),
    (
        "topic_oldest_ready_age",
        "Consumer lag: age of the first ready message of a group that no consumer has read, in seconds since it was due.",
        |topic| of_groups(topic, |group| Age(group.oldest_ready_age_ms)),
    ),
    (
        "conservation_error",
        "Number of messages that are unaccounted for; normally 0.",
        |topic| one(Count(topic.stats.conservation_error)),
    ),
    (
        "topic_missing_records",
        "Lower bound of the number of messages that have no record; normally 0.",
        |topic| one(Count(topic.stats.missing_records())),
    ),
];

fn one<'r>(value: Value) -> Series<'r> {
    vec![(Vec::new(), value)]
}

fn of_groups(topic: &TopicReading, value: impl Fn(&GroupStats) -> Value) -> Series<'_> {
    let groups = topic.stats.groups.iter();
    let series = groups.map(|group| (vec![("group", group.group.as_str())], value(group)));
    series.collect()
}

impl Collector for Topics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let readings = self.readings.lock().clone();
        for (name, help, read) in FAMILIES {
            let readings = readings.iter();
            let series = readings.map(|topic| (topic.stats.topic.as_str(), read(topic)));
            encode(&mut encoder, name, help, &series.collect::<Vec<_>>())?;
        }
        let findings = self.findings.lock().clone();
        let series = findings.iter().map(|(topic, findings)| {
            let counts = findings.iter();
            let series = counts.map(|(code, count)| (vec![("code", *code)], Count(*count)));
            (topic.as_str(), series.collect())
        });
        let help = "Number of faults that the last examination of a topic found and did not repair, by code.";
        encode(
            &mut encoder,
            "doctor_findings",
            help,
            &series.collect::<Vec<_>>(),
        )
    }
}

/// Encodes a metric: the series of each topic.
fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    topics: &[(&str, Series<'_>)],
) -> fmt::Result {
    let Some((_, first)) = topics.iter().flat_map(|(_, series)| series).next() else {
        return Ok(());
    };
    let (unit, kind) = match first {
        Count(_) => (None, MetricType::Gauge),
        Age(_) => (Some(&Unit::Seconds), MetricType::Gauge),
        Total(_) => (None, MetricType::Counter),
    };
    let mut family = encoder.encode_descriptor(name, help, unit, kind)?;
    for (topic, series) in topics {
        for (labels, value) in series {
            let labels = [&[("topic", *topic)], &labels[..]].concat();
            let metric = family.encode_family(&labels)?;
            match value {
                Count(count) => ConstGauge::new(signed(*count)).encode(metric)?,
                Age(ms) => {
                    let age = Duration::from_millis(*ms).as_secs_f64();
                    ConstGauge::new(age).encode(metric)?;
                }
                Total(count) => ConstCounter::new(*count).encode(metric)?,
            }
        }
    }
    Ok(())
}
