//! The filter of a garbage job or a search: the messages in garbage that it takes.

use lisa_core::message::OrderingKey;
use lisa_core::state::GarbageReason;
use lisa_core::time::UnixMs;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The longest error text of a filter, in characters.
pub(crate) const LONGEST_ERROR: usize = 200;

/// The messages in garbage to take: those that match all conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = GarbageFilter)]
pub(crate) struct Filter {
    /// Text in the last error. `#`, `*` and `…` stand for any text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// The ordering key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// The reason: rejected, exhausted or expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<GarbageReason>)]
    pub(crate) reason: Option<String>,
    /// The earliest time at which they moved to garbage, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
    /// The end of the times at which they moved to garbage, in RFC 3339: they moved before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<String>,
}

/// A filter that was checked.
pub(crate) struct Conditions {
    error: Option<Vec<String>>,
    pub(super) key: Option<OrderingKey>,
    reason: Option<GarbageReason>,
    pub(super) from: UnixMs,
    /// The last time that is taken: one less than that of the filter, which is the end as in lists.
    pub(super) until: UnixMs,
}

impl Filter {
    /// Checks the filter, and returns its conditions.
    ///
    /// # Errors
    /// [`InvalidFilter`].
    pub(crate) fn conditions(&self) -> Result<Conditions, InvalidFilter> {
        let invalid = |field, error: &dyn std::fmt::Display| InvalidFilter {
            field,
            error: error.to_string(),
        };
        let time = |field, text: &Option<String>, default: UnixMs| match text {
            Some(text) => text.parse().map_err(|error| invalid(field, &error)),
            None => Ok(default),
        };
        let error = self.error.as_deref().map(|error| {
            if error.chars().count() > LONGEST_ERROR {
                let why = format!("must be 1 to {LONGEST_ERROR} characters");
                return Err(invalid("error", &why));
            }
            let parts = error.split(['#', '*', '…']).filter(|part| !part.is_empty());
            let parts: Vec<String> = parts.map(str::to_owned).collect();
            if parts.is_empty() {
                return Err(invalid("error", &"needs text beside wildcards"));
            }
            Ok(parts)
        });
        let to = time("to", &self.to, UnixMs::new(1 << 53))?;
        let from = time("from", &self.from, UnixMs::default())?;
        if from >= to {
            return Err(invalid("from", &"must be before to"));
        }
        let key = self.key.as_deref().map(str::parse).transpose();
        let reason = self.reason.as_deref().map(str::parse).transpose();
        Ok(Conditions {
            error: error.transpose()?,
            key: key.map_err(|error| invalid("key", &error))?,
            reason: reason.map_err(|error| invalid("reason", &error))?,
            from,
            until: UnixMs::new(to.get().saturating_sub(1)),
        })
    }

    /// Returns true if it has no conditions.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the filter.
    ///
    /// # Errors
    /// [`InvalidFilter`].
    pub(crate) fn check(&self) -> Result<(), InvalidFilter> {
        self.conditions().map(|_| ())
    }
}

impl Conditions {
    /// Returns true if a message matches. It has no `reason` and `error` if they cannot be read.
    pub(super) fn matches(
        &self,
        reason: Option<GarbageReason>,
        error: Option<&str>,
        key: Option<&OrderingKey>,
    ) -> bool {
        if self.key.is_some() && self.key.as_ref() != key {
            return false;
        }
        let Some(reason) = reason else {
            // Only a filter without conditions on the reason takes it.
            return self.error.is_none() && self.reason.is_none();
        };
        if self.reason.is_some_and(|wanted| wanted != reason) {
            return false;
        }
        let mut rest = error.unwrap_or_default();
        self.error.iter().flatten().all(|part| {
            let found = rest.find(part.as_str());
            if let Some(at) = found {
                rest = &rest[at + part.len()..];
            }
            found.is_some()
        })
    }
}

/// A condition of a filter that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {error}")]
pub(crate) struct InvalidFilter {
    pub(crate) field: &'static str,
    pub(crate) error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(error: &str, found: &str) -> bool {
        let filter = Filter {
            error: Some(error.to_owned()),
            ..Filter::default()
        };
        let reason = Some(GarbageReason::Exhausted);
        filter
            .conditions()
            .unwrap()
            .matches(reason, Some(found), None)
    }

    #[test]
    fn an_error_matches_by_its_parts_in_order() {
        let error = "connect to 10.0.0.1:443 timed out";
        for pattern in [
            "timed out",
            "connect to #:443",
            "to*out",
            "connect to #… out",
        ] {
            assert!(matches(pattern, error), "{pattern}");
        }
        for pattern in ["timed in", "out*connect", "connect to #:80"] {
            assert!(!matches(pattern, error), "{pattern}");
        }
    }

    #[test]
    fn a_key_matches_only_as_a_whole() {
        let filter = Filter {
            key: Some("customer-7".to_owned()),
            ..Filter::default()
        };
        let conditions = filter.conditions().unwrap();
        let matches = |key: Option<&str>| {
            let key = key.map(|key| key.parse().unwrap());
            conditions.matches(None, None, key.as_ref())
        };
        assert!(matches(Some("customer-7")));
        for other in [None, Some("customer-70"), Some("Customer-7")] {
            assert!(!matches(other), "{other:?}");
        }
    }

    #[test]
    fn a_filter_takes_what_moved_at_its_start_and_nothing_at_its_end() {
        let filter = Filter {
            from: Some("2026-11-21T09:30:00.000Z".to_owned()),
            to: Some("2026-11-21T09:30:00.002Z".to_owned()),
            ..Filter::default()
        };
        let conditions = filter.conditions().unwrap();
        let times = [conditions.from, conditions.until].map(|time| time.to_string());
        assert_eq!(
            times,
            ["2026-11-21T09:30:00.000Z", "2026-11-21T09:30:00.001Z"]
        );
    }

    #[test]
    fn a_filter_that_cannot_be_used_names_its_field() {
        let wrong = |filter: Filter| filter.check().unwrap_err().field;
        let text = |text: &str| Some(text.to_owned());
        let some = Filter::default;
        assert_eq!(
            wrong(Filter {
                error: text("#*"),
                ..some()
            }),
            "error"
        );
        assert_eq!(
            wrong(Filter {
                error: Some("x".repeat(201)),
                ..some()
            }),
            "error"
        );
        assert_eq!(
            wrong(Filter {
                key: text(""),
                ..some()
            }),
            "key"
        );
        assert_eq!(
            wrong(Filter {
                reason: text("bored"),
                ..some()
            }),
            "reason"
        );
        assert_eq!(
            wrong(Filter {
                from: text("yesterday"),
                ..some()
            }),
            "from"
        );
        assert_eq!(
            wrong(Filter {
                to: text("soon"),
                ..some()
            }),
            "to"
        );
        assert_eq!(some().check(), Ok(()));
    }
}
