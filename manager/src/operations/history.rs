//! Shows the history of a topic, or of all topics together, for HTTP, the command line and the dashboard: rates, counts and
//! lateness over time.

use std::collections::BTreeMap;
use std::ops::Bound::Excluded;
use std::time::Duration;

use lisa_core::broker::{
    Broker, BrokerError, LATENESS_MS, Resolution, Sample, TopicHandle, TopicStats,
};
use lisa_core::time::{UnixMs, format_duration, millis};
use lisa_core::topic::Topic;
use lisa_service::config::HistoryConfig;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::newest_counts::{NewestCounts, newest_counts};
use super::round_step::round_step;
use super::topics::AllTopicsError;

/// The period that is shown by default.
pub(crate) const DEFAULT: Duration = Duration::from_hours(6);
const MINUTE: Duration = Duration::from_mins(1);
const QUARTER: Duration = Duration::from_mins(15);

/// The reason why there is no history of a period.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoHistory {
    #[error("must be 1m to {}", format_duration(*.0))]
    For(Duration),
    #[error("it is off; set manager.history.enabled")]
    Off,
}

/// The history of a topic, or of all topics together.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct HistoryView {
    /// The topic. Absent if it is the history of all topics together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) topic: Option<Topic>,
    /// The length of a step: a minute, or a quarter hour for a period longer than `manager.history.minutes`; a round multiple
    /// of it if there would be more steps than requested.
    pub(crate) step_ms: u64,
    /// The steps in order. The last one has not ended yet.
    pub(crate) steps: Vec<HistoryStep>,
}

/// A step of a history. What was not recorded is null. A step that was recorded in part has the rates of that part. In the
/// history of all topics together, the time between two samples counts as not recorded if a topic became unreadable, or
/// readable again, in between.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct HistoryStep {
    /// The start of the step.
    pub(crate) from: String,
    /// Messages accepted in this step.
    pub(crate) sent: Option<u64>,
    /// Deliveries acknowledged in this step.
    pub(crate) acked: Option<u64>,
    /// Deliveries that failed and were retried in this step.
    pub(crate) retried: Option<u64>,
    /// Messages moved to garbage (dead letters) in this step.
    pub(crate) discarded: Option<u64>,
    /// Half of the deliveries in this step were at most so late, in ms: the upper bound of a bucket. 60000 is also more. Null
    /// without deliveries.
    pub(crate) lateness_p50_ms: Option<u64>,
    /// 99 of 100 deliveries in this step were at most so late.
    pub(crate) lateness_p99_ms: Option<u64>,
    /// The age of the oldest message that was due at the end of the step and that no consumer held, in ms.
    pub(crate) oldest_due_ms: Option<u64>,
    /// The messages in each state at the end of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) messages: Option<MessageCounts>,
}

/// The messages in each state; those of a group counted once for each group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct MessageCounts {
    pub(crate) waiting: u64,
    /// Backlog and parked.
    pub(crate) held_back: u64,
    pub(crate) ready: u64,
    pub(crate) in_flight: u64,
    pub(crate) retry: u64,
    pub(crate) garbage: u64,
}

/// The period of a history and how it is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HistoryPeriod {
    within: Duration,
    resolution: Resolution,
    /// The number of samples in a step.
    group: u64,
}

impl HistoryPeriod {
    /// Creates a period, by default of six hours, with at most `most` steps.
    ///
    /// # Errors
    /// [`NoHistory`].
    pub(crate) fn new(
        within: Option<Duration>,
        config: HistoryConfig,
        most: u64,
    ) -> Result<Self, NoHistory> {
        if !config.enabled {
            return Err(NoHistory::Off);
        }
        let by_minute = MINUTE * u32::try_from(config.minutes).unwrap_or(u32::MAX);
        let longest = by_minute.max(QUARTER * u32::try_from(config.quarters).unwrap_or(u32::MAX));
        let within = within.unwrap_or(DEFAULT);
        if !(MINUTE..=longest).contains(&within) {
            return Err(NoHistory::For(longest));
        }
        let resolution = match within <= by_minute {
            true => Resolution::Minute,
            false => Resolution::Quarter,
        };
        let sample = resolution.step_ms();
        let group = match millis(within).div_ceil(sample).div_ceil(most) {
            // Longer round steps are whole minutes, or whole quarter hours.
            2.. => round_step(millis(within).div_ceil(most)) / sample,
            short => short,
        };
        Ok(Self {
            within,
            resolution,
            group,
        })
    }

    /// Reads the samples. For quarter hours, this includes the samples of minutes: they have what happened before the first
    /// quarter hour of a new relay, and after one that was missed.
    async fn samples<E>(
        self,
        minutes: impl Future<Output = Result<BTreeMap<UnixMs, Sample>, E>>,
        quarters: impl Future<Output = Result<BTreeMap<UnixMs, Sample>, E>>,
    ) -> Result<BTreeMap<UnixMs, Sample>, E> {
        if self.resolution == Resolution::Minute {
            return minutes.await;
        }
        let (mut all, quarters) = tokio::try_join!(minutes, quarters)?;
        all.extend(quarters);
        Ok(all)
    }

    fn step_ms(self) -> u64 {
        self.resolution.step_ms() * self.group
    }

    /// Returns the starts of the steps that have ended at `now`, and of the running one.
    fn ticks(self, now: UnixMs) -> Vec<UnixMs> {
        let step = self.step_ms();
        let last = now.get() / step * step;
        let count = millis(self.within).div_ceil(step);
        (0..=count)
            .rev()
            .map(|back| UnixMs::new(last.saturating_sub(back * step)))
            .collect()
    }
}

/// Reads the history of a topic up to `now`, when it had the counts `stats`. Costs one round trip, and a concurrent one
/// for quarter hours.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn history(
    broker: &Broker,
    topic: &TopicHandle,
    period: HistoryPeriod,
    (stats, now): (&TopicStats, UnixMs),
) -> Result<HistoryView, BrokerError> {
    let ticks = period.ticks(now);
    let since = since(&ticks);
    let samples = period.samples(
        broker.samples(topic, Resolution::Minute, since),
        broker.samples(topic, Resolution::Quarter, since),
    );
    let steps = steps(&ticks, samples.await?, (&Sample::new(stats, now), now));
    Ok(HistoryView {
        topic: Some(topic.name().clone()),
        step_ms: period.step_ms(),
        steps,
    })
}

/// Reads the history of all topics together up to now. `counts` are their newest counts. Costs one round trip for any number
/// of topics, and a concurrent one for quarter hours.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn history_of_all(
    broker: &Broker,
    period: HistoryPeriod,
    counts: &NewestCounts,
) -> Result<HistoryView, BrokerError> {
    let now = broker.now();
    let ticks = period.ticks(now);
    let since = since(&ticks);
    let samples = period.samples(
        broker.total_samples(Resolution::Minute, since),
        broker.total_samples(Resolution::Quarter, since),
    );
    let steps = steps(&ticks, samples.await?, (&counts.total(now), now));
    Ok(HistoryView {
        topic: None,
        step_ms: period.step_ms(),
        steps,
    })
}

fn since(ticks: &[UnixMs]) -> UnixMs {
    ticks.first().copied().unwrap_or_default()
}

/// Counts a topic and reads its history.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn read(
    broker: &Broker,
    topic: &TopicHandle,
    period: HistoryPeriod,
) -> Result<HistoryView, BrokerError> {
    let (stats, now) = broker.stats_at(topic).await?;
    history(broker, topic, period, (&stats, now)).await
}

/// Reads the newest counts of all topics and the history of all topics together.
///
/// # Errors
/// [`AllTopicsError`].
pub(crate) async fn read_of_all(
    broker: &Broker,
    period: HistoryPeriod,
    within: Duration,
) -> Result<HistoryView, AllTopicsError> {
    let counts = newest_counts(broker, within, |_| None).await?;
    Ok(history_of_all(broker, period, &counts).await?)
}

/// Returns the steps between the ticks, and the one from the last tick to now.
fn steps(
    ticks: &[UnixMs],
    mut samples: BTreeMap<UnixMs, Sample>,
    (newest, now): (&Sample, UnixMs),
) -> Vec<HistoryStep> {
    // Of a clock that was ahead.
    samples.split_off(&now);
    // Nothing is written while nothing happens: a sample stands until a later one, or the newest counts, that equal it.
    let at = |tick: UnixMs| {
        if let Some(sample) = samples.get(&tick) {
            return Some(sample);
        }
        let before = samples
            .range(..tick)
            .next_back()
            .map(|(_, sample)| sample)?;
        let after = samples
            .range(tick..)
            .next()
            .map_or(newest, |(_, sample)| sample);
        before.is_unchanged(after).then_some(before)
    };
    let ends = ticks.windows(2).map(|pair| {
        let (from, to) = (pair[0], pair[1]);
        let within = samples.range((Excluded(from), Excluded(to)));
        let within = within.map(|(_, sample)| sample);
        step((from, to), at(from), within, at(to))
    });
    let running = ticks.last().map(|last| {
        let within = samples.range((Excluded(*last), Excluded(now)));
        let within = within.map(|(_, sample)| sample);
        step((*last, now), at(*last), within, Some(newest))
    });
    ends.chain(running).collect()
}

/// Returns a step: the sum of what happened between its consecutive samples. So a long step is the sum of the short ones.
fn step<'s>(
    (from, to): (UnixMs, UnixMs),
    first: Option<&'s Sample>,
    within: impl Iterator<Item = &'s Sample>,
    last: Option<&'s Sample>,
) -> HistoryStep {
    let mut step = HistoryStep {
        from: from.to_string(),
        ..HistoryStep::default()
    };
    if let Some(last) = last {
        let age = |since: UnixMs| millis(to.since(since));
        step.oldest_due_ms = Some(last.due_since.map_or(0, age));
        step.messages = Some(MessageCounts {
            waiting: last.waiting,
            held_back: last.held_back,
            ready: last.ready,
            in_flight: last.in_flight,
            retry: last.retry,
            garbage: last.garbage,
        });
    }
    let samples: Vec<_> = first.into_iter().chain(within).chain(last).collect();
    let mut lateness = [0; LATENESS_MS.len() + 1];
    for pair in samples.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        // A counter that goes down belongs to a topic that was wiped and declared again.
        if !after.continues(before) {
            continue;
        }
        let add = |sum: &mut Option<u64>, count| *sum = Some(sum.unwrap_or(0) + count);
        add(&mut step.sent, after.sent - before.sent);
        add(&mut step.acked, after.acked - before.acked);
        add(&mut step.retried, after.retried - before.retried);
        add(&mut step.discarded, after.discarded - before.discarded);
        // The newest counts have no lateness.
        let since = after.lateness_since(before).into_iter().flatten();
        for (sum, count) in lateness.iter_mut().zip(since) {
            *sum += count;
        }
    }
    step.lateness_p50_ms = quantile(&lateness, 50);
    step.lateness_p99_ms = quantile(&lateness, 99);
    step
}

/// Returns the upper bound of the bucket that holds a quantile, in hundredths; `None` if there are no deliveries.
fn quantile(buckets: &[u64], hundredths: u64) -> Option<u64> {
    let rank = (buckets.iter().sum::<u64>() * hundredths).div_ceil(100);
    let mut seen = 0;
    let bucket = buckets.iter().position(|count| {
        seen += count;
        seen >= rank && rank > 0
    })?;
    LATENESS_MS.get(bucket).or(LATENESS_MS.last()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: HistoryConfig = HistoryConfig {
        enabled: true,
        minutes: 360,
        quarters: 672,
    };

    fn at(minute: u64) -> UnixMs {
        UnixMs::new(minute * 60_000)
    }

    fn sample(sent: u64) -> Sample {
        Sample {
            sent,
            ..Sample::default()
        }
    }

    /// Returns the number sent in each step of `minutes`, whose samples and newest count are given.
    fn sent(minutes: &[u64], samples: &[(u64, u64)], newest: u64) -> Vec<Option<u64>> {
        let ticks: Vec<_> = minutes.iter().copied().map(at).collect();
        let samples = samples
            .iter()
            .map(|(minute, sent)| (at(*minute), sample(*sent)));
        let now = UnixMs::new(at(minutes[minutes.len() - 1]).get() + 1000);
        let steps = steps(&ticks, samples.collect(), (&sample(newest), now));
        steps.into_iter().map(|step| step.sent).collect()
    }

    #[test]
    fn a_missed_minute_is_a_gap_and_a_quiet_one_is_none() {
        let minutes = [0, 1, 2, 3, 4, 5];
        assert_eq!(
            sent(&minutes, &[(0, 5), (1, 7), (3, 9), (4, 9), (5, 10)], 12),
            [Some(2), None, None, Some(0), Some(1), Some(2)]
        );
        // Quiet from minute 1 to 4.
        assert_eq!(
            sent(&minutes, &[(0, 5), (1, 7), (4, 7), (5, 10)], 10),
            [Some(2), Some(0), Some(0), Some(0), Some(3), Some(0)]
        );
        // Quiet up to now.
        assert_eq!(sent(&minutes, &[(1, 7)], 7)[1..], [Some(0); 5]);
        // Nobody wrote while something happened.
        assert_eq!(sent(&minutes, &[(0, 7)], 9), [None; 6]);
        assert_eq!(sent(&minutes, &[], 9), [None; 6]);
    }

    #[test]
    fn a_longer_step_is_known_if_its_ends_are() {
        assert_eq!(
            sent(&[0, 3, 6], &[(0, 5), (3, 9), (6, 9)], 9),
            [Some(4), Some(0), Some(0)]
        );
    }

    #[test]
    fn a_long_step_is_the_sum_of_the_short_ones_of_which_any_is_known() {
        let minutes: Vec<u64> = (0..13).collect();
        let fresh = [(5, 0), (6, 40), (7, 70), (9, 90), (10, 95), (12, 96)];
        let wiped = [(0, 5), (1, 9), (2, 2), (4, 8), (6, 1), (7, 3), (12, 4)];
        for samples in [&fresh[..], &wiped[..]] {
            for step in [2_u64, 4, 6] {
                let ticks: Vec<_> = (0..=12 / step).map(|n| n * step).collect();
                let coarse = sent(&ticks, samples, 99);
                // One count further than the last tick, where both have the running step.
                let fine = sent(&minutes, samples, 99);
                for (n, coarse) in coarse.iter().enumerate() {
                    let begin = usize::try_from(step).unwrap() * n;
                    let end = fine.len().min(begin + usize::try_from(step).unwrap());
                    let known: Vec<_> = fine[begin..end].iter().flatten().collect();
                    let sum: u64 = known.iter().copied().sum();
                    assert!(
                        coarse.is_some() >= !known.is_empty() && coarse.unwrap_or(0) >= sum,
                        "step {n} of {step} minutes: {coarse:?} of {fine:?}"
                    );
                }
            }
        }
        // A step whose start and end a new relay has not seen, and one that has not ended.
        assert_eq!(
            sent(&[0, 15], &[(5, 0), (6, 40), (14, 50)], 99)[0],
            Some(50)
        );
        let samples = [(at(5), sample(10)), (at(6), sample(40))];
        let running = steps(&[at(0)], samples.into(), (&sample(99), at(8)));
        assert_eq!(running[0].sent, Some(89));
        // What happened in a missed minute is part of a longer step.
        assert_eq!(sent(&[4, 12], &fresh, 99)[0], Some(96));
    }

    #[test]
    fn the_lateness_of_a_long_step_is_that_of_all_its_deliveries() {
        let late = |fast, slow| {
            let mut sample = sample(0);
            (sample.lateness[2], sample.lateness[9]) = (fast, slow);
            sample
        };
        let samples = [
            (at(5), late(1, 0)),
            (at(6), late(1, 7)),
            (at(7), late(9, 8)),
        ];
        let steps = steps(&[at(0)], samples.into(), (&sample(0), at(8)));
        let lateness = (steps[0].lateness_p50_ms, steps[0].lateness_p99_ms);
        assert_eq!(lateness, (Some(5), Some(1000)), "8 fast and 8 slow ones");
    }

    #[test]
    fn a_counter_that_went_down_is_a_gap() {
        assert_eq!(
            sent(&[0, 1, 2, 3], &[(0, 5), (1, 2), (2, 4), (3, 5)], 5),
            [None, Some(2), Some(1), Some(0)]
        );
        // It has grown beyond the old count within one step, of which the rest is known.
        assert_eq!(
            sent(&[0, 3], &[(0, 5), (1, 2), (3, 8)], 8),
            [Some(6), Some(0)]
        );
    }

    #[test]
    fn a_topic_that_comes_back_or_goes_is_a_gap_in_the_sums_and_a_new_one_is_none() {
        let total = |topics, missing, sent| Sample {
            topics,
            missing,
            ..sample(sent)
        };
        let ticks: Vec<_> = (0..6).map(at).collect();
        let samples = [
            total(2, 0, 10),
            total(3, 0, 12),
            total(2, 7, 11),
            total(2, 7, 13),
            total(3, 0, 20),
            total(2, 0, 21),
        ];
        let samples = (0..).map(at).zip(samples).collect();
        let steps = steps(&ticks, samples, (&total(2, 0, 22), at(6)));
        let sent: Vec<_> = steps.into_iter().map(|step| step.sent).collect();
        assert_eq!(sent, [Some(2), None, Some(2), None, None, Some(1)]);
    }

    #[test]
    fn the_age_of_the_oldest_message_grows_while_nothing_is_written() {
        let stuck = Sample {
            due_since: Some(at(1)),
            ready: 1,
            ..sample(1)
        };
        let ticks: Vec<_> = (1..5).map(at).collect();
        let samples = [(at(1), stuck.clone())].into();
        let steps = steps(&ticks, samples, (&stuck, at(5)));
        let ages = steps.iter().map(|step| step.oldest_due_ms);
        assert_eq!(
            ages.collect::<Vec<_>>(),
            [60_000, 120_000, 180_000, 240_000].map(Some)
        );
    }

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let mut buckets = [0; 16];
        assert_eq!(quantile(&buckets, 50), None);
        buckets[2] = 98;
        buckets[9] = 1;
        buckets[15] = 1;
        let of = |hundredths| quantile(&buckets, hundredths);
        assert_eq!(
            (of(50), of(99), of(100)),
            (Some(5), Some(1000), Some(60_000))
        );
    }

    #[test]
    fn a_period_is_bounded_by_what_is_kept() {
        let new = |minutes: u64, most| {
            HistoryPeriod::new(Some(Duration::from_mins(minutes)), CONFIG, most)
        };
        let week = Duration::from_hours(7 * 24);
        for bad in [0, 7 * 24 * 60 + 1] {
            assert_eq!(new(bad, 100), Err(NoHistory::For(week)));
        }
        let steps = |minutes, most| {
            let period = new(minutes, most).unwrap();
            (period.step_ms() / 60_000, period.ticks(at(100_000)).len())
        };
        assert_eq!(steps(1, 1000), (1, 2));
        assert_eq!(steps(360, 1000), (1, 361));
        assert_eq!(steps(360, 72), (5, 73));
        assert_eq!(steps(361, 1000), (15, 26));
        assert_eq!(steps(7 * 24 * 60, 84), (120, 85));
        // Round, not 4 and 105 minutes.
        assert_eq!(
            (steps(360, 96), steps(7 * 24 * 60, 96)),
            ((5, 73), (120, 85))
        );
        let off = HistoryConfig {
            enabled: false,
            ..CONFIG
        };
        assert_eq!(HistoryPeriod::new(None, off, 1), Err(NoHistory::Off));
    }
}
