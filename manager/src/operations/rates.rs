//! The present rates of topics: differences of their counters between the newest counts and earlier ones.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use lisa_core::broker::{Sample, TopicStats};
use lisa_core::time::UnixMs;
use lisa_core::topic::Topic;

use super::newest_counts::NewestCounts;

/// The topics whose counters are kept.
const MOST_TOPICS: usize = 10_000;

/// Numbers of one topic, or of all, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rate {
    /// Messages sent. One counts once for any number of groups.
    pub(crate) sent: f64,
    /// Deliveries acknowledged, in all groups.
    pub(crate) acked: f64,
    /// Deliveries that failed, in all groups: retried or moved to garbage (dead letters).
    pub(crate) failed: f64,
}

/// The counters of which there are rates.
type Counters = [u64; 3];

/// The counters of topics at their last counts.
#[derive(Debug)]
pub(crate) struct Rates {
    window: Duration,
    longest: Duration,
    topics: BTreeMap<Topic, VecDeque<(UnixMs, Counters)>>,
}

impl Rates {
    /// Creates rates over at least `window`, if there are as many counts, and at most `longest`.
    pub(crate) const fn new(window: Duration, longest: Duration) -> Self {
        Self {
            window,
            longest,
            topics: BTreeMap::new(),
        }
    }

    /// Takes new counts of all topics, and forgets the topics that are not among them.
    pub(crate) fn note_all(&mut self, counts: &NewestCounts) {
        self.topics
            .retain(|topic, _| counts.as_of.contains_key(topic));
        for stats in &counts.list.topics {
            if let Some(at) = counts.as_of.get(&stats.topic) {
                self.note(stats, *at);
            }
        }
    }

    /// Takes new counts of a topic, as of `at`. One that was not counted again since keeps its rates.
    pub(crate) fn note(&mut self, stats: &TopicStats, at: UnixMs) {
        let sample = Sample::new(stats, at);
        let counters = [sample.sent, sample.acked, sample.retried + sample.discarded];
        if self.topics.len() >= MOST_TOPICS && !self.topics.contains_key(&stats.topic) {
            self.topics.clear();
        }
        let counted = self.topics.entry(stats.topic.clone()).or_default();
        if let Some((last, before)) = counted.back() {
            if at <= *last {
                return;
            }
            // A counter that goes down belongs to a topic that was wiped and declared again.
            let is_other = before
                .iter()
                .zip(counters)
                .any(|(before, now)| now < *before);
            if is_other || at.since(*last) > self.longest {
                counted.clear();
            }
        }
        counted.push_back((at, counters));
        while counted.len() > 2 && at.since(counted[1].0) >= self.window {
            counted.pop_front();
        }
    }

    /// Returns the rates of a topic; `None` until it was counted twice.
    pub(crate) fn of(&self, topic: &Topic) -> Option<Rate> {
        let counted = self.topics.get(topic)?;
        let ((then, before), (now, after)) = (counted.front()?, counted.back()?);
        let seconds = now.since(*then).as_secs_f64();
        let rate = |counter: usize| (after[counter] - before[counter]) as f64 / seconds;
        (seconds > 0.0).then(|| Rate {
            sent: rate(0),
            acked: rate(1),
            failed: rate(2),
        })
    }

    /// Returns the sums of the topics of which rates are known; `None` if there are none.
    pub(crate) fn total<'t>(&self, topics: impl Iterator<Item = &'t Topic>) -> Option<Rate> {
        let known = topics.filter_map(|topic| self.of(topic));
        known.reduce(|sum, rate| Rate {
            sent: sum.sent + rate.sent,
            acked: sum.acked + rate.acked,
            failed: sum.failed + rate.failed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(topic: &str, [accepted, acked, exhausted]: [i64; 3]) -> TopicStats {
        let counters =
            serde_json::json!({ "accepted": accepted, "acked": acked, "exhausted": exhausted });
        let stats = serde_json::json!({
            "topic": topic, "paused": false, "class": "plain", "stored": 0, "waiting": 0, "tombstones": 0, "overdue_ms": 0,
            "groups": [], "counters": counters, "conservation_error": 0,
        });
        serde_json::from_value(stats).expect("statistics")
    }

    #[test]
    fn a_rate_is_per_second_over_the_window_and_unknown_until_the_second_count() {
        let seconds = Duration::from_secs;
        let mut rates = Rates::new(seconds(10), seconds(60));
        let topic: Topic = "t".parse().unwrap();
        let at = |second: u64| UnixMs::new(second * 1000);
        rates.note(&stats("t", [100, 0, 0]), at(100));
        assert_eq!(
            (rates.of(&topic), rates.total([&topic].into_iter())),
            (None, None)
        );
        rates.note(&stats("t", [150, 10, 5]), at(105));
        let expected = Rate {
            sent: 10.0,
            acked: 2.0,
            failed: 1.0,
        };
        assert_eq!(rates.of(&topic), Some(expected));
        // The same counts again change nothing.
        rates.note(&stats("t", [150, 10, 5]), at(105));
        assert_eq!(rates.total([&topic].into_iter()), Some(expected));
        for (second, sent) in [(110, 150), (115, 150), (120, 150)] {
            rates.note(&stats("t", [sent, 10, 5]), at(second));
        }
        assert_eq!(rates.of(&topic), Some(Rate::default()), "it is quiet");
        // Nobody looked for long.
        rates.note(&stats("t", [900, 10, 5]), at(500));
        assert_eq!(rates.of(&topic), None);
        rates.note(&stats("t", [905, 10, 5]), at(505));
        assert_eq!(rates.of(&topic).map(|rate| rate.sent), Some(1.0));
        // Wiped, and declared again.
        rates.note(&stats("t", [3, 0, 0]), at(510));
        assert_eq!(rates.of(&topic), None);
    }

    #[test]
    fn without_a_window_a_rate_is_that_between_the_last_two_counts() {
        let mut rates = Rates::new(Duration::ZERO, Duration::MAX);
        for (second, sent) in [(0, 0), (1, 50), (3, 60)] {
            rates.note(&stats("t", [sent, 0, 0]), UnixMs::new(second * 1000));
        }
        rates.note(&stats("u", [0, 0, 0]), UnixMs::new(0));
        rates.note(&stats("u", [2, 0, 0]), UnixMs::new(2000));
        let of = |topic: &str| rates.of(&topic.parse().unwrap()).map(|rate| rate.sent);
        assert_eq!((of("t"), of("u")), (Some(5.0), Some(1.0)));
        let topics: [Topic; 3] = ["t", "u", "v"].map(|topic| topic.parse().unwrap());
        let total = |topics: &[Topic]| rates.total(topics.iter()).map(|rate| rate.sent);
        assert_eq!(
            (total(&topics), total(&topics[..1])),
            (Some(6.0), Some(5.0))
        );
        assert_eq!(total(&topics[2..]), None);
    }
}
