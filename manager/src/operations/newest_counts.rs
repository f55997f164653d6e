//! Reads the newest counts of all topics in a constant number of calls, for the dashboard and `top`.

use std::collections::BTreeMap;
use std::time::Duration;

use lisa_core::broker::{Broker, CountedTopic, GroupStats, Sample};
use lisa_core::time::UnixMs;
use lisa_core::topic::Topic;
use lisa_service::http::auth::Reach;
use tokio::time::timeout;

use super::snapshot::{SnapshotList, SnapshotTopic};
use super::topics::{AllTopicsError, DamagedTopic, Missing, StatsList, of_all};

/// The age from which counts in the snapshot are not used: no manager writes them.
pub(crate) const TOO_OLD: Duration = Duration::from_mins(2);

/// The counts of all topics, most of them from the snapshot.
#[derive(Debug)]
pub(crate) struct NewestCounts {
    pub(crate) list: StatsList,
    /// The time at which each topic was counted.
    pub(crate) as_of: BTreeMap<Topic, UnixMs>,
    /// The age of the oldest counts.
    pub(crate) age: Duration,
}

impl NewestCounts {
    /// Returns the sums of all topics.
    pub(crate) fn total(&self, now: UnixMs) -> Sample {
        let topics = self.list.topics.iter();
        let at = |topic: &Topic| self.as_of.get(topic).copied().unwrap_or(now);
        let counted = topics.map(|stats| (stats, at(&stats.topic)));
        let missing = &self.list.missing;
        let damaged = missing.damaged.iter().map(|damaged| &*damaged.topic);
        let unanswered = missing.unanswered.iter().map(Topic::as_str);
        Sample::total(counted, damaged.chain(unanswered))
    }

    /// Returns the counts of the topics that a client reaches.
    pub(crate) fn within(&self, reach: &Reach) -> Self {
        let topics = self.list.topics.iter();
        let topics = topics.filter(|stats| reach.has_topic(&stats.topic));
        let as_of = self.as_of.iter();
        let as_of = as_of.filter(|(topic, _)| reach.has_topic(topic));
        let as_of: BTreeMap<_, _> = as_of.map(|(topic, at)| (topic.clone(), *at)).collect();
        let (oldest, oldest_of_all) = (as_of.values().min(), self.as_of.values().min());
        let newer = oldest.zip(oldest_of_all).map(|(own, all)| own.since(*all));
        Self {
            age: newer.map_or(Duration::ZERO, |newer| self.age.saturating_sub(newer)),
            list: StatsList {
                topics: topics.cloned().collect(),
                managers: self.list.managers,
                missing: self.list.missing.within(reach),
            },
            as_of,
        }
    }

    /// Returns the groups that have garbage, those with the most first.
    pub(crate) fn groups_with_garbage(&self) -> Vec<(&Topic, &GroupStats)> {
        let topics = self.list.topics.iter();
        let groups =
            topics.flat_map(|topic| topic.groups.iter().map(move |group| (&topic.topic, group)));
        let mut groups: Vec<_> = groups.filter(|(_, group)| group.garbage > 0).collect();
        groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.garbage));
        groups
    }
}

/// The counts of the snapshot as they are. A topic that no manager has counted yet is missing.
impl From<SnapshotList> for NewestCounts {
    fn from(snapshot: SnapshotList) -> Self {
        let as_of =
            |topic: &SnapshotTopic| Some((topic.stats.topic.clone(), topic.as_of.parse().ok()?));
        Self {
            as_of: snapshot.topics.iter().filter_map(as_of).collect(),
            age: Duration::from_millis(snapshot.age_ms),
            list: StatsList {
                managers: Some(snapshot.managers),
                missing: Missing {
                    damaged: snapshot.damaged,
                    ..Missing::default()
                },
                topics: { snapshot.topics.into_iter() }
                    .map(|topic| topic.stats)
                    .collect(),
            },
        }
    }
}

/// Returns the newest counts of all topics, in three calls: those of the snapshot. Counts only the topics that are not in it,
/// those whose counts are older than [`TOO_OLD`], and those that changed after the time that `changed` returns.
///
/// # Errors
/// [`AllTopicsError`].
pub(crate) async fn newest_counts(
    broker: &Broker,
    within: Duration,
    changed: impl Fn(&Topic) -> Option<UnixMs>,
) -> Result<NewestCounts, AllTopicsError> {
    let (names, managers, snapshot) = tokio::join!(
        broker.topic_names(),
        timeout(within, broker.managers()),
        timeout(within, broker.snapshot())
    );
    let names = names?;
    // Without the snapshot, each topic is counted.
    let snapshot = snapshot.ok().and_then(Result::ok);
    let counted = snapshot.map(|snapshot| snapshot.topics).unwrap_or_default();
    let mut counted: BTreeMap<_, _> = { counted.into_iter() }
        .map(|counted| (counted.topic.clone(), counted))
        .collect();
    let now = broker.now();
    let (mut topics, mut as_of, mut damaged) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    let mut uncounted = Vec::new();
    for name in names {
        let is_current = |counted: &CountedTopic| {
            now.since(counted.as_of) < TOO_OLD && changed(&name).is_none_or(|at| at < counted.as_of)
        };
        match counted.remove(&name).filter(is_current) {
            None => uncounted.push(name),
            Some(counted) => match counted.counts {
                Ok(counts) => {
                    topics.push(counts.stats);
                    as_of.insert(name, counted.as_of);
                }
                Err(error) => {
                    damaged.insert(name.to_string(), error);
                }
            },
        }
    }
    let age = as_of.values().map(|at| now.since(*at)).max();
    let count = |name: Topic| async move { broker.stats(&*broker.topic(&name).await?).await };
    let named = uncounted.iter().map(|name| (name, name.clone()));
    let missing = match of_all(broker, named, within, count).await {
        Ok((found, missing)) => {
            as_of.extend(found.iter().map(|stats| (stats.topic.clone(), now)));
            topics.extend(found);
            missing
        }
        Err(AllTopicsError::Unanswered) if !topics.is_empty() => Missing {
            unanswered: uncounted,
            damaged: Vec::new(),
        },
        Err(error) => return Err(error),
    };
    topics.sort_unstable_by(|one, other| one.topic.cmp(&other.topic));
    damaged.extend({ missing.damaged.into_iter() }.map(|damaged| (damaged.topic, damaged.error)));
    Ok(NewestCounts {
        list: StatsList {
            topics,
            managers: managers.ok().and_then(Result::ok).map(|all| all.len()),
            missing: Missing {
                damaged: DamagedTopic::all(damaged),
                ..missing
            },
        },
        as_of,
        age: age.unwrap_or_default(),
    })
}
