//! Cron expressions: six fields, seconds first.
//!
//! Only checks them. When they come is in `zone`; jobs are run by the manager's schedule, with the same parser.

mod zone;

use std::fmt;
use std::str::FromStr;

use croner::parser::{CronParser, Seconds, Year};

pub use zone::{InvalidTimeZone, TimeZone};

use crate::time::{shorten, shorten_to};

/// As many years as it takes until each date, 29 February too, was on each day of the week.
const YEARS: std::ops::Range<i32> = 2001..2029;

/// The fields in their order, and what each may hold.
const FIELDS: [(&str, &str); 6] = [
    ("second", "0 to 59"),
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day", "1 to 31 and L"),
    ("month", "1 to 12 and JAN to DEC"),
    ("weekday", "0 to 7 (0 and 7 are Sunday) and SUN to SAT"),
];

/// A checked cron expression: second, minute, hour, day of month, month, day of week. Its time comes again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron(String);

/// Why a text is not a cron expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCron {
    /// Not six fields.
    #[error(
        "expected six fields (second minute hour day month weekday, like \"0 */5 * * * *\"), found {0}"
    )]
    Fields(usize),
    /// A field that cannot be read.
    #[error(
        "{name} {text:?}: expected {allowed}, or *, and lists, ranges and steps of these, like \"1,5\", \"1-5\" and \"*/5\""
    )]
    Field {
        /// Which it is.
        name: &'static str,
        /// What it says.
        text: String,
        /// What it may say.
        allowed: &'static str,
    },
    /// Fields that cannot be read together.
    #[error("not a cron expression: {0}")]
    Pattern(String),
    /// Fields that no date has together, so that the time never comes.
    #[error(
        "never comes: no date has day {day:?}, month {month:?} and weekday {weekday:?}; expected some date that exists, \
         like \"0 0 4 29 2 *\" for 29 February"
    )]
    NoDate {
        /// The day of the month.
        day: String,
        /// The month.
        month: String,
        /// The day of the week.
        weekday: String,
    },
}

impl Cron {
    /// Gives the expression, fields separated by one space.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn parser() -> CronParser {
    CronParser::builder()
        .seconds(Seconds::Required)
        .year(Year::Disallowed)
        .build()
}

impl FromStr for Cron {
    type Err = InvalidCron;

    fn from_str(text: &str) -> Result<Self, InvalidCron> {
        let fields: Vec<_> = text.split_whitespace().collect();
        let [_, _, _, day, month, weekday] = fields[..] else {
            return Err(InvalidCron::Fields(fields.len()));
        };
        let cron = read(&fields)?;
        if !has_date(&cron) {
            return Err(InvalidCron::NoDate {
                day: shorten(day),
                month: shorten(month),
                weekday: shorten(weekday),
            });
        }
        Ok(Self(fields.join(" ")))
    }
}

/// Has the fields read, each for itself too: the parser does not say which one it does not take.
fn read(fields: &[&str]) -> Result<croner::Cron, InvalidCron> {
    let is_read = |place: usize| {
        let field = fields[place];
        let mut alone = ["*"; FIELDS.len()];
        alone[place] = field;
        // An empty part would be no time at all, and the parser would look for one for very long.
        !field.split(',').any(str::is_empty) && parser().parse(&alone.join(" ")).is_ok()
    };
    let wrong = |place: usize| {
        let (name, allowed) = FIELDS[place];
        let text = shorten(fields[place]);
        InvalidCron::Field {
            name,
            text,
            allowed,
        }
    };
    if let Some(place) = (0..FIELDS.len()).find(|&place| !is_read(place)) {
        return Err(wrong(place));
    }
    let together = parser().parse(&fields.join(" "));
    // The error may repeat a field, of whatever length.
    together.map_err(|error| InvalidCron::Pattern(shorten_to(&error.to_string(), 200)))
}

/// Whether some date matches. The parser itself would look for one up to the year 5000, for about a second, whenever it is
/// asked for the next; each second, minute and hour that it takes is there.
fn has_date(cron: &croner::Cron) -> bool {
    let pattern = &cron.pattern;
    let in_month = |year, month| {
        matches!(pattern.month_match(month), Ok(true))
            // A day that the month does not have is an error.
            && (1..=31).any(|day| matches!(pattern.day_match(year, month, day), Ok(true)))
    };
    YEARS
        .into_iter()
        .any(|year| (1..=12).any(|month| in_month(year, month)))
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cron_expression_has_six_fields_with_seconds_first() {
        assert_eq!(
            "*/5  * * * * *".parse::<Cron>().unwrap().as_str(),
            "*/5 * * * * *"
        );
        for (text, says) in [
            ("* * * * *", "found 5"),
            ("@hourly", "found 1"),
            ("0 * * * * * 2027", "found 7"),
            ("61 * * * * *", "second \"61\": expected 0 to 59, or *"),
            ("a * * * * *", "second \"a\""),
            ("0 , * 5 * 2#3", "minute \",\""),
            ("0 1, * * * *", "minute \"1,\""),
            ("0 0 24 * * *", "hour \"24\": expected 0 to 23"),
            ("0 0 0 32 * *", "day \"32\": expected 1 to 31"),
            ("0 0 0 * 5/0 *", "month \"5/0\": expected 1 to 12"),
            ("0 0 0 * * 8", "weekday \"8\": expected 0 to 7"),
        ] {
            let error = text.parse::<Cron>().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn the_error_of_a_long_field_is_short() {
        let days = "FRI,".repeat(1000);
        for text in [
            format!("0 0 0 * * {days}X"),
            format!("0 0 0 * * {days}"),
            format!("0 0 0 30 2 +{days}2"),
        ] {
            let error = text.parse::<Cron>().unwrap_err().to_string();
            assert!(error.len() < 400 && error.contains('…'), "{error}");
        }
    }

    #[test]
    fn a_cron_expression_that_never_comes_is_refused_with_the_fields_that_rule_it_out() {
        for (text, says) in [
            (
                "0 0 0 30 2 *",
                "no date has day \"30\", month \"2\" and weekday \"*\"; expected some date that exists",
            ),
            ("0 0 0 31 2,4,6,9,11 *", "month \"2,4,6,9,11\""),
            ("0 0 0 29 6 +", "weekday \"+\""),
            ("0 50 * 4 * +4#3", "weekday \"+4#3\""),
            ("0 0 0 L 2 +2#3", "day \"L\", month \"2\""),
            ("0 0 0 * * L", "weekday \"L\""),
        ] {
            let error = text.parse::<Cron>().expect_err(text).to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_cron_expression_that_comes_once_in_many_years_is_taken() {
        for text in [
            "0 0 0 29 2 *",
            "0 0 0 29 2 +1",
            "59 59 23 29 2 +0#5",
            "0 0 0 L 2 +6#5",
            "0 0 0 31 12 +6L",
            "0 0 0 30,31 1-3 *",
            "0 0 0 31W 2-3 *",
            "0 0 0 30 2 1",
        ] {
            assert_eq!(text.parse::<Cron>().expect(text).as_str(), text);
        }
    }
}
