//! Time zones, and the times at which a cron expression fires in one.
//!
//! The parser computes times only at a fixed offset from UTC. This module handles changes of the offset.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use croner::JobType;
use jiff::Timestamp;
use jiff::tz::TimeZone as Zone;

use super::Cron;
use lisa_core::time::UnixMs;

/// A day in ms. No clock goes back by more.
const DAY_MS: u64 = 24 * 3_600_000;

/// A time zone of the IANA database, like `UTC` or `Europe/Berlin`. Its rules come from the host; if the host has none, from
/// the copy built into the binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeZone(Zone);

/// The text does not name a time zone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a name of the IANA time zone database, like \"UTC\" or \"Europe/Berlin\"")]
pub struct InvalidTimeZone;

impl TimeZone {
    /// Coordinated Universal Time.
    pub const UTC: Self = Self(Zone::UTC);

    /// Returns the first instant after `after` at which the zone's clocks show a multiple of `step` ms since midnight. `step`
    /// must divide a day, or be a whole number of days.
    pub fn next_multiple(&self, step: u64, after: UnixMs) -> UnixMs {
        let step = i64::try_from(step.max(1)).unwrap_or(i64::MAX);
        let offset = self.offset(after);
        let after = i64::try_from(after.get()).unwrap_or(i64::MAX);
        let shown = after.saturating_add(offset);
        let next = shown.saturating_add(step - shown.rem_euclid(step));
        let at = |offset: i64| UnixMs::new(next.saturating_sub(offset).unsigned_abs());
        // The clocks may change before then.
        let changed = self.offset(at(offset));
        let is_round = next.saturating_add(changed - offset).rem_euclid(step) == 0;
        match is_round || next.saturating_sub(changed) <= after {
            true => at(offset),
            false => at(changed),
        }
    }

    /// Formats an instant in the local time of the zone, as `strftime` does.
    pub fn format(&self, at: UnixMs, format: &str) -> String {
        let shown = Timestamp::from(at).to_zoned(self.0.clone());
        shown.strftime(format).to_string()
    }

    /// Returns the offset from UTC in ms, positive if the zone's clocks are ahead.
    pub(super) fn offset(&self, at: UnixMs) -> i64 {
        i64::from(self.0.to_offset(Timestamp::from(at)).seconds()) * 1000
    }

    /// Returns the first instant after `from`, and not after `until`, at which the offset differs from `offset`.
    fn change(&self, offset: i64, from: UnixMs, until: UnixMs) -> Option<UnixMs> {
        let changes = self.0.following(Timestamp::from(from));
        changes
            .map(|change| UnixMs::from(change.timestamp()))
            .take_while(|at| *at <= until)
            .find(|at| self.offset(*at) != offset)
    }

    /// Returns the instants after `from`, and before `until`, at which the offset changes, with the offsets before and after.
    pub(super) fn changes(
        &self,
        from: UnixMs,
        until: UnixMs,
    ) -> impl Iterator<Item = (UnixMs, i64, i64)> {
        let changes = self.0.following(Timestamp::from(from));
        changes
            .map(|change| UnixMs::from(change.timestamp()))
            .take_while(move |at| *at < until)
            .map(|at| (at, self.offset(just_before(at)), self.offset(at)))
    }

    /// Returns the end of the times that clocks show for the second time, if an instant is among them.
    fn end_of_repeat(&self, at: UnixMs) -> Option<UnixMs> {
        let next = UnixMs::new(at.get().saturating_add(1));
        let changes = self.0.preceding(Timestamp::from(next));
        changes
            .map(|change| UnixMs::from(change.timestamp()))
            .take_while(|change| change.get().saturating_add(DAY_MS) > at.get())
            .map(|change| {
                let back = self.offset(just_before(change)) - self.offset(change);
                UnixMs::new(change.get().saturating_add_signed(back))
            })
            .find(|end| at < *end)
    }
}

impl FromStr for TimeZone {
    type Err = InvalidTimeZone;

    fn from_str(text: &str) -> Result<Self, InvalidTimeZone> {
        Zone::get(text).map(Self).map_err(|_| InvalidTimeZone)
    }
}

impl fmt::Display for TimeZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.iana_name().unwrap_or("UTC"))
    }
}

impl Cron {
    /// Returns whether the hour, the minute and the second are fixed.
    pub(super) fn is_once_a_day(&self) -> bool {
        self.parsed.determine_job_type() == JobType::FixedTime
    }

    /// Returns the first time after `after` on clocks that are always `offset` ms ahead of UTC.
    pub(super) fn next_at(&self, after: UnixMs, offset: i64) -> Option<UnixMs> {
        next_at(&self.parsed, after, offset)
    }

    /// Returns the first time after `after`, a whole second; `None` at the end of the calendar.
    ///
    /// An expression with a fixed hour, minute and second fires once a day even when clocks change. If its time is skipped,
    /// it fires at the end of the gap; if its time occurs twice, it fires the first time. Any other expression fires
    /// whenever clocks show its time. Both hold for any `after`, also among times that occur twice.
    pub fn next(&self, zone: &TimeZone, after: UnixMs) -> Option<UnixMs> {
        let cron = &self.parsed;
        let once_a_day = self.is_once_a_day();
        // Where times occur twice, such an expression has fired before they are repeated.
        let begin = |at| {
            let end = once_a_day.then(|| zone.end_of_repeat(at)).flatten();
            end.map(just_before)
        };
        let mut from = begin(after).unwrap_or(after);
        let mut offset = zone.offset(from);
        loop {
            let next = next_at(cron, from, offset)?;
            let Some(change) = zone.change(offset, from, next) else {
                return Some(next);
            };
            // With any other offset, clocks show its times at most a day earlier or later. So between a day after `from` and a day
            // before `next`, it does not fire, however often the clocks change there.
            let before = UnixMs::new(next.get().saturating_sub(3 * DAY_MS));
            if change.get() > from.get().saturating_add(DAY_MS) && before > change {
                from = begin(before).unwrap_or(before);
                offset = zone.offset(from);
                continue;
            }
            let now = zone.offset(change);
            let shift = UnixMs::new(change.get().saturating_add(now.abs_diff(offset)));
            if once_a_day && now > offset && next < shift {
                return Some(change);
            }
            // Continues with the new offset from the change on.
            from = begin(change).unwrap_or(just_before(change));
            offset = now;
        }
    }

    /// Returns the last time after `after` and not after `until`, if any.
    pub fn last(&self, zone: &TimeZone, after: UnixMs, until: UnixMs) -> Option<UnixMs> {
        let next = |after| self.next(zone, after).filter(|next| *next <= until);
        let mut last = next(after)?;
        let mut none_after = until;
        while let middle = UnixMs::new(last.get().midpoint(none_after.get()))
            && middle > last
        {
            match next(middle) {
                Some(later) => last = later,
                None => none_after = middle,
            }
        }
        Some(last)
    }
}

pub(super) fn just_before(at: UnixMs) -> UnixMs {
    UnixMs::new(at.get().saturating_sub(1))
}

/// Returns the next time on clocks that are always `offset` ms ahead of UTC.
fn next_at(cron: &croner::Cron, after: UnixMs, offset: i64) -> Option<UnixMs> {
    let shown = i64::try_from(after.get()).ok()?.checked_add(offset)?;
    // The parser would keep the fraction.
    let shown: DateTime<Utc> = DateTime::from_timestamp(shown.div_euclid(1000), 0)?;
    let next = cron.find_next_occurrence(&shown, false).ok()?;
    let next = next.timestamp_millis().checked_sub(offset)?;
    u64::try_from(next).ok().map(UnixMs::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::tz::AmbiguousOffset;
    use jiff::{ToSpan, civil};
    use std::collections::{BTreeMap, BTreeSet};

    fn zone(name: &str) -> TimeZone {
        name.parse().unwrap()
    }

    fn at(text: &str) -> UnixMs {
        text.parse().unwrap()
    }

    /// Returns the first times after an instant, in UTC.
    fn times(cron: &str, zone: &TimeZone, after: &str, count: usize) -> Vec<String> {
        let cron: Cron = cron.parse().unwrap();
        let next = |after: &UnixMs| cron.next(zone, *after);
        let times = std::iter::successors(next(&at(after)), next);
        times
            .take(count)
            .map(|at| at.to_string()[..19].to_owned())
            .collect()
    }

    #[test]
    fn a_time_comes_after_the_instant_and_at_a_whole_second() {
        let hourly = |after| times("0 0 * * * *", &TimeZone::UTC, after, 1);
        assert_eq!(hourly("2026-11-21T10:00:00Z"), ["2026-11-21T11:00:00"]);
        assert_eq!(hourly("2026-11-21T10:59:59.999Z"), ["2026-11-21T11:00:00"]);
        assert_eq!(hourly("2026-11-21T10:00:00.001Z"), ["2026-11-21T11:00:00"]);
    }

    #[test]
    fn a_zone_says_when_it_is_three_o_clock() {
        let three = |zone: &TimeZone| times("0 0 3 * * *", zone, "2026-07-01T12:00:00Z", 1);
        assert_eq!(three(&TimeZone::UTC), ["2026-07-02T03:00:00"]);
        assert_eq!(three(&zone("Europe/Berlin")), ["2026-07-02T01:00:00"]);
        assert_eq!(three(&zone("Asia/Kathmandu")), ["2026-07-01T21:15:00"]);
        assert_eq!(three(&zone("Pacific/Kiritimati")), ["2026-07-01T13:00:00"]);
    }

    #[test]
    fn a_fixed_time_comes_once_on_the_days_on_which_clocks_change() {
        let berlin = zone("Europe/Berlin");
        // On 29 March 2026 clocks go from 2:00 to 3:00, on 25 October from 3:00 to 2:00, both at 1:00 UTC.
        let spring = times("0 30 2 * * *", &berlin, "2026-03-27T12:00:00Z", 3);
        let expected = [
            "2026-03-28T01:30:00",
            "2026-03-29T01:00:00",
            "2026-03-30T00:30:00",
        ];
        assert_eq!(spring, expected);
        let autumn = times("0 30 2 * * *", &berlin, "2026-10-24T12:00:00Z", 2);
        assert_eq!(autumn, ["2026-10-25T00:30:00", "2026-10-26T01:30:00"]);
        let three = times("0 0 3 * * *", &berlin, "2026-10-24T12:00:00Z", 2);
        assert_eq!(three, ["2026-10-25T02:00:00", "2026-10-26T02:00:00"]);
        let three = times("0 0 3 * * *", &berlin, "2026-03-28T12:00:00Z", 2);
        assert_eq!(three, ["2026-03-29T01:00:00", "2026-03-30T01:00:00"]);
    }

    #[test]
    fn what_comes_each_half_hour_does_so_whatever_clocks_show() {
        let berlin = zone("Europe/Berlin");
        for (after, first) in [("2026-03-29T00:15:00Z", 1), ("2026-10-25T00:15:00Z", 1)] {
            let day = &after[..10];
            let expected: Vec<String> = (0..5)
                .map(|half| {
                    format!(
                        "{day}T{:02}:{:02}:00",
                        (first + half) / 2,
                        (first + half) % 2 * 30
                    )
                })
                .collect();
            assert_eq!(times("0 */30 * * * *", &berlin, after, 5), expected);
        }
        // Skipped times do not fire; repeated times fire twice.
        let some = times("0 10,40 2 * * *", &berlin, "2026-03-28T12:00:00Z", 2);
        assert_eq!(some, ["2026-03-30T00:10:00", "2026-03-30T00:40:00"]);
        let some = times("0 10,40 2 * * *", &berlin, "2026-10-24T12:00:00Z", 5);
        let expected = ["25T00:10", "25T00:40", "25T01:10", "25T01:40", "26T01:10"];
        assert_eq!(some, expected.map(|time| format!("2026-10-{time}:00")));
    }

    /// The changes of a zone's clocks in ten years: each instant, and the offset that begins then, in seconds.
    type Changes = Vec<(i64, i32)>;

    /// Returns the zones of the database whose clocks change in ten years, one of each history.
    fn zones_that_change() -> BTreeMap<Changes, String> {
        let (from, to) = (at("2020-01-01T00:00:00Z"), at("2030-01-01T00:00:00Z"));
        let mut zones = BTreeMap::new();
        for name in jiff::tz::db().available() {
            let zone = Zone::get(name.as_str()).unwrap();
            let changes: Changes = (zone.following(Timestamp::from(from)))
                .take_while(|change| change.timestamp() < Timestamp::from(to))
                .map(|change| (change.timestamp().as_second(), change.offset().seconds()))
                .collect();
            if !changes.is_empty() {
                zones.entry(changes).or_insert_with(|| name.to_string());
            }
        }
        zones
    }

    /// Returns the instants of a daily time, by the rule alone. That is its first occurrence, or the end of the gap that skips
    /// it.
    fn fires_daily(zone: &Zone, time: civil::Time, around: civil::Date) -> Vec<i64> {
        let days = (-4..=4).map(|days| around.saturating_add(days.days()));
        let fires = days.map(|day| {
            let ambiguous = zone.to_ambiguous_timestamp(day.to_datetime(time));
            match ambiguous.offset() {
                AmbiguousOffset::Unambiguous { offset }
                | AmbiguousOffset::Fold { before: offset, .. } => offset
                    .to_timestamp(day.to_datetime(time))
                    .unwrap()
                    .as_second(),
                AmbiguousOffset::Gap { after, .. } => {
                    // With the later offset it comes before the gap, whose end is the next change.
                    let early = after.to_timestamp(day.to_datetime(time)).unwrap();
                    let change = zone.following(early).next().unwrap();
                    change.timestamp().as_second()
                }
            }
        });
        fires.collect()
    }

    #[test]
    fn the_next_time_around_each_change_of_clocks_is_that_of_the_rule() {
        // Minutes from a change to the time that is asked for, and to the instant from which it is.
        const AROUND: [i64; 9] = [-90, -60, -30, -1, 0, 1, 30, 60, 90];
        let zones = zones_that_change();
        assert!(zones.len() > 30, "{zones:?}");
        let fractions = [-1, 0, 1];
        let third: Cron = "0 */20 * * * *".parse().unwrap();
        for (changes, name) in &zones {
            let (zone, tz) = (zone(name), Zone::get(name).unwrap());
            // A debug build is slow: it looks at a few changes of each zone, from a few instants.
            let step = if cfg!(debug_assertions) { 7 } else { 1 };
            for (change, _) in changes.iter().step_by(step) {
                let instant = |minutes: i64| Timestamp::from_second(change + minutes * 60).unwrap();
                let offsets = [-1, 0].map(|at| tz.to_offset(instant(at)));
                let afters: Vec<_> = AROUND
                    .iter()
                    .flat_map(|minutes| fractions.map(|ms| (change + minutes * 60) * 1000 + ms))
                    .collect();
                let shown: BTreeSet<_> = AROUND
                    .iter()
                    .flat_map(|minutes| offsets.map(|offset| offset.to_datetime(instant(*minutes))))
                    .collect();
                for (number, shown) in shown.into_iter().enumerate() {
                    let (h, m, s) = (shown.hour(), shown.minute(), shown.second());
                    let cron: Cron = format!("{s} {m} {h} * * *").parse().unwrap();
                    let fires = fires_daily(&tz, shown.time(), shown.date());
                    for after in afters.iter().skip(number % step).step_by(step) {
                        let expected = fires.iter().filter(|at| **at * 1000 > *after).min();
                        let next = cron.next(&zone, UnixMs::new(*after as u64)).unwrap();
                        assert_eq!(
                            Some(&(next.get() as i64 / 1000)),
                            expected,
                            "{name} {cron} {after}"
                        );
                    }
                }
                for after in afters.iter().step_by(step) {
                    let mut second = (after.div_euclid(60_000) + 1) * 60;
                    let minute = |second| {
                        tz.to_datetime(Timestamp::from_second(second).unwrap())
                            .minute()
                    };
                    while minute(second) % 20 != 0 {
                        second += 60;
                    }
                    let next = third.next(&zone, UnixMs::new(*after as u64)).unwrap();
                    assert_eq!(next.get() as i64 / 1000, second, "{name} {third} {after}");
                }
            }
        }
    }

    /// The first instant of a time on each date in `years` that a rule allows.
    fn fires_on(
        zone: &TimeZone,
        time: civil::Time,
        years: std::ops::Range<i16>,
        rule: fn(civil::Date) -> bool,
    ) -> Vec<String> {
        let tz = Zone::get(&zone.to_string()).unwrap();
        let first = civil::date(years.start, 1, 1);
        let dates = first.series(1.day());
        let dates = dates.take_while(|date| date.year() < years.end);
        let fires = dates.filter(|date| rule(*date)).map(|date| {
            let of_days = fires_daily(&tz, time, date);
            let fire = Timestamp::from_second(of_days[4]).unwrap();
            UnixMs::from(fire).to_string()[..19].to_owned()
        });
        fires.collect()
    }

    #[test]
    fn a_sparse_expression_is_right_and_costs_little_however_often_the_clocks_change_before() {
        let thursday: fn(civil::Date) -> bool =
            |date| (date.month(), date.day(), date.weekday()) == (2, 29, civil::Weekday::Thursday);
        // A Sunday on which the clocks of Berlin skip 2:30.
        let sunday: fn(civil::Date) -> bool =
            |date| (date.month(), date.day(), date.weekday()) == (3, 31, civil::Weekday::Sunday);
        let half_past_two = civil::time(2, 30, 0, 0);
        for name in [
            "Europe/Berlin",
            "America/New_York",
            "Australia/Lord_Howe",
            "Africa/Casablanca",
        ] {
            for (cron, rule) in [("0 30 2 29 2 +4", thursday), ("0 30 2 31 3 +0", sunday)] {
                let zone = zone(name);
                let expected = fires_on(&zone, half_past_two, 2001..2080, rule);
                let found = times(cron, &zone, "2001-01-01T12:00:00Z", expected.len());
                assert_eq!(found, expected, "{name} {cron}");
            }
        }
        let took = |zone: &TimeZone| {
            let begun = std::time::Instant::now();
            times("0 30 2 29 2 +4", zone, "2026-01-01T00:00:00Z", 2);
            begun.elapsed()
        };
        let least = |zone: &TimeZone| (0..3).map(|_| took(zone)).min().unwrap();
        let (utc, berlin) = (least(&TimeZone::UTC), least(&zone("Europe/Berlin")));
        assert!(berlin < utc * 10, "{berlin:?} in Berlin, {utc:?} in UTC");
    }

    #[test]
    fn a_repeated_hour_has_no_second_fixed_time_whenever_it_is_asked_for() {
        let berlin = zone("Europe/Berlin");
        // Clocks show 2:15 for the second time.
        let next = times("0 30 2 * * *", &berlin, "2026-10-25T01:15:00Z", 1);
        assert_eq!(next, ["2026-10-26T01:30:00"]);
        let next = times("0 0 3 * * *", &berlin, "2026-10-25T01:15:00Z", 1);
        assert_eq!(next, ["2026-10-25T02:00:00"]);
    }

    #[test]
    fn each_time_is_later_than_the_one_before_and_the_last_up_to_it() {
        let zones = [
            "UTC",
            "Europe/Berlin",
            "America/New_York",
            "Australia/Lord_Howe",
            "Africa/Casablanca",
        ];
        let crons = [
            "0 */7 * * * *",
            "0 30 2 * * *",
            "0 0 0 * * *",
            "15 10 1-3 * * SUN",
            "0 59 1,2 * 3,10,11 *",
        ];
        for (name, text) in zones.iter().flat_map(|zone| crons.map(|cron| (zone, cron))) {
            let (zone, cron): (TimeZone, Cron) = (zone(name), text.parse().unwrap());
            for start in ["2026-03-06T00:00:00Z", "2026-10-23T00:00:00Z"] {
                let mut before = at(start);
                for _ in 0..400 {
                    let next = cron.next(&zone, before).unwrap();
                    assert!(next > before, "{name} {text} {before}");
                    let last = |until| cron.last(&zone, before, UnixMs::new(until));
                    assert_eq!(last(next.get()), Some(next), "{name} {text} {before}");
                    assert_eq!(last(next.get() - 1), None, "{name} {text} {before}");
                    before = next;
                }
                assert_eq!(
                    cron.last(&zone, at(start), before),
                    Some(before),
                    "{name} {text}"
                );
            }
        }
    }

    #[test]
    fn a_zone_has_a_name_of_the_database() {
        assert_eq!(zone("Europe/Berlin").to_string(), "Europe/Berlin");
        assert_eq!(zone("UTC"), TimeZone::UTC);
        assert_eq!(TimeZone::UTC.to_string(), "UTC");
        for bad in [
            "",
            "Berlin",
            "+01:00",
            "../../etc/passwd",
            "Europe/Atlantis",
        ] {
            assert!(bad.parse::<TimeZone>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_calendar_ends_without_a_panic() {
        let cron: Cron = "0 0 0 29 2 *".parse().unwrap();
        for end in [u64::MAX, i64::MAX as u64, 95_617_584_000_000] {
            assert_eq!(cron.next(&TimeZone::UTC, UnixMs::new(end)), None, "{end}");
        }
    }
}
