//! Forecasts what becomes due when, for HTTP, the command line and the dashboard.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use lisa_core::broker::{Broker, BrokerError, CONCURRENT_READS, DueBefore, Forecast, TopicHandle};
use lisa_core::time::{LONGEST_DELAY, UnixMs, format_duration, millis};
use lisa_core::topic::{ScheduleName, Topic};
use lisa_service::cron::TimeZone;
use lisa_service::recurring::RecurringMessage;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::round_step::round_step;
use super::schedules::Schedules;
use super::topics::{DamagedTopic, registered, unreadable};

/// The number of steps, if up to [`FEW_SHARDS`] shards are counted.
const STEPS: u64 = 60;
/// The number of steps, if more shards are counted.
const STEPS_OF_MANY: u64 = 23;
/// The number of shards for which all steps are counted.
const FEW_SHARDS: usize = 16;
/// The number of shards, and of topics, in a forecast of all topics.
const SHARDS: usize = 64;
/// The number of times of one schedule.
const TIMES_OF_ONE: usize = 50;
/// The number of times of all schedules.
const TIMES: usize = 200;
/// The shortest step.
const SHORTEST_STEP: Duration = Duration::from_secs(1);
/// The length of the steps among which the peak is found, in ms.
const PEAK_STEP: u64 = 60_000;
/// The most steps that are split to find the peak.
const SPLITS: usize = 4;

/// The period that a forecast covers, and the length of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    within: Duration,
    step: Duration,
}

impl Default for Period {
    fn default() -> Self {
        Self {
            within: Duration::from_hours(24),
            step: Duration::from_mins(30),
        }
    }
}

/// The reason why a period and a step are not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidPeriod {
    #[error("must be 1 s to {}", format_duration(LONGEST_DELAY))]
    For,
    #[error("must be 1 s to the whole period")]
    Step,
}

impl Period {
    /// Creates a period; by default 24 hours in steps of 30 minutes, or a shorter period in one step.
    ///
    /// # Errors
    /// [`InvalidPeriod`].
    pub(crate) fn new(
        within: Option<Duration>,
        step: Option<Duration>,
    ) -> Result<Self, InvalidPeriod> {
        let all = Self::default();
        let within = within.unwrap_or(all.within);
        if !(SHORTEST_STEP..=LONGEST_DELAY).contains(&within) {
            return Err(InvalidPeriod::For);
        }
        let step = step.unwrap_or(all.step.min(within));
        if !(SHORTEST_STEP..=within).contains(&step) {
            return Err(InvalidPeriod::Step);
        }
        Ok(Self { within, step })
    }

    /// Returns the length of a step in ms. If there would be more than `most` steps, they are longer than requested, and of a
    /// round length.
    fn step_ms(self, most: u64) -> u64 {
        let (within, step) = (millis(self.within), millis(self.step));
        match within.div_ceil(step) <= most {
            true => step,
            false => round_step(within.div_ceil(most)),
        }
    }
}

/// Returns the boundaries of the steps between two instants, which are included. With a zone, steps end at round local times.
fn boundaries(from: UnixMs, to: UnixMs, step: u64, zone: Option<&TimeZone>) -> Vec<UnixMs> {
    let next = |at: &UnixMs| {
        Some(match zone {
            Some(zone) => zone.next_multiple(step, *at),
            None => UnixMs::new(at.get() + step),
        })
    };
    let ends = std::iter::successors(Some(from), next).take_while(|at| *at < to);
    ends.chain([to]).collect()
}

/// The number of messages that become due in each step from now on.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ForecastView {
    /// The start of the first step: the time of Redis.
    pub(crate) from: String,
    /// The length of a step; the last one may be shorter. It is longer than requested, and round, if there would be more than
    /// 60 steps, or more than 23 for more than 16 shards.
    pub(crate) step_ms: u64,
    /// The steps, in order.
    pub(crate) steps: Vec<Step>,
    /// The sum of all topics.
    pub(crate) total: DueView,
    /// The minute in which the most messages become due, or the step if steps are shorter. Absent if no message becomes due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peak: Option<Peak>,
    /// The topics that have messages, those with the most first.
    pub(crate) topics: Vec<TopicForecast>,
    /// The number of topics that are not counted, because others have more messages.
    pub(crate) other_topics: usize,
    /// The number of messages that those had when a manager counted them last.
    pub(crate) other_messages: u64,
    /// The topics that cannot be counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) damaged: Vec<DamagedTopic>,
    /// The next times of the schedules, in order: up to 50 of a schedule, and 200 together. Their messages are sent 5 s ahead, so they are not among those that wait.
    pub(crate) recurring: Vec<NextTime>,
    /// True if there are more times of schedules in the period.
    pub(crate) has_more_recurring: bool,
}

/// A step of a forecast.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Step {
    pub(crate) from: String,
    /// The end, exclusive.
    pub(crate) to: String,
}

/// The time in which the most messages become due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Peak {
    pub(crate) from: String,
    /// The end, exclusive.
    pub(crate) to: String,
    /// The number of messages.
    pub(crate) messages: u64,
    /// True if another time may have more messages: too many steps were busy to split them all, or a topic could not be counted.
    pub(crate) is_lower_bound: bool,
}

/// The messages of one topic.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct TopicForecast {
    pub(crate) topic: Topic,
    #[serde(flatten)]
    pub(crate) due: DueView,
    /// True if only some of its shards were counted, and the others estimated from those.
    pub(crate) is_estimate: bool,
    /// True if it is paused: its messages become due, but are not delivered until it is resumed. They are part of the total.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_paused: bool,
}

/// Numbers of messages by their due times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct DueView {
    /// Due before the first step, and not yet moved to a stream.
    pub(crate) overdue: u64,
    /// Waiting messages that become due in each step. One counts once for any number of groups.
    pub(crate) waiting: Vec<u64>,
    /// Messages whose next attempt is due in each step. One counts once for each group.
    pub(crate) retry: Vec<u64>,
    /// Due after the last step.
    pub(crate) later: u64,
}

/// A time at which a schedule sends a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct NextTime {
    pub(crate) schedule: ScheduleName,
    pub(crate) topic: Topic,
    pub(crate) at: String,
}

impl ForecastView {
    /// Returns true if a schedule of which so many times are listed may have more in the period.
    pub(crate) fn may_have_more(&self, times: u64) -> bool {
        self.has_more_recurring && (self.recurring.len() >= TIMES || times >= TIMES_OF_ONE as u64)
    }

    /// Returns the number of paused topics, and of their messages that are due or become due in the steps.
    pub(crate) fn paused(&self) -> (u64, u64) {
        let paused = self.topics.iter().filter(|topic| topic.is_paused);
        paused.fold((0, 0), |(topics, messages), topic| {
            let due = topic.due.overdue + topic.due.in_steps().sum::<u64>();
            (topics + 1, messages + due)
        })
    }
}

impl DueView {
    fn new(forecast: &Forecast) -> Self {
        let mut view = Self::default();
        let (overdue, waiting, later) = steps(&forecast.waiting);
        view.overdue = overdue;
        view.waiting = waiting;
        view.later = later;
        view.retry = vec![0; view.waiting.len()];
        for due in forecast.retry.values() {
            let (overdue, retry, later) = steps(due);
            view.overdue += overdue;
            view.later += later;
            for (sum, count) in view.retry.iter_mut().zip(retry) {
                *sum += count;
            }
        }
        view
    }

    fn add(&mut self, other: &Self) {
        self.overdue += other.overdue;
        self.later += other.later;
        let sums = self.waiting.iter_mut().zip(&other.waiting);
        let sums = sums.chain(self.retry.iter_mut().zip(&other.retry));
        for (sum, count) in sums {
            *sum += count;
        }
    }

    /// Returns the number of messages in each step.
    pub(crate) fn in_steps(&self) -> impl Iterator<Item = u64> {
        let steps = self.waiting.iter().zip(&self.retry);
        steps.map(|(waiting, retry)| waiting + retry)
    }

    fn is_empty(&self) -> bool {
        self.overdue + self.later + self.in_steps().sum::<u64>() == 0
    }
}

/// Returns the number of messages before the first boundary, in each step, and after the last. The counts are not of one
/// moment, so a later one may be lower.
fn steps(due: &DueBefore) -> (u64, Vec<u64>, u64) {
    let step = |pair: &[u64]| pair[1].saturating_sub(pair[0]);
    let (first, last) = (due.counts.first(), due.counts.last());
    (
        first.copied().unwrap_or(0),
        due.counts.windows(2).map(step).collect(),
        due.total.saturating_sub(last.copied().unwrap_or(0)),
    )
}

/// Forecasts one topic, or those of all topics that have the most messages, on up to 64 shards. Reads the snapshot to find
/// those. The first step starts now. With a zone, the others start at round local times, so the first one may be shorter.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn forecast(
    broker: &Broker,
    topic: Option<Arc<TopicHandle>>,
    period: Period,
    zone: Option<&TimeZone>,
    schedules: Schedules<'_>,
) -> Result<ForecastView, BrokerError> {
    let only = topic.as_ref().map(|topic| topic.name().clone());
    let (topics, others, other_messages) = match topic {
        Some(topic) => (vec![topic], 0, 0),
        None => with_the_most(broker).await?,
    };
    let shards: usize = topics.iter().map(|topic| topic.shards().len()).sum();
    let most = match shards <= FEW_SHARDS {
        true => STEPS,
        false => STEPS_OF_MANY,
    };
    let now = broker.now();
    let until = now.plus(period.within);
    // A first step that is cut short is one more.
    let step_ms = period.step_ms(most - u64::from(zone.is_some()));
    let boundaries = boundaries(now, until, step_ms, zone);
    let counts = count(broker, &topics, &boundaries).await;
    let none = vec![0; boundaries.len() - 1];
    let mut view = ForecastView {
        from: now.to_string(),
        step_ms,
        steps: boundaries
            .windows(2)
            .map(|ends| Step {
                from: ends[0].to_string(),
                to: ends[1].to_string(),
            })
            .collect(),
        total: DueView {
            waiting: none.clone(),
            retry: none,
            ..DueView::default()
        },
        peak: None,
        topics: Vec::new(),
        other_topics: others,
        other_messages,
        damaged: Vec::new(),
        recurring: Vec::new(),
        has_more_recurring: false,
    };
    let mut damaged = match only {
        None => unreadable(broker),
        Some(_) => BTreeMap::new(),
    };
    for (topic, counted) in topics.iter().zip(counts) {
        match counted {
            Ok(forecast) => {
                // Counted with the settings that this process knows.
                damaged.remove(topic.name().as_str());
                let due = DueView::new(&forecast);
                view.total.add(&due);
                if only.is_some() || !due.is_empty() {
                    view.topics.push(TopicForecast {
                        topic: topic.name().clone(),
                        due,
                        is_estimate: forecast.is_estimate,
                        is_paused: forecast.is_paused,
                    });
                }
            }
            Err(error) if only.is_none() && error.is_of_one_topic() => {
                damaged.insert(topic.name().to_string(), error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    view.damaged = DamagedTopic::all(damaged);
    let steps = boundaries.windows(2).zip(view.total.in_steps());
    let steps = steps.map(|(ends, due)| (due, Reverse(ends[0]), ends[1]));
    view.peak = peak(broker, &topics, steps.collect(), most, zone).await;
    let (upcoming, are_more) = schedules.upcoming(until).await?;
    let of_topic = upcoming
        .iter()
        .filter(|(_, schedule)| only.as_ref().is_none_or(|only| schedule.topic == *only));
    let (recurring, has_more) = next_times(of_topic, now, until);
    view.recurring = recurring;
    view.has_more_recurring = has_more || are_more;
    Ok(view)
}

/// Counts the messages of each topic that are due before each boundary.
async fn count(
    broker: &Broker,
    topics: &[Arc<TopicHandle>],
    boundaries: &[UnixMs],
) -> Vec<Result<Forecast, BrokerError>> {
    let counts: Vec<_> = topics
        .iter()
        .map(|topic| broker.forecast(topic, boundaries))
        .collect();
    let counts = stream::iter(counts).buffered(CONCURRENT_READS);
    counts.collect().await
}

/// Finds the busiest minute, by splitting the busiest step until it is a minute. No part of a step has more messages than the
/// step, so no other minute has more. Each step comes with its number of messages, its start and its end.
async fn peak(
    broker: &Broker,
    topics: &[Arc<TopicHandle>],
    mut steps: BinaryHeap<(u64, Reverse<UnixMs>, UnixMs)>,
    most: u64,
    zone: Option<&TimeZone>,
) -> Option<Peak> {
    let peak =
        |(messages, Reverse(from), to): (u64, Reverse<UnixMs>, UnixMs), is_lower_bound| Peak {
            from: from.to_string(),
            to: to.to_string(),
            messages,
            is_lower_bound,
        };
    let mut is_partial = false;
    let length = |(_, Reverse(from), to): &(u64, Reverse<UnixMs>, UnixMs)| millis(to.since(*from));
    for _ in 0..SPLITS {
        let busiest = steps.pop().filter(|(messages, ..)| *messages > 0)?;
        if length(&busiest) <= PEAK_STEP {
            return Some(peak(busiest, is_partial));
        }
        let (_, Reverse(from), to) = busiest;
        let step = round_step(length(&busiest).div_ceil(most - 1).max(PEAK_STEP));
        let ends = boundaries(from, to, step, zone);
        let mut sums = vec![0; ends.len() - 1];
        let counts = count(broker, topics, &ends).await;
        is_partial |= counts.iter().any(Result::is_err);
        for forecast in counts.iter().flatten() {
            let due = DueView::new(forecast);
            for (sum, due) in sums.iter_mut().zip(due.in_steps()) {
                *sum += due;
            }
        }
        let parts = ends.windows(2).zip(sums);
        steps.extend(parts.map(|(ends, due)| (due, Reverse(ends[0]), ends[1])));
    }
    let is_exact = |busiest: &(u64, Reverse<UnixMs>, UnixMs)| length(busiest) <= PEAK_STEP;
    match steps.peek().is_some_and(is_exact) {
        true => steps.pop().map(|busiest| peak(busiest, is_partial)),
        // The busiest of the shortest ones.
        false => {
            let shortest = steps.iter().map(length).min()?.max(PEAK_STEP);
            let steps = steps.into_iter().filter(|step| length(step) <= shortest);
            steps.max().map(|busiest| peak(busiest, true))
        }
    }
}

/// Returns the topics with the most waiting messages, up to 64 shards of them; and the number of other topics and of their
/// messages.
async fn with_the_most(
    broker: &Broker,
) -> Result<(Vec<Arc<TopicHandle>>, usize, u64), BrokerError> {
    let (topics, snapshot) = tokio::try_join!(registered(broker), broker.snapshot())?;
    let counted = snapshot.topics.into_iter().filter_map(|counted| {
        let stats = counted.counts.ok()?.stats;
        let retry = stats.groups.iter().map(|group| group.retry).sum::<u64>();
        Some((counted.topic, stats.waiting + retry))
    });
    let counted: BTreeMap<Topic, u64> = counted.collect();
    // One that no manager has counted yet comes first.
    let messages =
        |topic: &Arc<TopicHandle>| counted.get(topic.name()).copied().unwrap_or(u64::MAX);
    let mut topics: Vec<_> = topics
        .into_iter()
        .map(|topic| (messages(&topic), topic))
        .filter(|(messages, _)| *messages > 0)
        .collect();
    topics.sort_by_key(|(messages, _)| std::cmp::Reverse(*messages));
    let shards = topics.iter().scan(0, |sum, (_, topic)| {
        *sum += topic.shards().len();
        Some(*sum)
    });
    let count = shards.take_while(|sum| *sum <= SHARDS).count();
    // One topic alone may have more.
    let count = count.max(1).min(topics.len());
    let others = topics.split_off(count);
    let left = others.iter().map(|(messages, _)| *messages);
    let left = left.filter(|messages| *messages < u64::MAX).sum();
    let topics = topics.into_iter().map(|(_, topic)| topic).collect();
    Ok((topics, others.len(), left))
}

/// Returns the times of schedules after `now` and before `until`, in order, and whether there are more.
pub(super) fn next_times<'s>(
    schedules: impl Iterator<Item = (&'s ScheduleName, &'s RecurringMessage)>,
    now: UnixMs,
    until: UnixMs,
) -> (Vec<NextTime>, bool) {
    let (mut times, mut has_more) = (Vec::new(), false);
    for (name, schedule) in schedules {
        let next = |after: UnixMs| schedule.cron.next(&schedule.time_zone, after);
        let all = std::iter::successors(next(now), |at| next(*at));
        let mut all = all.take_while(|at| *at < until);
        times.extend(
            all.by_ref()
                .take(TIMES_OF_ONE)
                .map(|at| (at, name, schedule)),
        );
        has_more |= all.next().is_some();
    }
    times.sort_by_key(|(at, name, _)| (*at, *name));
    has_more |= times.len() > TIMES;
    times.truncate(TIMES);
    let times = times.into_iter().map(|(at, name, schedule)| NextTime {
        schedule: name.clone(),
        topic: schedule.topic.clone(),
        at: at.to_string(),
    });
    (times.collect(), has_more)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn ends(period: Period, most: u64) -> Vec<u64> {
        let now = UnixMs::new(1000);
        let ends = boundaries(now, now.plus(period.within), period.step_ms(most), None);
        ends.iter().map(|end| end.get() - 1000).collect()
    }

    #[test]
    fn in_a_zone_steps_end_at_round_times_of_its_clocks() {
        let at = |text: &str| text.parse::<UnixMs>().unwrap();
        let zone = |name: &str| name.parse::<TimeZone>().unwrap();
        let ends = |zone: &TimeZone, from: &str, hours, step: Duration| -> Vec<String> {
            let from = at(from);
            let to = from.plus(Duration::from_hours(hours));
            let ends = boundaries(from, to, millis(step), Some(zone));
            ends.iter().map(ToString::to_string).collect()
        };
        let now = "2026-11-27T10:17:42.123Z";
        assert_eq!(
            ends(&TimeZone::UTC, now, 1, Duration::from_mins(30)),
            [
                now,
                "2026-11-27T10:30:00.000Z",
                "2026-11-27T11:00:00.000Z",
                "2026-11-27T11:17:42.123Z"
            ]
        );
        // 16:02 there, 5:45 ahead.
        assert_eq!(
            ends(&zone("Asia/Kathmandu"), now, 5, 3 * HOUR)[1..3],
            ["2026-11-27T12:15:00.000Z", "2026-11-27T15:15:00.000Z"]
        );
        // Each midnight and noon, also after the clocks go back.
        assert_eq!(
            ends(
                &zone("Europe/Berlin"),
                "2026-10-24T20:00:00Z",
                27,
                12 * HOUR
            )[1..4],
            [
                "2026-10-24T22:00:00.000Z",
                "2026-10-25T11:00:00.000Z",
                "2026-10-25T23:00:00.000Z"
            ]
        );
    }

    #[test]
    fn the_steps_fill_the_period_and_are_longer_if_there_would_be_too_many() {
        let period = |within, step| {
            let seconds = Duration::from_secs;
            Period::new(Some(seconds(within)), Some(seconds(step))).unwrap()
        };
        assert_eq!(ends(period(10, 5), 60), [0, 5000, 10_000]);
        assert_eq!(ends(period(10, 4), 60), [0, 4000, 8000, 10_000]);
        assert_eq!(ends(period(10, 1), 2), [0, 5000, 10_000]);
        assert_eq!(ends(period(10, 1), 3), [0, 5000, 10_000]);
        assert_eq!(ends(period(10, 3), 9), [0, 3000, 6000, 9000, 10_000]);
        assert_eq!(ends(period(3600, 1), STEPS).len(), 61);
        assert_eq!(ends(Period::default(), STEPS).len(), 49);
        // Round, not 1h2m36s522ms.
        assert_eq!(ends(Period::default(), STEPS_OF_MANY)[1], 7_200_000);
    }

    #[test]
    fn a_period_has_at_least_one_step_of_a_second() {
        let of = |within, step| Period::new(within, step);
        assert_eq!(of(None, None), Ok(Period::default()));
        assert_eq!(
            of(Some(Duration::from_mins(10)), None).unwrap().step,
            Duration::from_mins(10)
        );
        for bad in [Duration::ZERO, LONGEST_DELAY + HOUR] {
            assert_eq!(of(Some(bad), None), Err(InvalidPeriod::For));
        }
        for bad in [Duration::from_millis(999), 2 * HOUR] {
            assert_eq!(of(Some(HOUR), Some(bad)), Err(InvalidPeriod::Step));
        }
    }

    #[test]
    fn counts_before_instants_become_counts_of_steps() {
        let due = |counts: &[u64], total| DueBefore {
            counts: counts.to_vec(),
            total,
        };
        let forecast = Forecast {
            waiting: due(&[1, 4, 4, 10], 12),
            // A message left between two counts.
            retry: [("g".parse().unwrap(), due(&[0, 2, 1, 3], 3))].into(),
            is_estimate: false,
            is_paused: false,
        };
        let view = DueView::new(&forecast);
        assert_eq!((view.overdue, view.later), (1, 2));
        assert_eq!(
            (&view.waiting[..], &view.retry[..]),
            (&[3, 0, 6][..], &[2, 0, 2][..])
        );
        assert_eq!(view.in_steps().collect::<Vec<_>>(), [5, 0, 8]);
    }
}
