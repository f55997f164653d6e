//! The surprises of an expression for its author: at clock changes, and on days that not all months have.

use lisa_core::time::{DAY, UnixMs};

use super::zone::just_before;
use super::{Cron, TimeZone, parser};

/// The period that is searched for clock changes.
const AHEAD: u32 = 2 * 366;
/// The months and their days, with 29 February.
const MONTHS: [(&str, u8); 12] = [
    ("January", 31),
    ("February", 29),
    ("March", 31),
    ("April", 30),
    ("May", 31),
    ("June", 30),
    ("July", 31),
    ("August", 31),
    ("September", 30),
    ("October", 31),
    ("November", 30),
    ("December", 31),
];

impl Cron {
    /// Returns a warning for each surprise: days that some of the months do not have, days of the month and of the week that do
    /// not restrict each other, and the next clock changes that skip or repeat its times.
    pub fn warnings(&self, zone: &TimeZone, now: UnixMs) -> Vec<String> {
        let mut warnings = Vec::new();
        warnings.extend(self.either_day());
        warnings.extend(self.missing_days());
        warnings.extend(self.clock_changes(zone, now));
        warnings
    }

    fn field(&self, index: usize) -> &str {
        self.text.split(' ').nth(index).unwrap_or_default()
    }

    fn restricts_weekdays(&self) -> bool {
        !matches!(self.field(5), "*" | "?")
    }

    fn either_day(&self) -> Option<String> {
        let (day, weekday) = (self.field(3), self.field(5));
        let is_either =
            !matches!(day, "*" | "?") && self.restricts_weekdays() && !weekday.starts_with('+');
        is_either.then(|| {
            format!("fires on day {day} of the month and also on weekday {weekday}; +{weekday} requires both")
        })
    }

    /// Names the days of the month that some of the months do not have.
    fn missing_days(&self) -> Option<String> {
        let day = self.field(3);
        if self.restricts_weekdays() || day.contains(['*', '/', 'L', 'W', '?', 'l', 'w']) {
            return None;
        }
        let in_january = parser().parse(&format!("0 0 0 {day} 1 *")).ok()?;
        let has = |of| matches!(in_january.pattern.day_match(2001, 1, of), Ok(true));
        // A range through the end of the month is meant to end with it.
        if has(28) {
            return None;
        }
        let last = (29..=31).rev().find(|day| has(*day))?;
        let first = (29..=31).find(|day| has(*day))?;
        let months = (1..=12).zip(MONTHS);
        let months =
            months.filter(|(month, _)| matches!(self.parsed.pattern.month_match(*month), Ok(true)));
        let (with, without): (Vec<_>, Vec<_>) =
            months.partition(|(_, (_, days))| u32::from(*days) >= last);
        let names: Vec<_> = without.iter().map(|(_, (name, _))| *name).collect();
        let is_leap_day = first == 29 && with.iter().chain(&without).any(|(month, _)| *month == 2);
        match (&names[..], is_leap_day) {
            ([], false) => None,
            ([], true) => Some("February 29 exists only in leap years".to_owned()),
            (names, _) => Some(format!(
                "day {last} does not exist in {}; use L for the last day of the month",
                names.join(", ")
            )),
        }
    }

    /// Describes the next clock change that skips times, and the next that repeats them.
    fn clock_changes(&self, zone: &TimeZone, now: UnixMs) -> Vec<String> {
        // An expression of each hour is expected to follow the clocks.
        if self.field(2) == "*" {
            return Vec::new();
        }
        let (mut skipped, mut repeated) = (None, None);
        for (change, before, after) in zone.changes(now, now.plus(DAY * AHEAD)) {
            let length = before.abs_diff(after);
            if after > before && skipped.is_none() {
                // As if the clocks were not changed.
                let time = self.next_at(just_before(change), before);
                let time = time.filter(|time| time.get() < change.get().saturating_add(length));
                skipped = time.map(|time| {
                    let (day, at) = (
                        clock(time, before, "%Y-%m-%d"),
                        clock(time, before, "%H:%M:%S"),
                    );
                    let what = match self.is_once_a_day() {
                        true => format!("fires at {}", clock(change, after, "%H:%M:%S")),
                        false => "does not fire".to_owned(),
                    };
                    format!("on {day}, {at} does not exist in {zone}: {what}")
                });
            }
            if after < before && repeated.is_none() {
                let begin = UnixMs::new(change.get().saturating_sub(length));
                let time = self.next_at(just_before(begin), before);
                let time = time.filter(|time| *time < change);
                repeated = time.map(|time| {
                    let (day, at) = (
                        clock(time, before, "%Y-%m-%d"),
                        clock(time, before, "%H:%M:%S"),
                    );
                    let what = match self.is_once_a_day() {
                        true => "fires the first time",
                        false => "fires twice",
                    };
                    format!("on {day}, {at} occurs twice in {zone}: {what}")
                });
            }
        }
        skipped.into_iter().chain(repeated).collect()
    }
}

/// Formats an instant as clocks show it that are `offset` ms ahead of UTC.
fn clock(at: UnixMs, offset: i64, format: &str) -> String {
    let shown = UnixMs::new(at.get().saturating_add_signed(offset));
    TimeZone::UTC.format(shown, format)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(cron: &str, zone: &str) -> Vec<String> {
        let cron: Cron = cron.parse().unwrap();
        let now = "2026-11-29T12:00:00Z".parse().unwrap();
        cron.warnings(&zone.parse().unwrap(), now)
    }

    #[test]
    fn a_day_that_some_months_lack_is_a_surprise() {
        let says = |cron: &str| of(cron, "UTC");
        assert_eq!(
            says("0 0 3 31 * *"),
            [
                "day 31 does not exist in February, April, June, September, November; use L for the last day of the month"
            ]
        );
        assert_eq!(
            says("0 0 3 15,30 2,3 *"),
            ["day 30 does not exist in February; use L for the last day of the month"]
        );
        assert_eq!(
            says("0 0 3 29 2 *"),
            ["February 29 exists only in leap years"]
        );
        assert_eq!(
            says("0 0 3 29 * *"),
            ["February 29 exists only in leap years"]
        );
        for cron in [
            "0 0 3 28 * *",
            "0 0 3 L * *",
            "0 0 3 28-31 * *",
            "0 0 3 31 1,12 *",
            "0 0 3 */2 * *",
            "0 0 3 1 * *",
        ] {
            assert_eq!(says(cron), [""; 0], "{cron}");
        }
    }

    #[test]
    fn two_kinds_of_days_are_a_surprise() {
        let says = of("0 0 3 13 * FRI", "UTC");
        assert_eq!(
            says,
            ["fires on day 13 of the month and also on weekday FRI; +FRI requires both"]
        );
        assert_eq!(of("0 0 3 13 * +FRI", "UTC"), [""; 0]);
        assert_eq!(of("0 0 3 * * FRI", "UTC"), [""; 0]);
    }

    #[test]
    fn a_clock_change_that_skips_or_repeats_a_time_is_a_surprise() {
        assert_eq!(
            of("0 30 2 * * *", "Europe/Berlin"),
            [
                "on 2027-03-28, 02:30:00 does not exist in Europe/Berlin: fires at 03:00:00",
                "on 2027-10-31, 02:30:00 occurs twice in Europe/Berlin: fires the first time",
            ]
        );
        assert_eq!(
            of("0 0,30 2 * * *", "Europe/Berlin"),
            [
                "on 2027-03-28, 02:00:00 does not exist in Europe/Berlin: does not fire",
                "on 2027-10-31, 02:00:00 occurs twice in Europe/Berlin: fires twice",
            ]
        );
        // The first one on a day on which it fires.
        assert_eq!(of("0 30 2 29 3 *", "Europe/Berlin").len(), 0);
        for (cron, zone) in [
            ("0 0 3 * * *", "Europe/Berlin"),
            ("0 30 2 * * *", "UTC"),
            ("0 30 2 * * *", "Asia/Tokyo"),
            ("0 */5 * * * *", "Europe/Berlin"),
        ] {
            assert_eq!(of(cron, zone), [""; 0], "{cron} {zone}");
        }
    }
}
