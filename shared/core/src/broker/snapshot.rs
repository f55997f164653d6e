//! The snapshot: the newest counts of all topics in one key, written by the managers that count them.
//!
//! Times are absolute in it, so the value of a topic in which nothing happens does not change, and is not written again.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::broker::counters::{COUNTERS, Counter};
use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError, GroupStats, Retirement, TopicStats};
use crate::scripts::NoteCounts;
use crate::time::UnixMs;
use crate::topic::{Group, Topic, TopicSettings};

/// The number of topics that one call writes. Redis handles it within about 0.3 ms.
const BATCH: usize = 100;

/// The format of a value. A reader that does not know it reports the topic as unreadable.
const FORMAT: u8 = 1;

/// The newest counts of all topics.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The time of Redis's clock, as estimated by this process, when it was read.
    pub read_at: UnixMs,
    /// The topics, by name.
    pub topics: Vec<CountedTopic>,
}

/// The newest counts of a topic.
#[derive(Clone, Debug, PartialEq)]
pub struct CountedTopic {
    /// The topic.
    pub topic: Topic,
    /// The time at which a manager last found these counts.
    pub as_of: UnixMs,
    /// The manager that counted it.
    pub manager: String,
    /// The counts, or the reason why the topic could not be counted.
    pub counts: Result<Counts, String>,
}

/// The counts of a topic, and the limits that they are measured against.
#[derive(Clone, Debug, PartialEq)]
pub struct Counts {
    /// The counts. The ages in them are those at [`CountedTopic::as_of`].
    pub stats: TopicStats,
    /// The maximum number of stored messages.
    pub max_messages: Option<u64>,
    /// The maximum size of the stored records in bytes.
    pub max_bytes: Option<u64>,
}

impl Counts {
    /// Packs the counts of a topic as of `at`, or the reason why it could not be counted. The text stays the same as long as
    /// nothing happens in the topic.
    pub fn pack(counted: Result<(&TopicStats, &TopicSettings), &str>, at: UnixMs) -> String {
        let packed = match counted {
            Ok((stats, settings)) => {
                Packed::Counts(Box::new(PackedCounts::new(stats, settings, at)))
            }
            Err(error) => Packed::Error(crate::time::shorten_to(error, 200)),
        };
        serde_json::to_string(&packed).unwrap_or_default()
    }
}

impl Broker {
    /// Keeps the packed counts of topics, each with the time at which they were found. Leaves out counts that are older than
    /// those stored, and those of topics that are no longer registered. `complete` says that `manager` has read each of its
    /// topics in this run, so that those that are not written are unchanged.
    ///
    /// # Errors
    /// [`BrokerError`]; part of the counts may be stored.
    pub async fn note_counts(
        &self,
        manager: &str,
        counts: &[(&Topic, UnixMs, &str)],
        complete: bool,
    ) -> Result<(), BrokerError> {
        let by = serde_json::Value::from(manager);
        let value = |(topic, at, packed): &(&Topic, UnixMs, &str)| {
            (topic.to_string(), format!("{} [{by},{packed}]", at.get()))
        };
        let entries: Vec<_> = counts.iter().map(value).collect();
        self.write_snapshot(manager, &entries, complete).await
    }

    /// Removes what topics that are no longer registered, and managers that no longer run, have left in the snapshot. Reads
    /// the names of its fields, and the registry.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn prune_snapshot(&self, manager: &str) -> Result<(), BrokerError> {
        let snapshot = &self.inner.registry.snapshot;
        let names: Vec<String> = self.ask(command("HKEYS", snapshot)).await?;
        let registered = self.registered().await?;
        let registered: BTreeSet<&str> = registered.keys().map(Topic::as_str).collect();
        let names = names
            .into_iter()
            .filter(|name| !registered.contains(name.as_str()));
        // The script checks again: a topic may have been registered since.
        let entries: Vec<_> = names.map(|name| (name, String::new())).collect();
        match entries.is_empty() {
            true => Ok(()),
            false => self.write_snapshot(manager, &entries, false).await,
        }
    }

    async fn write_snapshot(
        &self,
        manager: &str,
        entries: &[(String, String)],
        complete: bool,
    ) -> Result<(), BrokerError> {
        let mut rest = entries;
        loop {
            let (entries, after) = rest.split_at(rest.len().min(BATCH));
            rest = after;
            let call = NoteCounts {
                manager,
                complete: complete && rest.is_empty(),
                entries,
            };
            self.run_on_registry(&call).await?;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Reads the newest counts of all topics in one call. A topic that no manager has counted yet is missing.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn snapshot(&self) -> Result<Snapshot, BrokerError> {
        let fields = self.fields(&self.inner.registry.snapshot).await?;
        Ok(read_snapshot(&fields, self.now()))
    }

    /// Reads the names of all registered topics in one call, without their settings.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn topic_names(&self) -> Result<Vec<Topic>, BrokerError> {
        Ok(self.registered().await?.into_keys().collect())
    }
}

/// Reads the fields of the snapshot.
fn read_snapshot(fields: &[(String, String)], read_at: UnixMs) -> Snapshot {
    let run = |(field, value): &(String, String)| {
        let manager = field.strip_prefix(':')?.to_owned();
        Some((manager, UnixMs::new(value.parse().ok()?)))
    };
    let runs: BTreeMap<String, UnixMs> = fields.iter().filter_map(run).collect();
    let topic = |(field, value): &(String, String)| {
        let topic: Topic = field.parse().ok()?;
        let (at, value) = value.split_once(' ').unwrap_or_default();
        let found = UnixMs::new(at.parse().unwrap_or_default());
        let (manager, packed) = match serde_json::from_str::<Entry>(value) {
            Ok(Entry(manager, packed)) => (manager, packed),
            Err(error) => (
                String::new(),
                Packed::Error(format!("cannot read its counts: {error}")),
            ),
        };
        let as_of = runs.get(&manager).map_or(found, |run| found.max(*run));
        let counts = packed.unpack(&topic, as_of);
        Some(CountedTopic {
            topic,
            as_of,
            manager,
            counts,
        })
    };
    let mut topics: Vec<_> = fields.iter().filter_map(topic).collect();
    topics.sort_unstable_by(|one, other| one.topic.cmp(&other.topic));
    Snapshot { read_at, topics }
}

/// The value of a topic: the manager that counted it, and its counts.
#[derive(Deserialize)]
struct Entry(String, Packed);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Packed {
    Counts(Box<PackedCounts>),
    Error(String),
    /// The counts of a newer version.
    Other(Vec<serde_json::Value>),
}

/// The counts of a topic, written as an array.
#[derive(Serialize, Deserialize)]
struct PackedCounts(
    u8,
    /// 1 paused, 2 general, 4 full.
    u8,
    /// Stored, waiting, tombstones, bytes, conservation error.
    [u64; 5],
    /// The time of the next due message, and the one since which a message is overdue; 0 if there is none.
    [u64; 2],
    /// The number of messages on retiring shards, and the limits on messages and bytes.
    [Option<u64>; 3],
    /// The counters, without the zeros at the end.
    Vec<i64>,
    Vec<PackedGroup>,
);

/// The counts of a group, written as an array.
#[derive(Serialize, Deserialize)]
struct PackedGroup(
    Group,
    /// 1 paused, 2 draining, 4 dropping, 8 of an instance, 16 unconfigured, 32 never read.
    u8,
    /// Backlog, parked, ready, in flight, retry, garbage, consumers.
    [u64; 7],
    /// The due times of the oldest message that is due and of the oldest ready one; 0 if there is none.
    [u64; 2],
);

/// Returns the instant that was `age` milliseconds before `at`, or 0 for no age.
const fn instant(at: UnixMs, age: u64) -> u64 {
    match age {
        0 => 0,
        age => at.get().saturating_sub(age),
    }
}

/// Returns how many milliseconds before `at` an instant was; 0 if there is none.
const fn age(at: UnixMs, instant: u64) -> u64 {
    match instant {
        0 => 0,
        instant => at.get().saturating_sub(instant),
    }
}

fn flags<const N: usize>(flags: [bool; N]) -> u8 {
    let bits = flags.iter().enumerate();
    bits.map(|(bit, flag)| u8::from(*flag) << bit).sum()
}

impl PackedCounts {
    fn new(stats: &TopicStats, settings: &TopicSettings, at: UnixMs) -> Self {
        let counter = |of: &Counter| stats.counters.get(of.name).copied().unwrap_or(0);
        let mut counters: Vec<i64> = COUNTERS.iter().map(counter).collect();
        while counters.last() == Some(&0) {
            counters.pop();
        }
        let group = |group: &GroupStats| {
            PackedGroup(
                group.group.clone(),
                flags([
                    group.paused,
                    group.retiring == Some(Retirement::Drain),
                    group.retiring == Some(Retirement::Drop),
                    group.instance,
                    group.unconfigured,
                    group.never_read,
                ]),
                [
                    group.backlog,
                    group.parked,
                    group.ready,
                    group.in_flight,
                    group.retry,
                    group.garbage,
                    group.consumers,
                ],
                [
                    instant(at, group.oldest_due_age_ms),
                    instant(at, group.oldest_ready_age_ms),
                ],
            )
        };
        Self(
            FORMAT,
            flags([stats.paused, stats.class == "general", stats.full]),
            [
                stats.stored,
                stats.waiting,
                stats.tombstones,
                stats.bytes,
                stats.conservation_error,
            ],
            [
                stats.next_due.map_or(0, UnixMs::get),
                instant(at, stats.overdue_ms),
            ],
            [
                stats.migrating,
                settings.max_messages,
                settings.max_bytes.map(crate::fields::Size::get),
            ],
            counters,
            stats.groups.iter().map(group).collect(),
        )
    }
}

impl PackedGroup {
    fn unpack(self, at: UnixMs) -> GroupStats {
        let Self(group, flags, counts, [due, ready_since]) = self;
        let [backlog, parked, ready, in_flight, retry, garbage, consumers] = counts;
        let has = |bit: u8| flags & bit != 0;
        GroupStats {
            group,
            backlog,
            parked,
            ready,
            in_flight,
            retry,
            garbage,
            consumers,
            oldest_due_age_ms: age(at, due),
            oldest_ready_age_ms: age(at, ready_since),
            paused: has(1),
            retiring: match (has(2), has(4)) {
                (true, _) => Some(Retirement::Drain),
                (_, true) => Some(Retirement::Drop),
                _ => None,
            },
            instance: has(8),
            unconfigured: has(16),
            never_read: has(32),
        }
    }
}

impl Packed {
    fn unpack(self, topic: &Topic, at: UnixMs) -> Result<Counts, String> {
        let packed = match self {
            Self::Counts(packed) if packed.0 == FORMAT => *packed,
            Self::Counts(_) | Self::Other(_) => {
                return Err("its counts were written by another version".to_owned());
            }
            Self::Error(error) => return Err(error),
        };
        let PackedCounts(_, flags, counts, [next_due, since], limits, counters, groups) = packed;
        let [stored, waiting, tombstones, bytes, conservation_error] = counts;
        let [migrating, max_messages, max_bytes] = limits;
        let counters = COUNTERS.iter().zip(counters);
        let counters = counters.filter(|(_, count)| *count != 0);
        let stats = TopicStats {
            topic: topic.clone(),
            paused: flags & 1 != 0,
            class: match flags & 2 {
                0 => Cow::Borrowed("plain"),
                _ => Cow::Borrowed("general"),
            },
            stored,
            waiting,
            tombstones,
            next_due: Some(UnixMs::new(next_due)).filter(|due| due.get() > 0),
            overdue_ms: age(at, since),
            bytes,
            full: flags & 4 != 0,
            migrating,
            groups: groups.into_iter().map(|group| group.unpack(at)).collect(),
            counters: counters
                .map(|(of, count)| (of.name.to_owned(), count))
                .collect(),
            conservation_error,
        };
        Ok(Counts {
            stats,
            max_messages,
            max_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    fn stats() -> TopicStats {
        TopicStats {
            topic: "orders".parse().unwrap(),
            paused: true,
            class: "general".into(),
            stored: 9,
            waiting: 2,
            tombstones: 3,
            next_due: Some(UnixMs::new(900)),
            overdue_ms: 100,
            bytes: 4096,
            full: true,
            migrating: Some(1),
            groups: vec![GroupStats {
                group: "billing".parse().unwrap(),
                backlog: 1,
                parked: 2,
                ready: 3,
                in_flight: 4,
                retry: 5,
                garbage: 6,
                consumers: 7,
                oldest_due_age_ms: 80,
                oldest_ready_age_ms: 0,
                paused: true,
                retiring: Some(Retirement::Drop),
                instance: false,
                unconfigured: true,
                never_read: false,
            }],
            counters: [("accepted", 20), ("dropped", 4)]
                .map(|(name, count)| (name.to_owned(), count))
                .into(),
            conservation_error: 8,
        }
    }

    fn snapshot(fields: &[(String, String)]) -> Snapshot {
        read_snapshot(fields, UnixMs::new(2000))
    }

    #[test]
    fn counts_are_read_as_they_were_packed() {
        let settings = TopicSettings {
            max_messages: Some(10),
            ..TopicSettings::default()
        };
        let packed = Counts::pack(Ok((&stats(), &settings)), UnixMs::new(1000));
        let value = format!("1000 [\"m1\",{packed}]");
        let found = snapshot(&[field("orders", &value)]);
        let expected = CountedTopic {
            topic: stats().topic,
            as_of: UnixMs::new(1000),
            manager: "m1".to_owned(),
            counts: Ok(Counts {
                stats: stats(),
                max_messages: Some(10),
                max_bytes: None,
            }),
        };
        assert_eq!(found.topics, [expected]);
        assert!(value.len() < 200, "{} bytes: {value}", value.len());
    }

    #[test]
    fn a_complete_run_of_the_manager_renews_its_counts_and_their_ages() {
        let packed = Counts::pack(Ok((&stats(), &TopicSettings::default())), UnixMs::new(1000));
        let value = format!("1000 [\"m1\",{packed}]");
        let fields = [
            field(":m1", "1500"),
            field(":m2", "1900"),
            field("orders", &value),
        ];
        let found = snapshot(&fields).topics.remove(0);
        assert_eq!(found.as_of, UnixMs::new(1500));
        let stats = found.counts.unwrap().stats;
        let group = &stats.groups[0];
        let ages = (group.oldest_due_age_ms, group.oldest_ready_age_ms);
        assert_eq!((stats.overdue_ms, ages), (600, (580, 0)));
        // Nothing has happened, so the text is the same.
        let later = Counts::pack(Ok((&stats, &TopicSettings::default())), UnixMs::new(1500));
        assert_eq!(later, packed);
    }

    #[test]
    fn what_cannot_be_read_is_said_and_hides_no_other_topic() {
        let error = Counts::pack(Err("WRONGTYPE"), UnixMs::new(1));
        let fields = [
            field("a", &format!("1 [\"m\",{error}]")),
            field("b", "1 [\"m\",[2,\"new\"]]"),
            field("c", "what"),
        ];
        let errors = snapshot(&fields).topics;
        let errors: Vec<_> = errors
            .into_iter()
            .map(|topic| topic.counts.unwrap_err())
            .collect();
        assert_eq!(errors[0], "WRONGTYPE");
        assert_eq!(errors[1], "its counts were written by another version");
        assert!(
            errors[2].starts_with("cannot read its counts: "),
            "{}",
            errors[2]
        );
    }
}
