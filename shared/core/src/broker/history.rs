//! The history of a topic: samples of its counters and counts, one a minute and one a quarter hour, in two bounded streams.
//! Two more streams have the sums of all topics.
//!
//! Counters are absolute, so a reader subtracts two samples, and a missing one is a gap. Consumers add the lateness of their
//! deliveries to one hash of the topic, and to one of all topics, which become part of the samples.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::broker::counters::COUNTERS;
use crate::broker::execute::Repeat;
use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError, TopicHandle, TopicStats};
use crate::crc16::crc16;
use crate::keys::Key;
use crate::message::EntryId;
use crate::redis::Server;
use crate::scripts::{NoteSample, NoteTotal, Observe};
use crate::time::{UnixMs, millis};
use crate::topic::{Shard, Topic};

/// The upper bounds of the buckets of lateness, in ms. One more bucket is above them.
pub const LATENESS_MS: [u64; 15] = [
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000,
];
const BUCKETS: usize = LATENESS_MS.len() + 1;

/// The formats of a sample: of one topic, and of the sums of all topics. A reader that does not know it sees a gap.
const FORMAT: u64 = 1;
const TOTAL_FORMAT: u64 = 2;

/// The time between two samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// A minute.
    Minute,
    /// A quarter hour.
    Quarter,
}

impl Resolution {
    /// Returns the time between two samples in ms.
    pub const fn step_ms(self) -> u64 {
        match self {
            Self::Minute => 60_000,
            Self::Quarter => 900_000,
        }
    }

    /// Returns the start of the minute or quarter hour at a time.
    pub const fn start(self, at: UnixMs) -> UnixMs {
        UnixMs::new(at.get() / self.step_ms() * self.step_ms())
    }
}

/// The counters and counts of a topic at one instant, or their sums over all topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Messages accepted since the topic was declared.
    pub sent: u64,
    /// Deliveries acknowledged.
    pub acked: u64,
    /// Deliveries that failed and were retried.
    pub retried: u64,
    /// Messages moved to garbage (dead letters).
    pub discarded: u64,
    /// Messages waiting for their due time.
    pub waiting: u64,
    /// Due messages that are held back: backlog and parked.
    pub held_back: u64,
    /// Messages ready for a consumer.
    pub ready: u64,
    /// Messages held by a consumer.
    pub in_flight: u64,
    /// Messages waiting for their next attempt.
    pub retry: u64,
    /// Messages in garbage (dead letters).
    pub garbage: u64,
    /// The due time of the oldest message that is due and that no consumer holds.
    pub due_since: Option<UnixMs>,
    /// Deliveries by bucket of lateness; see [`LATENESS_MS`].
    pub lateness: [u64; BUCKETS],
    /// In a sum of all topics: the number of topics in it.
    pub topics: u64,
    /// In a sum of all topics: a hash of the names of those that could not be counted, 0 if there are none.
    pub missing: u64,
}

impl Sample {
    /// Returns the sample of a topic that was counted at `at`, without lateness.
    pub fn new(stats: &TopicStats, at: UnixMs) -> Self {
        let counter = |name: &str| stats.counters.get(name).copied().unwrap_or(0);
        let discarded = COUNTERS.iter().filter(|counter| counter.is_garbage);
        let discarded: i64 = discarded.map(|of| counter(of.name)).sum();
        let number = |count| u64::try_from(count).unwrap_or(0);
        let mut sample = Self {
            sent: number(counter("accepted")),
            acked: number(counter("acked")),
            retried: number(counter("retried")),
            discarded: number(discarded),
            waiting: stats.waiting,
            due_since: (stats.overdue_ms > 0)
                .then(|| UnixMs::new(at.get().saturating_sub(stats.overdue_ms))),
            ..Self::default()
        };
        for group in &stats.groups {
            sample.held_back += group.backlog + group.parked;
            sample.ready += group.ready;
            sample.in_flight += group.in_flight;
            sample.retry += group.retry;
            sample.garbage += group.garbage;
        }
        sample
    }

    /// Returns the sums of all topics, each with the time at which it was counted, without lateness. The topics `missing`
    /// could not be counted.
    pub fn total<'a>(
        counted: impl IntoIterator<Item = (&'a TopicStats, UnixMs)>,
        missing: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let mut total = Self::default();
        for (stats, at) in counted {
            let sample = Self::new(stats, at);
            total.topics += 1;
            total.sent += sample.sent;
            total.acked += sample.acked;
            total.retried += sample.retried;
            total.discarded += sample.discarded;
            total.waiting += sample.waiting;
            total.held_back += sample.held_back;
            total.ready += sample.ready;
            total.in_flight += sample.in_flight;
            total.retry += sample.retry;
            total.garbage += sample.garbage;
            let due = total.due_since.into_iter().chain(sample.due_since);
            total.due_since = due.min();
        }
        let missing = missing.into_iter();
        let hashes = missing.map(|topic| 0x1_0000 + u64::from(crc16(topic.as_bytes())));
        total.missing = hashes.sum();
        total
    }

    /// Returns true if this sample has the same topics as an earlier one, and maybe new ones, and no counter is lower: the
    /// differences of the counters are what happened in between.
    pub fn continues(&self, before: &Self) -> bool {
        self.missing == before.missing
            && self.topics >= before.topics
            && self.counts()[..4]
                .iter()
                .zip(before.counts())
                .all(|(count, before)| *count >= before)
    }

    /// Returns true if nothing has happened between the two samples, apart from lateness that was reported later.
    pub fn is_unchanged(&self, other: &Self) -> bool {
        let of = |sample: &Self| (sample.topics, sample.missing);
        of(self) == of(other) && self.counts()[..10] == other.counts()[..10]
    }

    /// Returns the number of deliveries by lateness since an earlier sample; `None` if a counter is lower than it was.
    pub fn lateness_since(&self, before: &Self) -> Option<[u64; BUCKETS]> {
        let mut since = [0; BUCKETS];
        for (bucket, since) in since.iter_mut().enumerate() {
            *since = self.lateness[bucket].checked_sub(before.lateness[bucket])?;
        }
        Some(since)
    }

    fn counts(&self) -> [u64; 11] {
        [
            self.sent,
            self.acked,
            self.retried,
            self.discarded,
            self.waiting,
            self.held_back,
            self.ready,
            self.in_flight,
            self.retry,
            self.garbage,
            self.due_since.map_or(0, UnixMs::get),
        ]
    }

    /// Returns the text of the sample without lateness, which the script adds.
    pub fn pack(&self) -> String {
        let head = match (self.topics, self.missing) {
            (0, 0) => vec![FORMAT],
            (topics, missing) => vec![TOTAL_FORMAT, topics, missing],
        };
        let numbers = head.into_iter().chain(self.counts());
        let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
        numbers.join(" ")
    }

    fn unpack(text: &str) -> Option<Self> {
        let numbers: Result<Vec<u64>, _> = text.split(' ').map(str::parse).collect();
        let ((topics, missing), numbers) = match numbers.ok()?.as_slice() {
            [FORMAT, numbers @ ..] => ((0, 0), numbers.to_vec()),
            [TOTAL_FORMAT, topics, missing, numbers @ ..] => {
                ((*topics, *missing), numbers.to_vec())
            }
            _ => return None,
        };
        let (counts, buckets) = numbers.split_at_checked(11)?;
        let [
            sent,
            acked,
            retried,
            discarded,
            waiting,
            held_back,
            ready,
            in_flight,
            retry,
            garbage,
            due_since,
        ] = *counts
        else {
            return None;
        };
        let mut lateness = [0; BUCKETS];
        lateness.get_mut(..buckets.len())?.copy_from_slice(buckets);
        Some(Self {
            sent,
            acked,
            retried,
            discarded,
            waiting,
            held_back,
            ready,
            in_flight,
            retry,
            garbage,
            due_since: Some(UnixMs::new(due_since)).filter(|due| due.get() > 0),
            lateness,
            topics,
            missing,
        })
    }
}

/// The deliveries of one topic by lateness that this process has not reported yet.
#[derive(Debug, Default)]
pub struct LatenessCounts([AtomicU64; BUCKETS]);

impl LatenessCounts {
    /// Counts a delivery.
    pub fn observe(&self, lateness: Duration) {
        let lateness = millis(lateness);
        let bucket = LATENESS_MS.partition_point(|bound| *bound < lateness);
        self.0[bucket].fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self) -> [u64; BUCKETS] {
        std::array::from_fn(|bucket| self.0[bucket].swap(0, Ordering::Relaxed))
    }

    fn put_back(&self, counts: &[u64; BUCKETS]) {
        for (bucket, count) in self.0.iter().zip(counts) {
            bucket.fetch_add(*count, Ordering::Relaxed);
        }
    }
}

impl Broker {
    /// Appends a sample to the history of a topic and keeps the newest `keep`. `shard` is the first one of the topic, and
    /// `sample` the packed counts. Returns false without a change if there is a sample of that time or a later one, or if
    /// `again` is false and the sample equals the last one.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn note_sample(
        &self,
        (topic, shard): (&TopicHandle, Shard),
        (resolution, keep): (Resolution, u64),
        time: UnixMs,
        sample: &str,
        again: bool,
    ) -> Result<bool, BrokerError> {
        let call = NoteSample {
            is_quarter: resolution == Resolution::Quarter,
            time,
            keep,
            again,
            sample,
        };
        let noted = self.run(topic.keys(shard)?, &call).await?;
        // The script never refuses.
        Ok(noted.unwrap_or(false))
    }

    /// Returns the samples of a topic from `since` on, and the one before them, by time. Those that this version cannot read
    /// are left out. Reads the topic's first shard in one round trip.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn samples(
        &self,
        topic: &TopicHandle,
        resolution: Resolution,
        since: UnixMs,
    ) -> Result<BTreeMap<UnixMs, Sample>, BrokerError> {
        let shard = topic.first_shard();
        let keys = topic.keys(shard)?;
        let key = match resolution {
            Resolution::Minute => &keys.series,
            Resolution::Quarter => &keys.series15,
        };
        let server = self.server(topic, shard)?;
        self.read_samples(&server, key, since).await
    }

    /// Appends a sample of the sums of all topics to their history and keeps the newest `keep`. Returns false without a change
    /// if there is a sample of that time or a later one.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn note_total(
        &self,
        (resolution, keep): (Resolution, u64),
        time: UnixMs,
        total: &Sample,
    ) -> Result<bool, BrokerError> {
        let call = NoteTotal {
            is_quarter: resolution == Resolution::Quarter,
            time,
            keep,
            sample: &total.pack(),
        };
        self.run_on_registry(&call).await
    }

    /// Returns the samples of the sums of all topics from `since` on, and the one before them, by time, in one round trip.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn total_samples(
        &self,
        resolution: Resolution,
        since: UnixMs,
    ) -> Result<BTreeMap<UnixMs, Sample>, BrokerError> {
        let key = match resolution {
            Resolution::Minute => &self.inner.registry.series,
            Resolution::Quarter => &self.inner.registry.series15,
        };
        let server = self.inner.connection.at(key);
        self.read_samples(&server, key, since).await
    }

    async fn read_samples(
        &self,
        server: &Server<'_>,
        key: &Key,
        since: UnixMs,
    ) -> Result<BTreeMap<UnixMs, Sample>, BrokerError> {
        let before = since.get().saturating_sub(1).to_string();
        let since = since.get().to_string();
        let commands = vec![
            command("XREVRANGE", key).arg(&[before.as_str(), "-", "COUNT", "1"]),
            command("XRANGE", key).arg(&[since.as_str(), "+"]),
        ];
        let entries: Vec<Vec<(EntryId, BTreeMap<String, String>)>> =
            self.ask_all(server, commands).await?;
        let sample = |(id, fields): (EntryId, BTreeMap<String, String>)| {
            Some((UnixMs::new(id.ms()), Sample::unpack(fields.get("s")?)?))
        };
        Ok(entries.into_iter().flatten().filter_map(sample).collect())
    }

    /// Returns the counts to which the deliveries of a topic by this process are added.
    pub fn lateness_of(&self, topic: &Topic) -> Arc<LatenessCounts> {
        let mut lateness = self.inner.lateness.lock();
        lateness.entry(topic.clone()).or_default().clone()
    }

    /// Adds the lateness of this process's deliveries since the last call to that of their topics, and to that of all
    /// topics together. Costs one call for each topic with deliveries, and one more.
    ///
    /// # Errors
    /// The first [`BrokerError`]. What was certainly not added to a topic is part of the next call.
    pub async fn report_lateness(&self) -> Result<(), BrokerError> {
        let all: Vec<_> = self
            .inner
            .lateness
            .lock()
            .iter()
            .map(|(topic, counts)| (topic.clone(), counts.clone()))
            .collect();
        let mut reported = Ok(());
        let mut total = [0; BUCKETS];
        for (topic, lateness) in all {
            let counts = lateness.take();
            if counts == [0; BUCKETS] {
                continue;
            }
            match self.observe(&topic, &counts).await {
                // The shard is gone.
                Ok(0) => {}
                Ok(_) => {
                    for (total, count) in total.iter_mut().zip(counts) {
                        *total += count;
                    }
                }
                Err(error) => {
                    if !error.maybe_applied() {
                        lateness.put_back(&counts);
                    }
                    reported = reported.and(Err(error));
                }
            }
        }
        reported.and(self.observe_total(&total).await)
    }

    async fn observe_total(&self, counts: &[u64]) -> Result<(), BrokerError> {
        let key = &self.inner.registry.observed;
        let counts = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        let add = |(bucket, count): (usize, &u64)| command("HINCRBY", key).arg(bucket).arg(*count);
        let commands: Vec<_> = counts.map(add).collect();
        if !commands.is_empty() {
            let server = self.inner.connection.at(key);
            let _: Vec<u64> = self.ask_all(&server, commands).await?;
        }
        Ok(())
    }

    /// Returns the number of buckets that were changed.
    async fn observe(&self, topic: &Topic, counts: &[u64]) -> Result<u64, BrokerError> {
        let Some(handle) = self.known(topic) else {
            return Ok(0);
        };
        let keys = handle.keys(handle.first_shard())?;
        let (limit, call) = (self.inner.call_timeout, Observe { counts });
        let observed = self.run_within(limit, Repeat::Unsafe, keys, &call).await?;
        // The script never refuses.
        Ok(observed.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_read_as_it_was_packed() {
        let mut sample = Sample {
            sent: 1,
            acked: 2,
            retried: 3,
            discarded: 4,
            waiting: 5,
            held_back: 6,
            ready: 7,
            in_flight: 8,
            retry: 9,
            garbage: 10,
            due_since: Some(UnixMs::new(11)),
            ..Sample::default()
        };
        assert_eq!(Sample::unpack(&sample.pack()), Some(sample.clone()));
        sample.lateness[2] = 4;
        let text = format!("{} 0 0 4", sample.pack());
        assert_eq!(Sample::unpack(&text), Some(sample.clone()));
        let total = Sample {
            topics: 12,
            missing: 13,
            ..sample
        };
        assert_eq!(
            Sample::unpack(&format!("{} 0 0 4", total.pack())),
            Some(total)
        );
        let later = text.replacen('1', "3", 1);
        for bad in [
            "",
            "1 2",
            "x",
            later.as_str(),
            &format!("{text} {}", "0 ".repeat(14)),
        ] {
            assert_eq!(Sample::unpack(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_delivery_counts_in_the_first_bucket_that_holds_it() {
        let counts = LatenessCounts::default();
        for ms in [0, 1, 2, 3, 60_000, 60_001] {
            counts.observe(Duration::from_millis(ms));
        }
        let taken = counts.take();
        assert_eq!((taken[0], taken[1], taken[2]), (2, 1, 1));
        assert_eq!((taken[14], taken[15]), (1, 1));
        counts.put_back(&taken);
        assert_eq!((counts.take(), counts.take()), (taken, [0; BUCKETS]));
    }
}
