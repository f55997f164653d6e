//! When the next attempt comes: a pure function of the policy and the attempt that failed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::message::Record;
use crate::time::{LONGEST_DELAY, duration_text};
use crate::topic::{SettingsError, TopicSettings};

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
        #[serde(with = "duration_text")]
        base: Duration,
        /// What each delay is multiplied by; 1 to 100.
        factor: f64,
        /// The longest delay, before jitter.
        #[serde(with = "duration_text")]
        max: Duration,
        /// The random share added on top; 0 to 1.
        jitter: f64,
    },
    /// Always the same delay.
    Fixed {
        /// The delay.
        #[serde(with = "duration_text")]
        delay: Duration,
        /// The random share added on top; 0 to 1.
        jitter: f64,
    },
    /// The n-th delay of a list; the last one for all later failures.
    List {
        /// The delays, at least one.
        #[serde(with = "durations_text")]
        delays: Vec<Duration>,
        /// The random share added on top; 0 to 1.
        jitter: f64,
    },
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::Exponential {
            base: Duration::from_secs(1),
            factor: 2.0,
            max: Duration::from_secs(600),
            jitter: 0.2,
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
            Self::Fixed { jitter, .. } => *jitter,
            Self::List { delays, jitter } => {
                bound(
                    (1..=100).contains(&delays.len()),
                    "retry.delays",
                    delays.len().to_string(),
                    "1 to 100 delays",
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

/// Chooses the policy of a message whose attempt failed or whose lease ran out: the topic's.
pub fn policy<'a>(_record: &'a Record, settings: &'a TopicSettings) -> &'a RetryPolicy {
    &settings.retry
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
        assert!(
            RetryPolicy::List {
                delays: vec![],
                jitter: 0.0
            }
            .check()
            .is_err()
        );
    }
}
