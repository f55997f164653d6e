//! Cron expressions of jobs: six fields, seconds first, in UTC.
//!
//! Only checks them; the manager's schedule runs them with the same parser.

use std::fmt;
use std::str::FromStr;

use croner::parser::{CronParser, Seconds, Year};

use crate::time::shorten;

/// A checked cron expression: second, minute, hour, day of month, month, day of week.
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
    #[error("not a cron expression: {0}")]
    Pattern(String),
}

impl Cron {
    /// Gives the expression, fields separated by one space.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Cron {
    type Err = InvalidCron;

    fn from_str(text: &str) -> Result<Self, InvalidCron> {
        let fields: Vec<_> = text.split_whitespace().collect();
        if fields.len() != 6 {
            return Err(InvalidCron::Fields(fields.len()));
        }
        // The parser takes an empty part for no time at all, and then looks for one for very long.
        if let Some(field) = fields
            .iter()
            .find(|field| field.split(',').any(str::is_empty))
        {
            let reason = format!("nothing before or after a comma in {:?}", shorten(field));
            return Err(InvalidCron::Pattern(reason));
        }
        let text = fields.join(" ");
        CronParser::builder()
            .seconds(Seconds::Required)
            .year(Year::Disallowed)
            .build()
            .parse(&text)
            .map_err(|error| InvalidCron::Pattern(error.to_string()))?;
        Ok(Self(text))
    }
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
            ("61 * * * * *", "not a cron expression"),
            ("a * * * * *", "not a cron expression"),
            ("0 , * 5 * 2#3", "nothing before or after a comma in \",\""),
            ("0 1, * * * *", "nothing before or after a comma in \"1,\""),
        ] {
            let error = text.parse::<Cron>().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
