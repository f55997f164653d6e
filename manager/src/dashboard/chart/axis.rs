//! The axes of a chart: values from 0 up to a round one, and time with ticks that are round in the zone of the viewer.

use lisa_core::time::{UnixMs, millis};
use lisa_service::cron::TimeZone;

use crate::dashboard::text::{grouped, span};
use crate::operations::round_step::round_step;

/// The height of a panel, and the width of all steps together, in the units of its drawing.
pub(super) const HEIGHT: u64 = 1000;
pub(super) const WIDTH: u64 = 10_000;
/// The least height of a value that is not zero, so that it is seen.
const LEAST: u64 = HEIGHT / 60;
/// The most intervals between the ticks of counts.
const INTERVALS: u64 = 3;
/// The most ticks of durations.
const MOST_TICKS: usize = 4;
/// The lowest tick above zero, so that their labels do not touch.
const LOWEST: u64 = HEIGHT / 6;
/// The most ticks of time, besides one more at the start. On narrow screens, every other one of many is hidden.
const TIMES: u64 = 8;
pub(super) const MANY_TIMES: usize = 6;

const SECOND: u64 = 1000;
const HOUR: u64 = 3600 * SECOND;
const DAY: u64 = 24 * HOUR;
/// The ticks of durations, in ms. They are about as far apart on a logarithmic scale.
const DURATIONS: [u64; 13] = [
    1,
    10,
    100,
    SECOND,
    10 * SECOND,
    60 * SECOND,
    600 * SECOND,
    HOUR,
    6 * HOUR,
    DAY,
    7 * DAY,
    30 * DAY,
    365 * DAY,
];

/// The unit of values, which also decides their scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dashboard) enum Unit {
    /// Numbers of things, on a linear scale.
    Count,
    /// Durations in ms, on a logarithmic scale: milliseconds matter, and hours occur.
    Duration,
}

impl Unit {
    /// Returns the exact text of a value.
    pub(super) fn text(self, value: u64) -> String {
        match self {
            Self::Count => grouped(value),
            Self::Duration => span(value),
        }
    }
}

/// An axis of values, from 0 to a round value that none of those shown exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    unit: Unit,
    top: u64,
    /// The distance between the ticks of counts.
    step: u64,
}

impl Scale {
    /// Creates an axis for values up to `most`.
    pub(super) fn new(unit: Unit, most: u64) -> Self {
        let most = most.max(1);
        match unit {
            Unit::Count => {
                let step = round_count(most.div_ceil(INTERVALS));
                let top = most.div_ceil(step).saturating_mul(step);
                Self { unit, top, step }
            }
            Unit::Duration => {
                let top = DURATIONS.into_iter().find(|round| *round >= most);
                let top = top.unwrap_or_else(|| most.div_ceil(365 * DAY).saturating_mul(365 * DAY));
                Self { unit, top, step: 1 }
            }
        }
    }

    /// Returns the height of a value.
    pub(super) fn height(self, value: u64) -> u64 {
        let height = match self.unit {
            Unit::Count => {
                let height = u128::from(value) * u128::from(HEIGHT) / u128::from(self.top);
                u64::try_from(height).unwrap_or(HEIGHT)
            }
            Unit::Duration => {
                let log = |value: u64| (value as f64 + 1.0).ln();
                (log(value) / log(self.top) * HEIGHT as f64) as u64
            }
        };
        let least = if value > 0 { LEAST } else { 0 };
        height.clamp(least, HEIGHT)
    }

    /// Returns the values of the ticks, from 0 to the top.
    pub(super) fn ticks(self) -> Vec<u64> {
        match self.unit {
            Unit::Count => (0..=self.top / self.step)
                .map(|tick| tick * self.step)
                .collect(),
            Unit::Duration => {
                let below = DURATIONS.into_iter().filter(|tick| *tick < self.top);
                let all: Vec<u64> = below.chain([self.top]).collect();
                let each = all.len().div_ceil(MOST_TICKS);
                let from_top = all.into_iter().rev().step_by(each);
                let mut ticks: Vec<u64> = from_top
                    .take_while(|tick| self.height(*tick) >= LOWEST)
                    .collect();
                ticks.push(0);
                ticks.reverse();
                ticks
            }
        }
    }

    /// Returns the short text of a tick. All ticks of counts have the same unit.
    pub(super) fn label(self, tick: u64) -> String {
        const UNITS: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
        if self.unit == Unit::Duration {
            return if tick == 0 {
                "0".to_owned()
            } else {
                span(tick)
            };
        }
        if self.top < 10_000 || tick == 0 {
            return grouped(tick);
        }
        let mut unit = 0;
        let mut size = 1000;
        while unit + 1 < UNITS.len() && self.top / size >= 1000 {
            unit += 1;
            size *= 1000;
        }
        let tenths = tick % size / (size / 10);
        let whole = tick / size;
        match tenths {
            0 => format!("{whole}{}", UNITS[unit]),
            _ => format!("{whole}.{tenths}{}", UNITS[unit]),
        }
    }
}

/// Returns the smallest of 1, 2, 5, 10, 20, 50 and so on that is at least `at_least`.
fn round_count(at_least: u64) -> u64 {
    let mut power: u64 = 1;
    loop {
        for digit in [1, 2, 5] {
            match power.checked_mul(digit) {
                Some(round) if round >= at_least => return round,
                Some(_) => {}
                None => return at_least,
            }
        }
        match power.checked_mul(10) {
            Some(next) => power = next,
            None => return at_least,
        }
    }
}

/// Returns the position of an instant between two others, of [`WIDTH`].
pub(super) fn position(at: UnixMs, from: UnixMs, to: UnixMs) -> u64 {
    let all = millis(to.since(from)).max(1);
    let part = u128::from(millis(at.since(from)).min(all)) * u128::from(WIDTH) / u128::from(all);
    u64::try_from(part).unwrap_or(WIDTH)
}

/// Returns the ticks of time between two instants: round times of the zone's clocks, each with its text.
pub(super) fn times(zone: &TimeZone, from: UnixMs, to: UnixMs) -> Vec<(UnixMs, String)> {
    let every = round_step(millis(to.since(from)).div_ceil(TIMES));
    let next = |after: &UnixMs| Some(zone.next_multiple(every, *after));
    let before = UnixMs::new(from.get().saturating_sub(1));
    let ticks = std::iter::successors(next(&before), next);
    let most = usize::try_from(TIMES).unwrap_or(usize::MAX) + 1;
    let ticks = ticks.take_while(|at| *at < to).take(most);
    ticks.map(|at| (at, time(zone, every, at))).collect()
}

fn time(zone: &TimeZone, every: u64, at: UnixMs) -> String {
    let format = if every < 60 * SECOND { "%T" } else { "%H:%M" };
    match &*zone.format(at, "%T") {
        "00:00:00" => zone.format(at, "%b %-d"),
        _ => zone.format(at, format),
    }
}

/// Returns the text of a step: its day unless the chart is of less than a day, and the times of its ends.
pub(super) fn step(zone: &TimeZone, (from, to): (UnixMs, UnixMs), has_day: bool) -> String {
    let is_round = [from, to]
        .iter()
        .all(|at| zone.format(*at, "%S%.f") == "00");
    let format = if is_round { "%H:%M" } else { "%T" };
    let begin = match has_day {
        true => zone.format(from, &format!("%a, %b %-d, {format}")),
        false => zone.format(from, format),
    };
    format!("{begin} – {}", zone.format(to, format))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60 * SECOND;

    #[test]
    fn ticks_of_counts_are_round_and_reach_the_largest_value() {
        for (most, expected) in [
            (0, vec![0, 1]),
            (1, vec![0, 1]),
            (3, vec![0, 1, 2, 3]),
            (4, vec![0, 2, 4]),
            (10, vec![0, 5, 10]),
            (1112, vec![0, 500, 1000, 1500]),
            (60_001, vec![0, 50_000, 100_000]),
        ] {
            let scale = Scale::new(Unit::Count, most);
            assert_eq!(scale.ticks(), expected, "{most}");
            assert_eq!(scale.height(scale.top), HEIGHT);
        }
    }

    #[test]
    fn labels_of_counts_have_one_unit() {
        let labels = |most| {
            let scale = Scale::new(Unit::Count, most);
            let ticks = scale.ticks().into_iter();
            ticks.map(|tick| scale.label(tick)).collect::<Vec<_>>()
        };
        assert_eq!(labels(1112), ["0", "500", "1,000", "1,500"]);
        assert_eq!(labels(14_000), ["0", "5k", "10k", "15k"]);
        assert_eq!(labels(1_400_000), ["0", "0.5M", "1M", "1.5M"]);
        assert_eq!(labels(3_000_000_000), ["0", "1G", "2G", "3G"]);
    }

    #[test]
    fn heights_stay_within_the_panel_and_show_what_is_not_zero() {
        for unit in [Unit::Count, Unit::Duration] {
            for most in [0, 1, 59, 1000, u64::from(u32::MAX), u64::MAX] {
                let scale = Scale::new(unit, most);
                assert_eq!(scale.height(0), 0);
                assert!((LEAST..=HEIGHT).contains(&scale.height(1)), "{scale:?}");
                assert!(scale.height(most) <= HEIGHT, "{scale:?}");
                let ticks = scale.ticks();
                assert!((2..=5).contains(&ticks.len()), "{ticks:?}");
                assert!(ticks.is_sorted() && ticks[0] == 0, "{ticks:?}");
                let widest = ticks.iter().map(|tick| scale.label(*tick).len()).max();
                // No message is older than the clock.
                assert!(widest <= Some(6) || most == u64::MAX, "{ticks:?}");
            }
        }
        assert_eq!(Scale::new(Unit::Count, 1000).height(500), HEIGHT / 2);
    }

    #[test]
    fn ticks_of_durations_are_those_that_are_said() {
        let labels = |most| {
            let scale = Scale::new(Unit::Duration, most);
            let ticks = scale.ticks().into_iter();
            ticks.map(|tick| scale.label(tick)).collect::<Vec<_>>()
        };
        assert_eq!(labels(0), ["0", "1 ms"]);
        assert_eq!(labels(7), ["0", "1 ms", "10 ms"]);
        assert_eq!(labels(900), ["0", "10 ms", "100 ms", "1 s"]);
        assert_eq!(labels(50_000), ["0", "10 ms", "1 s", "1 min"]);
        assert_eq!(labels(20 * 365 * DAY).last().unwrap(), "7,300 d");
    }

    #[test]
    fn ticks_of_time_are_round_in_the_zone_and_name_the_day_at_midnight() {
        let zone = |name: &str| name.parse::<TimeZone>().unwrap();
        let at = |text: &str| text.parse::<UnixMs>().unwrap();
        let texts = |zone: &TimeZone, from: &str, minutes: u64| -> Vec<String> {
            let from = at(from);
            let to = UnixMs::new(from.get() + minutes * MINUTE);
            times(zone, from, to)
                .into_iter()
                .map(|(_, text)| text)
                .collect()
        };
        assert_eq!(
            texts(&TimeZone::UTC, "2026-11-27T23:21:00Z", 60),
            ["23:30", "23:40", "23:50", "Nov 28", "00:10", "00:20"]
        );
        assert_eq!(
            texts(&zone("Asia/Kathmandu"), "2026-11-27T10:17:42.123Z", 360),
            ["17:00", "18:00", "19:00", "20:00", "21:00", "22:00"]
        );
        // The day on which clocks go back has 25 hours.
        assert_eq!(
            texts(&zone("Europe/Berlin"), "2026-10-24T22:00:00Z", 25 * 60),
            ["Oct 25", "04:00", "08:00", "12:00", "16:00", "20:00"]
        );
        let days = texts(&TimeZone::UTC, "2026-11-21T10:00:00Z", 7 * 24 * 60);
        assert_eq!((days.len(), &*days[0], &*days[6]), (7, "Nov 22", "Nov 28"));
    }

    #[test]
    fn a_position_is_a_share_of_the_time_also_of_none() {
        let at = UnixMs::new;
        assert_eq!(position(at(150), at(100), at(200)), WIDTH / 2);
        assert_eq!(position(at(300), at(100), at(200)), WIDTH);
        assert_eq!(position(at(100), at(100), at(100)), 0);
        assert_eq!(position(at(u64::MAX), at(0), at(u64::MAX)), WIDTH);
    }

    #[test]
    fn the_text_of_a_step_has_seconds_only_if_it_needs_them() {
        let text = |from: &str, to: &str, has_day| {
            let ends = (from.parse().unwrap(), to.parse().unwrap());
            step(&TimeZone::UTC, ends, has_day)
        };
        let to = "2026-11-27T10:30:00Z";
        assert_eq!(text("2026-11-27T10:00:00Z", to, false), "10:00 – 10:30");
        assert_eq!(
            text("2026-11-27T10:17:42.123Z", to, true),
            "Fri, Nov 27, 10:17:42 – 10:30:00"
        );
    }
}
