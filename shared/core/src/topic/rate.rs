//! The rate limit of a group's deliveries: a count for each period.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::InvalidName;
use crate::names::words;

words!(
    /// The period of a rate.
    RatePeriod, "period of a rate", {
        /// A second.
        Second = "s",
        /// A minute.
        Minute = "m",
        /// An hour.
        Hour = "h",
    }
);

impl RatePeriod {
    /// Returns its length in ms.
    const fn millis(self) -> u32 {
        match self {
            Self::Second => 1000,
            Self::Minute => 60_000,
            Self::Hour => 3_600_000,
        }
    }
}

/// The number of deliveries that a group gets in a period, evenly spaced. Written `100/s`, `6000/m`, `5/h`.
///
/// The period is only the unit of the count: `60/m` and `1/s` are the same rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate {
    /// The deliveries in a period. 1 to [`Rate::MAX_COUNT`].
    pub count: u32,
    /// The period.
    pub per: RatePeriod,
}

crate::text_value!(Rate, "rate", "1 to 1000000 per period";);

impl Rate {
    /// The largest count.
    pub const MAX_COUNT: u32 = 1_000_000;
    /// The format, for errors.
    pub(super) const RULE: &str =
        "a whole number from 1 to 1000000 and a period, like 100/s, 6000/m or 5/h";

    /// Returns the time between two deliveries, in ms.
    pub fn interval(self) -> f64 {
        f64::from(self.per.millis()) / f64::from(self.count)
    }

    /// Returns the default burst, which is how many deliveries may come together after a quiet time. It is what the rate
    /// allows in 50 ms, rounded down, and at least 1.
    pub fn default_burst(self) -> u32 {
        let count = u64::from(self.count) * 50 / u64::from(self.per.millis());
        u32::try_from(count).unwrap_or(u32::MAX).max(1)
    }

    /// Returns whether the count is within its bounds.
    pub(super) fn is_in_bounds(self) -> bool {
        (1..=Self::MAX_COUNT).contains(&self.count)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, self.per)
    }
}

impl FromStr for Rate {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let read = || {
            let (count, per) = text.split_once('/')?;
            // Parsing would also accept a sign.
            let digits = count.bytes().all(|byte| byte.is_ascii_digit());
            let count = count.parse().ok().filter(|_| digits)?;
            let per = per.parse().ok()?;
            Some(Self { count, per }).filter(|rate| rate.is_in_bounds())
        };
        read().ok_or_else(|| InvalidName::new("rate", Self::RULE, text))
    }
}

impl TryFrom<String> for Rate {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    #[test]
    fn a_rate_is_a_count_and_a_period() {
        for text in ["1/s", "100/s", "6000/m", "5/h", "1000000/s"] {
            assert_eq!(rate(text).to_string(), text);
            let json = serde_json::to_string(&rate(text)).unwrap();
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<Rate>(&json).unwrap(), rate(text));
        }
        for bad in [
            "",
            "100",
            "/s",
            "0/s",
            "1000001/s",
            "+5/s",
            "-5/s",
            "1.5/s",
            "5 /s",
            "5/ s",
            "5/min",
            "5/S",
            "5/s/s",
            "99999999999/s",
        ] {
            let error = bad.parse::<Rate>().expect_err(bad);
            assert!(error.to_string().contains("like 100/s"), "{error}");
        }
    }

    #[test]
    fn the_interval_is_in_milliseconds() {
        let intervals = ["100/s", "6000/m", "1/h", "1000000/s"].map(|text| rate(text).interval());
        assert_eq!(intervals, [10.0, 10.0, 3_600_000.0, 0.001]);
    }

    #[test]
    fn the_default_burst_is_what_50_ms_allow_and_at_least_one() {
        let bursts =
            ["100/s", "6000/m", "39/s", "5/h", "1000000/s"].map(|text| rate(text).default_burst());
        assert_eq!(bursts, [5, 5, 1, 1, 50_000]);
    }
}
