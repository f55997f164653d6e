//! The lengths of steps that are easy to read in a chart, a table or a forecast.

use std::time::Duration;

use lisa_core::time::millis;

const DAY: Duration = Duration::from_hours(24);
/// Each divides a day, so that a step begins at each midnight.
const ROUND: [Duration; 19] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(15),
    Duration::from_secs(30),
    Duration::from_mins(1),
    Duration::from_mins(2),
    Duration::from_mins(5),
    Duration::from_mins(10),
    Duration::from_mins(15),
    Duration::from_mins(30),
    Duration::from_hours(1),
    Duration::from_hours(2),
    Duration::from_hours(3),
    Duration::from_hours(4),
    Duration::from_hours(6),
    Duration::from_hours(12),
    DAY,
];

/// Returns the shortest round length of at least `at_least` ms, in ms. Above a day, it is a whole number of days.
pub(crate) fn round_step(at_least: u64) -> u64 {
    let mut round = ROUND.into_iter().map(millis);
    let day = millis(DAY);
    round
        .find(|step| *step >= at_least)
        .unwrap_or(at_least.div_ceil(day) * day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_rounded_up_to_what_divides_a_day_or_to_days() {
        let minute = 60_000;
        for (at_least, expected) in [
            (0, 1000),
            (1001, 2000),
            (minute, minute),
            (62 * minute, 120 * minute),
            (105 * minute, 120 * minute),
            (1441 * minute, 2880 * minute),
        ] {
            assert_eq!(round_step(at_least), expected, "{at_least}");
        }
        assert!(
            ROUND
                .iter()
                .all(|step| millis(DAY).is_multiple_of(millis(*step)))
        );
    }
}
