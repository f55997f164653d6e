//! When the next attempt comes: a pure function of the policy and the attempt that failed.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::message::Record;
use crate::time::{LONGEST_DELAY, duration_text, shorten_to};
use crate::topic::{SettingsError, TopicSettings};

/// What each field is when a policy of its kind leaves it out.
pub(crate) mod default {
    use std::time::Duration;

    pub(crate) const fn base() -> Duration {
        Duration::from_secs(1)
    }

    pub(crate) const fn factor() -> f64 {
        2.0
    }

    pub(crate) const fn max() -> Duration {
        Duration::from_secs(600)
    }

    pub(crate) const fn delay() -> Duration {
        Duration::from_secs(10)
    }

    pub(crate) fn delays() -> Vec<Duration> {
        [10, 60, 600].map(Duration::from_secs).into()
    }

    pub(crate) const fn jitter() -> f64 {
        0.2
    }
}

/// How long after a failed attempt the next one comes.
///
/// Jitter only lengthens: each delay is stretched by a random share between 0 and `jitter`, so that
/// a policy's figure is a promise from below.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum RetryPolicy {
    /// After the n-th failure: min(max, base · factor^(n−1)).
    Exponential {
        /// The first delay.
        #[serde(with = "duration_text", default = "default::base")]
        base: Duration,
        /// What each delay is multiplied by; 1 to 100.
        #[serde(default = "default::factor")]
        factor: f64,
        /// The longest delay, before jitter.
        #[serde(with = "duration_text", default = "default::max")]
        max: Duration,
        /// The random share added on top; 0 to 1.
        #[serde(default = "default::jitter")]
        jitter: f64,
    },
    /// Always the same delay.
    Fixed {
        /// The delay; up to 3653 d.
        #[serde(with = "duration_text", default = "default::delay")]
        delay: Duration,
        /// The random share added on top; 0 to 1.
        #[serde(default = "default::jitter")]
        jitter: f64,
    },
    /// The n-th delay of a list; the last one for all later failures.
    List {
        /// The delays, 1 to 100, each up to 3653 d.
        #[serde(with = "durations_text", default = "default::delays")]
        delays: Vec<Duration>,
        /// The random share added on top; 0 to 1.
        #[serde(default = "default::jitter")]
        jitter: f64,
    },
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::Exponential {
            base: default::base(),
            factor: default::factor(),
            max: default::max(),
            jitter: default::jitter(),
        }
    }
}

impl RetryPolicy {
    /// Gives the delay after the `failures`-th failure (from 1). `random` in 0..1 picks the jitter.
    pub fn delay(&self, failures: u32, random: f64) -> Duration {
        let nth = failures.max(1) - 1;
        let (delay, jitter) = match self {
            Self::Exponential {
                base,
                factor,
                max,
                jitter,
            } => {
                let seconds =
                    base.as_secs_f64() * factor.powi(i32::try_from(nth).unwrap_or(i32::MAX));
                let capped = if seconds < max.as_secs_f64() {
                    Duration::from_secs_f64(seconds)
                } else {
                    *max
                };
                (capped, jitter)
            }
            Self::Fixed { delay, jitter } => (*delay, jitter),
            Self::List { delays, jitter } => {
                let index = (nth as usize).min(delays.len().saturating_sub(1));
                (delays.get(index).copied().unwrap_or_default(), jitter)
            }
        };
        delay.mul_f64(1.0 + jitter * random)
    }

    /// Gives the delay after the `failures`-th failure with a fresh jitter.
    pub fn next_delay(&self, failures: u32) -> Duration {
        self.delay(failures, fastrand::f64())
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// All settings that are out of bounds, each with its key below the topic.
    pub fn check(&self) -> Result<(), Vec<SettingsError>> {
        let mut problems = Vec::new();
        let mut bound = |ok: bool, key, value: String, allowed| {
            if !ok {
                problems.push(SettingsError {
                    key,
                    value,
                    allowed,
                });
            }
        };
        let jitter = match self {
            Self::Exponential {
                base,
                factor,
                max,
                jitter,
            } => {
                bound(
                    *max <= LONGEST_DELAY && base <= max,
                    "retry.max",
                    crate::time::format_duration(*max),
                    "at least retry.base, at most 3653d",
                );
                bound(
                    (1.0..=100.0).contains(factor),
                    "retry.factor",
                    factor.to_string(),
                    "1 to 100",
                );
                *jitter
            }
            Self::Fixed { delay, jitter } => {
                bound(
                    *delay <= LONGEST_DELAY,
                    "retry.delay",
                    crate::time::format_duration(*delay),
                    "up to 3653d",
                );
                *jitter
            }
            Self::List { delays, jitter } => {
                bound(
                    (1..=100).contains(&delays.len()),
                    "retry.delays",
                    delays.len().to_string(),
                    "1 to 100 delays",
                );
                let longest = delays.iter().max().copied().unwrap_or_default();
                bound(
                    longest <= LONGEST_DELAY,
                    "retry.delays",
                    crate::time::format_duration(longest),
                    "each up to 3653d",
                );
                *jitter
            }
        };
        bound(
            (0.0..=1.0).contains(&jitter),
            "retry.jitter",
            jitter.to_string(),
            "0 to 1",
        );
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }
}

/// Reads a policy as JSON with the keys of the configuration: `{"kind": "fixed", "delay": "5s"}`. What
/// is left out has its default there; the kind is then `exponential`. Bounds are checked.
impl FromStr for RetryPolicy {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Self, InvalidPolicy> {
        // The name of an unknown key is as long as its writer likes.
        let invalid = |error: serde_json::Error| InvalidPolicy(shorten_to(&error.to_string(), 256));
        let mut table: serde_json::Map<_, _> = serde_json::from_str(text).map_err(invalid)?;
        table.entry("kind").or_insert_with(|| "exponential".into());
        let policy: Self = serde_json::from_value(table.into()).map_err(invalid)?;
        match policy.check() {
            Ok(()) => Ok(policy),
            Err(problems) => {
                let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
                Err(InvalidPolicy(texts.join("; ")))
            }
        }
    }
}

/// Why a text is not a retry policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a retry policy: {0} (write JSON like {{\"kind\": \"fixed\", \"delay\": \"5s\"}}; kinds are exponential, fixed and list)"
)]
pub struct InvalidPolicy(String);

/// Chooses the policy of a message whose attempt failed or whose lease ran out: its own, else the topic's.
pub fn policy<'a>(record: &'a Record, settings: &'a TopicSettings) -> &'a RetryPolicy {
    record.retry.as_ref().unwrap_or(&settings.retry)
}

/// Serde for a list of durations as texts with units.
mod durations_text {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error, ser::SerializeSeq};

    pub(super) fn serialize<S: Serializer>(all: &[Duration], to: S) -> Result<S::Ok, S::Error> {
        let mut list = to.serialize_seq(Some(all.len()))?;
        for duration in all {
            list.serialize_element(&crate::time::format_duration(*duration))?;
        }
        list.end()
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<Duration>, D::Error> {
        Vec::<String>::deserialize(from)?
            .iter()
            .map(|text| crate::time::parse_duration(text).map_err(D::Error::custom))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_delays_double_up_to_the_maximum() {
        let policy = RetryPolicy::default();
        let seconds = |n| policy.delay(n, 0.0).as_secs();
        assert_eq!(
            [seconds(1), seconds(2), seconds(3), seconds(10)],
            [1, 2, 4, 512]
        );
        assert_eq!(
            [seconds(11), seconds(1000), seconds(u32::MAX)],
            [600, 600, 600]
        );
        assert_eq!(policy.delay(1, 0.999).as_millis(), 1199);
    }

    #[test]
    fn the_last_delay_of_a_list_repeats() {
        let delays = vec![Duration::from_secs(5), Duration::from_secs(60)];
        let policy = RetryPolicy::List {
            delays,
            jitter: 0.0,
        };
        assert_eq!(
            [1, 2, 3].map(|n| policy.delay(n, 0.9).as_secs()),
            [5, 60, 60]
        );
    }

    #[test]
    fn bounds_are_checked() {
        let fixed = |jitter| RetryPolicy::Fixed {
            delay: Duration::ZERO,
            jitter,
        };
        assert!(fixed(0.5).check().is_ok());
        assert!(fixed(f64::NAN).check().is_err());
        let list = |delays| RetryPolicy::List {
            delays,
            jitter: 0.0,
        };
        assert!(list(vec![]).check().is_err());
        assert!(list(vec![LONGEST_DELAY; 100]).check().is_ok());
        let longer = LONGEST_DELAY + Duration::from_nanos(1);
        assert!(list(vec![Duration::ZERO, longer]).check().is_err());
        let fixed = RetryPolicy::Fixed {
            delay: longer,
            jitter: 0.0,
        };
        assert!(fixed.check().is_err());
    }

    #[test]
    fn json_may_leave_out_what_has_a_default() {
        assert_eq!("{}".parse(), Ok(RetryPolicy::default()));
        let fixed = RetryPolicy::Fixed {
            delay: Duration::from_secs(5),
            jitter: 0.2,
        };
        assert_eq!(r#"{"kind":"fixed","delay":"5s"}"#.parse(), Ok(fixed));
        let list = RetryPolicy::List {
            delays: default::delays(),
            jitter: 0.0,
        };
        assert_eq!(r#"{"kind":"list","jitter":0}"#.parse(), Ok(list));
    }

    #[test]
    fn json_that_is_no_policy_says_why() {
        for (text, part) in [
            ("", "EOF"),
            ("[]", "map"),
            (r#"{"kind":"fixd"}"#, "fixd"),
            (r#"{"kind":"fixed","base":"5s"}"#, "base"),
            (r#"{"delay":"5s"}"#, "delay"),
            (r#"{"base":5}"#, "5"),
            (r#"{"base":"5"}"#, "unit"),
            (
                r#"{"factor":0.5}"#,
                "retry.factor = 0.5: allowed is 1 to 100",
            ),
            (r#"{"kind":"list","delays":[]}"#, "1 to 100 delays"),
        ] {
            let error = text.parse::<RetryPolicy>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn an_error_repeats_no_more_than_the_beginning_of_a_key() {
        let policy = format!(r#"{{"{}": 1}}"#, "k".repeat(10_000));
        let error = policy.parse::<RetryPolicy>().unwrap_err().to_string();
        assert!(
            error.contains("unknown field `kkk") && error.len() < 500,
            "{error}"
        );
    }
}
