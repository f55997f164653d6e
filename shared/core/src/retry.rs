//! The retry policy (backoff): computes the delay before the next attempt from the number of failures.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value as Json, json};

use crate::fields::{
    self, Any, Field, FieldProblem, Fields, Given, JsonReader, Reader, Value, within,
};
use crate::names::words;
use crate::time::{LONGEST_DELAY, duration_text, format_duration, shorten_to};

/// The policy for the delay between a failed attempt and the next one.
///
/// Jitter only lengthens a delay, by a random share between 0 and `jitter`. So a policy's figure is a lower bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "lowercase", try_from = "Json")]
pub enum RetryPolicy {
    /// Exponential backoff. After the n-th failure: min(max, base · factor^(n−1)).
    Exponential {
        /// The first delay; up to `max`. By default 1 s.
        #[serde(serialize_with = "duration_text::serialize")]
        #[cfg_attr(feature = "openapi", schema(value_type = String))]
        base: Duration,
        /// The factor from one delay to the next; 1 to 100. By default 2.
        factor: f64,
        /// The longest delay, before jitter; up to 3653 d. By default 10 min.
        #[serde(serialize_with = "duration_text::serialize")]
        #[cfg_attr(feature = "openapi", schema(value_type = String))]
        max: Duration,
        /// The random share added on top; 0 to 1. By default 0.2.
        jitter: f64,
    },
    /// Always the same delay.
    Fixed {
        /// The delay; up to 3653 d. By default 10 s.
        #[serde(serialize_with = "duration_text::serialize")]
        #[cfg_attr(feature = "openapi", schema(value_type = String))]
        delay: Duration,
        /// The random share added on top; 0 to 1. By default 0.2.
        jitter: f64,
    },
    /// The n-th delay of a list; the last one for all later failures.
    List {
        /// The delays, 1 to 100, each up to 3653 d. By default 10 s, 1 min, 10 min.
        #[serde(serialize_with = "as_texts")]
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
        delays: Vec<Duration>,
        /// The random share added on top; 0 to 1. By default 0.2.
        jitter: f64,
    },
}

words!(
    /// The kind of a retry policy.
    #[derive(Default)]
    RetryKind, "kind of a retry policy", {
        /// Exponential backoff.
        #[default]
        Exponential = "exponential",
        /// Always the same delay.
        Fixed = "fixed",
        /// A list of delays.
        List = "list",
    }
);

/// Exponential backoff from 1 s to 10 min.
impl Default for RetryPolicy {
    fn default() -> Self {
        Self::read_fields(&mut JsonReader::new(&Map::new()))
    }
}

impl Fields for RetryPolicy {
    fn read_fields(from: &mut impl Reader) -> Self {
        let field = Field::new(
            "kind",
            RetryKind::Exponential,
            "The kind of policy: exponential backoff, one delay, or a list of delays.",
        );
        let policy = match from.read(field, Any) {
            RetryKind::Exponential => Self::Exponential {
                base: from.read(
                    Field::new(
                        "base",
                        Duration::from_secs(1),
                        "With kind `exponential`: the first delay, up to `max`.",
                    ),
                    within(..=LONGEST_DELAY),
                ),
                factor: from.read(
                    Field::new(
                        "factor",
                        2.0,
                        "With kind `exponential`: the factor from each delay to the next.",
                    ),
                    within(1.0..=100.0),
                ),
                max: from.read(
                    Field::new(
                        "max",
                        Duration::from_mins(10),
                        "With kind `exponential`: the longest delay, before jitter.",
                    ),
                    within(..=LONGEST_DELAY),
                ),
                jitter: jitter(from),
            },
            RetryKind::Fixed => Self::Fixed {
                delay: from.read(
                    Field::new(
                        "delay",
                        Duration::from_secs(10),
                        "With kind `fixed`: every delay.",
                    ),
                    within(..=LONGEST_DELAY),
                ),
                jitter: jitter(from),
            },
            RetryKind::List => Self::List {
                delays: from.read(
                    Field::new(
                        "delays",
                        [10, 60, 600].map(Duration::from_secs).into(),
                        "With kind `list`: 1 to 100 delays in order; the last one repeats.",
                    ),
                    within(..=LONGEST_DELAY),
                ),
                jitter: jitter(from),
            },
        };
        match &policy {
            Self::Exponential { base, max, .. } if base > max => {
                let message = format!("must be at least base, which is {}", format_duration(*base));
                from.problem("max", max.show(), message);
            }
            Self::List { delays, .. } if !(1..=100).contains(&delays.len()) => {
                from.problem("delays", delays.show(), "must have 1 to 100 delays".into());
            }
            _ => {}
        }
        policy
    }
}

fn jitter(from: &mut impl Reader) -> f64 {
    let field = Field::new(
        "jitter",
        0.2,
        "Each delay is lengthened by a random share of up to this.",
    );
    from.read(field, within(0.0..=1.0))
}

impl RetryPolicy {
    /// Returns the delay after the `failures`-th failure (from 1). `random` in 0..1 determines the jitter.
    pub fn delay(&self, failures: u32, random: f64) -> Duration {
        let nth = failures.max(1) - 1;
        let (delay, jitter) = match self {
            Self::Exponential {
                base,
                factor,
                max,
                jitter,
            } => {
                // The power may be infinite, and zero times infinity is no number.
                let power = factor.powi(i32::try_from(nth).unwrap_or(i32::MAX));
                let seconds = base.as_secs_f64() * power;
                let capped = if base.is_zero() {
                    Duration::ZERO
                } else if seconds < max.as_secs_f64() {
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

    /// Returns the delay after the `failures`-th failure (from 1), with random jitter.
    pub fn next_delay(&self, failures: u32) -> Duration {
        self.delay(failures, fastrand::f64())
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// Returns all fields that are out of bounds.
    pub fn check(&self) -> Result<(), Vec<FieldProblem>> {
        fields::check_all(self)
    }
}

/// Parses a policy from JSON with the keys of the configuration: `{"kind": "fixed", "delay": "5s"}`. Omitted fields have
/// their defaults; an omitted kind is `exponential`. Bounds are checked.
impl FromStr for RetryPolicy {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Self, InvalidPolicy> {
        let json: Json =
            serde_json::from_str(text).map_err(|error| InvalidPolicy(error.to_string()))?;
        json.try_into()
    }
}

impl TryFrom<Json> for RetryPolicy {
    type Error = InvalidPolicy;

    fn try_from(json: Json) -> Result<Self, InvalidPolicy> {
        let Json::Object(object) = json else {
            return Err(InvalidPolicy("expected an object".into()));
        };
        let mut reader = JsonReader::new(&object);
        let policy = Self::read_fields(&mut reader);
        let problems: Vec<_> = reader.finish().iter().map(ToString::to_string).collect();
        if problems.is_empty() {
            return Ok(policy);
        }
        // An unknown key, which the error repeats, may have any length.
        Err(InvalidPolicy(shorten_to(&problems.join("; "), 256)))
    }
}

impl Value for RetryPolicy {
    const KIND: &'static str = "JSON";

    fn allowed() -> String {
        "JSON like `{\"kind\": \"fixed\", \"delay\": \"5s\"}`".into()
    }

    fn read(given: Given<'_>) -> Result<Self, String> {
        let policy = match given {
            Given::Text(text) => text.parse(),
            Given::Json(json) => json.clone().try_into(),
        };
        policy.map_err(|error: InvalidPolicy| error.to_string())
    }

    fn show(&self) -> Json {
        serde_json::to_value(self).expect("a policy is JSON")
    }

    fn schema() -> Json {
        json!({ "type": "object" })
    }
}

/// The error for a text that is not a retry policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a retry policy: {0} (write JSON like {{\"kind\": \"fixed\", \"delay\": \"5s\"}}; kinds are exponential, fixed and list)"
)]
pub struct InvalidPolicy(String);

fn as_texts<S: Serializer>(delays: &[Duration], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(delays.iter().map(|delay| format_duration(*delay)))
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
    fn without_a_first_delay_no_retry_waits() {
        let policy = RetryPolicy::Exponential {
            base: Duration::ZERO,
            factor: 100.0,
            max: Duration::from_hours(1),
            jitter: 0.2,
        };
        for failures in [1, 2, 155, 156, u32::MAX] {
            assert_eq!(policy.delay(failures, 1.0), Duration::ZERO, "{failures}");
        }
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
        let longer = LONGEST_DELAY + Duration::from_millis(1);
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
            delays: [10, 60, 600].map(Duration::from_secs).into(),
            jitter: 0.0,
        };
        assert_eq!(r#"{"kind":"list","jitter":0}"#.parse(), Ok(list));
    }

    #[test]
    fn json_that_is_no_policy_says_why() {
        for (text, part) in [
            ("", "EOF"),
            ("[]", "expected an object"),
            (r#"{"kind":"fixd"}"#, "fixd"),
            (r#"{"kind":"fixed","base":"5s"}"#, "base"),
            (r#"{"delay":"5s"}"#, "delay"),
            (r#"{"base":5}"#, "5"),
            (r#"{"base":"5"}"#, "unit"),
            (r#"{"factor":0.5}"#, "factor = 0.5: must be 1.0 to 100.0"),
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
            error.contains("kkk… = 1: unknown field") && error.len() < 500,
            "{error}"
        );
    }
}
