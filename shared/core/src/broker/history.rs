//! The history of a topic: samples of its counters and counts, one a minute and one a quarter hour, in two bounded streams.
//!
//! Counters are absolute, so a reader subtracts two samples, and a missing one is a gap. Consumers add the lateness of their
//! deliveries to one hash of the topic, which becomes part of the samples.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::broker::execute::Repeat;
use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError, TopicHandle, TopicStats};
use crate::message::EntryId;
use crate::scripts::{NoteSample, Observe};
use crate::time::{UnixMs, millis};
use crate::topic::{Shard, Topic};

/// The upper bounds of the buckets of lateness, in ms. One more bucket is above them.
pub const LATENESS_MS: [u64; 15] = [
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000,
];
const BUCKETS: usize = LATENESS_MS.len() + 1;

/// The format of a sample. A reader that does not know it sees a gap.
const FORMAT: u64 = 1;

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
}

/// The counters and counts of a topic at one instant.
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
}

impl Sample {
    /// Returns the sample of a topic that was counted at `at`, without lateness.
    pub fn new(stats: &TopicStats, at: UnixMs) -> Self {
        let counter = |names: &[&str]| {
            let counts = names.iter().filter_map(|name| stats.counters.get(*name));
            u64::try_from(counts.sum::<i64>()).unwrap_or(0)
        };
        let mut sample = Self {
            sent: counter(&["accepted"]),
            acked: counter(&["acked"]),
            retried: counter(&["retried"]),
            discarded: counter(&["rejected", "exhausted", "lapsed"]),
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

    /// Returns true if nothing has happened between the two samples, apart from lateness that was reported later.
    pub fn is_unchanged(&self, other: &Self) -> bool {
        self.counts()[..10] == other.counts()[..10]
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
        let numbers = [FORMAT].into_iter().chain(self.counts());
        let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
        numbers.join(" ")
    }

    fn unpack(text: &str) -> Option<Self> {
        let numbers: Result<Vec<u64>, _> = text.split(' ').map(str::parse).collect();
        let numbers = numbers.ok()?;
        let (head, buckets) = numbers.split_at_checked(12)?;
        let [
            FORMAT,
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
        ] = *head
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
        let before = since.get().saturating_sub(1).to_string();
        let since = since.get().to_string();
        let commands = vec![
            command("XREVRANGE", key).arg(&[before.as_str(), "-", "COUNT", "1"]),
            command("XRANGE", key).arg(&[since.as_str(), "+"]),
        ];
        let server = self.server(topic, shard)?;
        let entries: Vec<Vec<(EntryId, BTreeMap<String, String>)>> =
            self.ask_all(&server, commands).await?;
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

    /// Adds the lateness of this process's deliveries since the last call to that of their topics. Costs one call for each
    /// topic with deliveries.
    ///
    /// # Errors
    /// The first [`BrokerError`]. What was certainly not added is part of the next call.
    pub async fn report_lateness(&self) -> Result<(), BrokerError> {
        let all: Vec<_> = self
            .inner
            .lateness
            .lock()
            .iter()
            .map(|(topic, counts)| (topic.clone(), counts.clone()))
            .collect();
        let mut reported = Ok(());
        for (topic, lateness) in all {
            let counts = lateness.take();
            if counts == [0; BUCKETS] {
                continue;
            }
            if let Err(error) = self.observe(&topic, &counts).await {
                if !error.maybe_applied() {
                    lateness.put_back(&counts);
                }
                reported = reported.and(Err(error));
            }
        }
        reported
    }

    async fn observe(&self, topic: &Topic, counts: &[u64]) -> Result<(), BrokerError> {
        let Some(handle) = self.known(topic) else {
            return Ok(());
        };
        let keys = handle.keys(handle.first_shard())?;
        let (limit, call) = (self.inner.call_timeout, Observe { counts });
        self.run_within(limit, Repeat::Unsafe, keys, &call)
            .await
            .map(|_| ())
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
        let later = text.replacen('1', "2", 1);
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
