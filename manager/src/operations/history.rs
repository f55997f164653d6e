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
use lisa_service::cron::TimeZone;
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

    /// Returns true if the starts of the steps depend on the time zone.
    pub(crate) fn has_zone(self) -> bool {
        self.step_ms() > Resolution::Quarter.step_ms()
    }

    /// Returns the starts of the steps that have ended at `now`, and of the running one: round times of the zone's clocks.
    fn ticks(self, now: UnixMs, zone: &TimeZone) -> Vec<UnixMs> {
        let step = self.step_ms();
        let count = millis(self.within).div_ceil(step);
        let before = UnixMs::new(now.get().saturating_sub((count + 1) * step));
        let next = |after: &UnixMs| Some(zone.next_multiple(step, *after));
        let ticks = std::iter::successors(next(&before), next);
        ticks.take_while(|tick| *tick <= now).collect()
    }
}

/// Reads the history of a topic up to `now`, when it had the counts `stats`. Long steps begin at round times of the zone. Costs
/// one round trip, and a concurrent one for quarter hours.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn history(
    broker: &Broker,
    topic: &TopicHandle,
    (period, zone): (HistoryPeriod, &TimeZone),
    (stats, now): (&TopicStats, UnixMs),
) -> Result<HistoryView, BrokerError> {
    let ticks = period.ticks(now, zone);
    let since = since(&ticks);
    let samples = period.samples(
        broker.samples(topic, Resolution::Minute, since),
        broker.samples(topic, Resolution::Quarter, since),
    );
    let newest = Sample::new(stats, now);
    let steps = steps_since(topic.created_at(), &ticks, samples.await?, (&newest, now));
    Ok(HistoryView {
        topic: Some(topic.name().clone()),
        step_ms: period.step_ms(),
        steps,
    })
}

/// Reads the history of all topics together up to now. `counts` are their newest counts. Long steps begin at round times of the
/// zone. Costs one round trip for any number of topics, and a concurrent one for quarter hours.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn history_of_all(
    broker: &Broker,
    (period, zone): (HistoryPeriod, &TimeZone),
    counts: &NewestCounts,
) -> Result<HistoryView, BrokerError> {
    let now = broker.now();
    let ticks = period.ticks(now, zone);
    let since = since(&ticks);
    let samples = period.samples(
        broker.total_samples(Resolution::Minute, since),
        broker.total_samples(Resolution::Quarter, since),
    );
    let created = counts.list.topics.iter().map(|stats| {
        let topic = broker.known(&stats.topic)?;
        topic.created_at()
    });
    let created: Option<Vec<UnixMs>> = created.collect();
    let first = created.into_iter().flatten().min();
    let newest = counts.total(now);
    let steps = steps_since(first, &ticks, samples.await?, (&newest, now));
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
    history(broker, topic, (period, &TimeZone::UTC), (&stats, now)).await
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
    Ok(history_of_all(broker, (period, &TimeZone::UTC), &counts).await?)
}

/// Returns the steps since the first topic was created. They begin with zeros for that minute: the samples of the managers begin
/// later, and may include its first messages.
fn steps_since(
    created: Option<UnixMs>,
    ticks: &[UnixMs],
    mut samples: BTreeMap<UnixMs, Sample>,
    newest: (&Sample, UnixMs),
) -> Vec<HistoryStep> {
    let begin = created.map(|at| Resolution::Minute.start(at));
    let begin = begin.filter(|begin| samples.range(..*begin).next().is_none());
    if let Some(begin) = begin {
        samples.insert(begin, Sample::default());
    }
    let mut steps = steps(ticks, samples, newest);
    // The zeros are not a sample of the step that ends with them.
    let ends = ticks.iter().skip(1);
    for (step, _) in { steps.iter_mut().zip(ends) }.filter(|(_, end)| Some(**end) <= begin) {
        *step = HistoryStep {
            from: std::mem::take(&mut step.from),
            ..HistoryStep::default()
        };
    }
    steps
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
mod tests;
