//! Cron expressions: six fields, seconds first.
//!
//! Only validates them. `zone` computes when they fire. The manager's job scheduler uses the same parser.

mod warnings;
mod zone;

use std::fmt;
use std::str::FromStr;

use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};

pub use zone::{InvalidTimeZone, TimeZone};

use lisa_core::time::{shorten, shorten_to};

/// Enough years for each date, including 29 February, to fall on each day of the week.
const YEARS: std::ops::Range<i32> = 2001..2029;

/// The fields in order, each with its allowed values.
const FIELDS: [(&str, &str); 6] = [
    ("second", "0 to 59"),
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day", "1 to 31 and L"),
    ("month", "1 to 12 and JAN to DEC"),
    ("weekday", "0 to 7 (0 and 7 are Sunday) and SUN to SAT"),
];

/// A valid cron expression: second, minute, hour, day of month, month, day of week. It fires repeatedly.
#[derive(Clone, Debug)]
pub struct Cron {
    text: String,
    parsed: croner::Cron,
}

impl PartialEq for Cron {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Cron {}

/// The longest expression in bytes.
const LONGEST: usize = 512;

/// The longest expression in bytes that an error shows.
const LONGEST_EXAMPLE: usize = 100;

/// The reason why a text is not a cron expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCron {
    /// The text is too long.
    #[error("has {0} bytes, must be at most {LONGEST}")]
    Length(usize),
    /// The text has the five fields of cron, without seconds.
    #[error("expected six fields, with seconds first, such as {expression:?}")]
    NoSeconds {
        /// The same expression, with seconds.
        expression: String,
    },
    /// The text does not have six fields.
    #[error(
        "expected six fields (second minute hour day month weekday, like \"0 */5 * * * *\"), found {0}"
    )]
    Fields(usize),
    /// A field cannot be parsed.
    #[error(
        "{name} {text:?}: expected {allowed}, or *, or lists, ranges and steps of these, like \"1,5\", \"1-5\" and \"*/5\""
    )]
    Field {
        /// The name of the field.
        name: &'static str,
        /// The text of the field.
        text: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// Each field is valid, but not their combination.
    #[error("not a cron expression: {0}")]
    Pattern(String),
    /// No date matches the day, month and weekday, so the expression never fires.
    #[error(
        "never fires: no date has day {day:?}, month {month:?} and weekday {weekday:?}; expected a date that exists, \
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
    /// Returns the expression, with one space between fields.
    pub fn as_str(&self) -> &str {
        &self.text
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
        if text.len() > LONGEST {
            return Err(InvalidCron::Length(text.len()));
        }
        let fields: Vec<_> = text.split_whitespace().collect();
        let [_, _, _, day, month, weekday] = fields[..] else {
            return Err(with_seconds(&fields).unwrap_or(InvalidCron::Fields(fields.len())));
        };
        let cron = read(&fields)?;
        if !has_date(&cron) {
            return Err(InvalidCron::NoDate {
                day: shorten(day),
                month: shorten(month),
                weekday: shorten(weekday),
            });
        }
        Ok(Self {
            text: fields.join(" "),
            parsed: cron,
        })
    }
}

/// Returns the error of five fields that are valid behind a second.
fn with_seconds(fields: &[&str]) -> Option<InvalidCron> {
    if fields.len() + 1 != FIELDS.len() {
        return None;
    }
    let expression = format!("0 {}", fields.join(" "));
    let is_valid = expression.len() <= LONGEST_EXAMPLE && expression.parse::<Cron>().is_ok();
    is_valid.then_some(InvalidCron::NoSeconds { expression })
}

/// Parses the fields. If they are wrong, parses each one alone: the parser does not report which one it rejects.
fn read(fields: &[&str]) -> Result<croner::Cron, InvalidCron> {
    let error = match parse(fields) {
        Ok(cron) => return Ok(cron),
        Err(error) => error,
    };
    let is_wrong = |index: usize| {
        let mut alone = ["*"; FIELDS.len()];
        alone[index] = fields[index];
        parse(&alone).is_err()
    };
    Err(match (0..FIELDS.len()).find(|&index| is_wrong(index)) {
        Some(index) => {
            let (name, allowed) = FIELDS[index];
            let text = shorten(fields[index]);
            InvalidCron::Field {
                name,
                text,
                allowed,
            }
        }
        // The error may quote a field of any length.
        None => InvalidCron::Pattern(shorten_to(&error.to_string(), 200)),
    })
}

/// Parses the fields together.
fn parse(fields: &[&str]) -> Result<croner::Cron, CronError> {
    // An empty part matches no time, and the parser would search for one for a very long time.
    if fields
        .iter()
        .any(|field| field.split(',').any(str::is_empty))
    {
        return Err(CronError::EmptyPattern);
    }
    parser().parse(&fields.join(" "))
}

/// Returns whether any date matches. If none does, the parser searches up to the year 5000, for about a second, each time it
/// computes the next time. Seconds, minutes and hours need no check: every value that the parser accepts occurs.
fn has_date(cron: &croner::Cron) -> bool {
    let pattern = &cron.pattern;
    let in_month = |year, month| {
        matches!(pattern.month_match(month), Ok(true))
            // The parser returns an error for a day that the month does not have.
            && (1..=31).any(|day| matches!(pattern.day_match(year, month, day), Ok(true)))
    };
    YEARS
        .into_iter()
        .any(|year| (1..=12).any(|month| in_month(year, month)))
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
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
            (
                "*/5  * * * *",
                "expected six fields, with seconds first, such as \"0 */5 * * * *\"",
            ),
            ("60 * * * *", "found 5"),
            (&format!("{}5 * * * *", "1,".repeat(50)), "found 5"),
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
            (&"1,".repeat(300), "has 600 bytes, must be at most 512"),
        ] {
            let error = text.parse::<Cron>().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn the_error_of_a_long_field_is_short() {
        let days = "FRI,".repeat(100);
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
                "no date has day \"30\", month \"2\" and weekday \"*\"; expected a date that exists",
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
