//! Writes the history of each topic: a sample of its counts a minute, and one a quarter hour, while something happens. One
//! manager also writes that of all topics together, from the snapshot.
//!
//! A sample has the time at which its minute or quarter hour began. If it is too late for that, it is left out, and the
//! history has a gap.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lisa_core::broker::{Broker, BrokerError, CountedTopic, Resolution, Sample};
use lisa_core::time::UnixMs;
use lisa_core::topic::Topic;
use lisa_service::config::HistoryConfig;

use super::round::Round;
use crate::assignment::{AssignedShard, Assignment};

/// The longest time after the start of a minute or quarter hour at which counts still stand for it.
const LATEST: Duration = Duration::from_secs(30);

/// The part of the history that this manager has written.
pub(super) struct History {
    resolutions: Vec<(Resolution, u64)>,
    topics: BTreeMap<Topic, Vec<Track>>,
    /// The start of the last step of each resolution for which the sums of all topics were written.
    totals: Vec<UnixMs>,
}

/// The samples of one topic in one resolution.
struct Track {
    resolution: Resolution,
    /// The start of the last minute or quarter hour that was handled.
    handled: UnixMs,
    /// The last sample; all zero before the first one.
    sample: String,
    /// True if the sample has been noted again a step later. Consumers report lateness some seconds after a delivery.
    is_complete: bool,
    /// The last start of a step at which the counts were still those of the sample. It is noted once something changes, so that
    /// the change has a start.
    unchanged_at: Option<UnixMs>,
}

/// A sample to write.
#[derive(Debug, PartialEq, Eq)]
struct Due {
    time: UnixMs,
    sample: String,
    /// True to write it even if it equals the last one.
    again: bool,
}

impl Track {
    fn new(resolution: Resolution) -> Self {
        Self {
            resolution,
            handled: UnixMs::default(),
            sample: Sample::default().pack(),
            is_complete: true,
            unchanged_at: None,
        }
    }

    /// Returns the samples to write when the counts at `now` are those of `sample`.
    fn due(&mut self, now: UnixMs, sample: &str) -> Vec<Due> {
        let time = self.resolution.start(now);
        let is_new = time != self.handled && now.since(time) <= LATEST;
        let is_same = self.sample == sample;
        if is_new {
            self.handled = time;
            if is_same && self.is_complete {
                self.unchanged_at = Some(time);
            }
        }
        let mut due = Vec::new();
        if !is_same && let Some(time) = self.unchanged_at.take() {
            due.push(Due {
                time,
                sample: self.sample.clone(),
                again: true,
            });
        }
        let is_written = is_new && !(is_same && self.is_complete);
        if is_written {
            self.is_complete = is_same;
            sample.clone_into(&mut self.sample);
            due.push(Due {
                time,
                sample: sample.to_owned(),
                again: false,
            });
        }
        due
    }
}

impl History {
    pub(super) fn new(config: HistoryConfig) -> Self {
        let resolutions = vec![
            (Resolution::Minute, config.minutes),
            (Resolution::Quarter, config.quarters),
        ];
        Self {
            totals: vec![UnixMs::default(); resolutions.len()],
            resolutions: resolutions.into_iter().filter(|_| config.enabled).collect(),
            topics: BTreeMap::new(),
        }
    }

    /// Writes the samples that are due, several topics at a time. Each topic comes with its first shard, the time of the counts,
    /// and the packed counts. Forgets other topics: another manager may have them now.
    pub(super) async fn note<'a>(
        &mut self,
        round: &mut Round,
        broker: &Broker,
        samples: impl Iterator<Item = (&'a AssignedShard, UnixMs, &'a str)>,
    ) {
        let mut before = std::mem::take(&mut self.topics);
        let (mut calls, mut written) = (Vec::new(), Vec::new());
        for (assigned, at, sample) in samples {
            let topic = assigned.topic.name();
            let new = || self.resolutions.iter().map(|(of, _)| Track::new(*of));
            let tracks = before.remove(topic).unwrap_or_else(|| new().collect());
            let Entry::Vacant(entry) = self.topics.entry(topic.clone()) else {
                continue;
            };
            let tracks = entry.insert(tracks);
            for (index, (track, of)) in tracks.iter_mut().zip(&self.resolutions).enumerate() {
                let due = track.due(at, sample);
                if !due.is_empty() {
                    written.push((topic, index));
                    calls.push((assigned, write(broker, assigned, *of, due)));
                }
            }
        }
        let noted = round.of_shards(calls).await;
        for ((topic, index), noted) in written.into_iter().zip(noted) {
            let track = self.topics.get_mut(topic);
            let track = track.and_then(|tracks| tracks.get_mut(index));
            if let (None, Some(track), Some((of, _))) = (noted, track, self.resolutions.get(index))
            {
                // The next sample is written in any case.
                *track = Track::new(*of);
            }
        }
    }

    /// Writes the sums of all topics once in each step. Costs nothing in other runs. Returns the age of the oldest counts
    /// in the snapshot if it was read.
    ///
    /// # Errors
    /// [`BrokerError`]. The next run tries again.
    pub(super) async fn note_total(
        &mut self,
        broker: &Broker,
        assignment: &Assignment,
    ) -> Result<Option<Duration>, BrokerError> {
        let now = broker.now();
        let due = self.totals.iter_mut().zip(&self.resolutions);
        let due = due.filter_map(|(noted, of)| {
            let time = of.0.start(now);
            (time != *noted && now.since(time) <= LATEST).then_some((noted, *of, time))
        });
        let due: Vec<_> = due.collect();
        if due.is_empty() {
            return Ok(None);
        }
        let snapshot = broker.snapshot().await?;
        let registered = assignment.topics.iter().map(|topic| topic.name().clone());
        let mut registered: BTreeSet<Topic> = registered.collect();
        let counted = snapshot.topics.iter().filter_map(|topic| {
            let counts = topic.counts.as_ref().ok()?;
            let is_counted = now.since(topic.as_of) <= LATEST && registered.remove(&topic.topic);
            is_counted.then_some((&counts.stats, topic.as_of))
        });
        let counted: Vec<_> = counted.collect();
        let unreadable = broker.unreadable_topics();
        let missing = registered.iter().map(Topic::as_str);
        let missing = missing.chain(unreadable.keys().map(String::as_str));
        let total = Sample::total(counted, missing);
        for (noted, of, time) in due {
            broker.note_total(of, time, &total).await?;
            *noted = time;
        }
        let known = |topic: &&CountedTopic| broker.known(&topic.topic).is_some();
        let oldest = snapshot
            .topics
            .iter()
            .filter(known)
            .map(|topic| topic.as_of)
            .min();
        Ok(Some(now.since(oldest.unwrap_or(now))))
    }
}

/// Writes samples of one topic, one after the other.
async fn write(
    broker: &Broker,
    assigned: &AssignedShard,
    of: (Resolution, u64),
    due: Vec<Due>,
) -> Result<(), BrokerError> {
    let first = (&*assigned.topic, assigned.shard);
    for due in due {
        broker
            .note_sample(first, of, due.time, &due.sample, due.again)
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    fn due(track: &mut Track, at: u64, sample: &str) -> Vec<(u64, String)> {
        let due = track.due(UnixMs::new(at), sample).into_iter();
        due.map(|due| (due.time.get() / MINUTE, due.sample))
            .collect()
    }

    fn expected(samples: &[(u64, &str)]) -> Vec<(u64, String)> {
        let owned = |(minute, sample): &(u64, &str)| (*minute, (*sample).to_owned());
        samples.iter().map(owned).collect()
    }

    #[test]
    fn an_unchanged_topic_is_written_once_more_and_then_again_when_it_changes() {
        let mut track = Track::new(Resolution::Minute);
        let mut step = |at, sample: &str, wanted: &[(u64, &str)]| {
            assert_eq!(
                due(&mut track, at, sample),
                expected(wanted),
                "{at} {sample}"
            );
        };
        let zero = &*Sample::default().pack();
        // Nothing has ever happened.
        step(10 * MINUTE, zero, &[]);
        step(11 * MINUTE + 5, zero, &[]);
        // Something happens within the minute: it began at zero.
        step(11 * MINUTE + 40_000, "a", &[(11, zero)]);
        step(11 * MINUTE + 45_000, "b", &[]);
        step(12 * MINUTE + 1, "c", &[(12, "c")]);
        step(12 * MINUTE + 6, "d", &[]);
        step(13 * MINUTE, "d", &[(13, "d")]);
        // Once more for the lateness, then no longer.
        step(14 * MINUTE, "d", &[(14, "d")]);
        step(15 * MINUTE, "d", &[]);
        step(20 * MINUTE, "d", &[]);
        // A change at the start of a minute: the last quiet one is noted first.
        step(21 * MINUTE, "e", &[(20, "d"), (21, "e")]);
    }

    #[test]
    fn counts_that_are_too_late_for_their_minute_are_left_out() {
        let mut track = Track::new(Resolution::Minute);
        assert_eq!(due(&mut track, 10 * MINUTE + 30_001, "a"), []);
        let at = 11 * MINUTE + 30_000;
        assert_eq!(due(&mut track, at, "a"), expected(&[(11, "a")]));
        let mut quarter = Track::new(Resolution::Quarter);
        assert_eq!(due(&mut quarter, 46 * MINUTE, "a"), []);
        let at = 60 * MINUTE + 4000;
        assert_eq!(due(&mut quarter, at, "a"), expected(&[(60, "a")]));
    }
}
