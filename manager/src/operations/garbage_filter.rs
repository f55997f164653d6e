//! The filter of a garbage job or a search: the messages in garbage that it takes.

use std::fmt;
use std::str::FromStr;

use lisa_core::broker::TimeRange;
use lisa_core::fields::{Description, Reader, Value as _, optional_text, plain};
use lisa_core::message::OrderingKey;
use lisa_core::state::GarbageReason;
use lisa_core::time::UnixMs;
use lisa_core::{fields, text_value};
use serde::{Deserialize, Serialize};

use super::past_time::PastTime;

/// The longest error pattern, in characters.
pub(crate) const LONGEST_ERROR: usize = 200;

fields! {
    /// The messages in garbage to take: those that match all conditions.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub(crate) struct Filter, schema = "GarbageFilter", check = ordered {
        /// Only messages in garbage whose last error contains this text (1 to 200 characters); `#`, `*` and `…` stand for any text.
        [serde(with = "optional_text", skip_serializing_if = "Option::is_none")]
        error: Option<ErrorPattern> = None;
        /// Only messages with this ordering key.
        [serde(skip_serializing_if = "Option::is_none")]
        key: Option<OrderingKey> = None;
        /// Only messages in garbage with this reason.
        [serde(skip_serializing_if = "Option::is_none")]
        reason: Option<GarbageReason> = None;
        /// Only messages whose time is at or after this one, such as 2026-11-21T09:30:00Z, or 24h for the last 24 hours. The time of a
        /// message in garbage is when it moved there.
        [serde(with = "optional_text", skip_serializing_if = "Option::is_none")]
        from: Option<PastTime> = None;
        /// Only messages whose time is before this one.
        [serde(with = "optional_text", skip_serializing_if = "Option::is_none")]
        to: Option<PastTime> = None;
    }
}

fn ordered(filter: &Filter, reader: &mut impl Reader) {
    if let (Some(from), Some(to)) = (filter.from, filter.to)
        && from >= to
    {
        let message = format!("must be before {}", reader.spell("to"));
        reader.problem("from", from.show(), message);
    }
}

impl Filter {
    /// Returns the conditions by name, as links, options and the audit log spell them.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
        let json = serde_json::to_value(self).expect("a filter is JSON");
        let fields = Description::all::<Self>().into_iter();
        fields.filter_map(move |field| Some((field.name, plain(json.get(field.name)?))))
    }

    /// Returns the conditions as one text, the longest last: the audit log shortens texts. Empty without conditions.
    pub(crate) fn summary(&self) -> String {
        let texts = self.texts().map(|(name, text)| format!("{name} {text}"));
        let mut texts: Vec<_> = texts.collect();
        texts.sort_by_key(String::len);
        texts.join(", ")
    }

    /// Returns true if it has no conditions.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if messages must be examined one by one: if it has conditions on more than their time.
    pub(crate) fn examines(&self) -> bool {
        let (from, to) = (None, None);
        let rest = Self {
            from,
            to,
            ..self.clone()
        };
        !rest.is_empty()
    }

    /// Returns a condition that is only for garbage. Messages of all states have a key and a time.
    pub(crate) fn only_for_garbage(&self) -> Option<&'static str> {
        let mut rest = Self {
            key: None,
            from: None,
            to: None,
            ..self.clone()
        }
        .texts();
        rest.next().map(|(name, _)| name)
    }

    /// Returns the range of times to list.
    pub(crate) fn range(&self, newest_first: bool) -> TimeRange {
        TimeRange {
            from: self.from.map(|from| from.0),
            to: self.to.map(|to| to.0),
            newest_first,
        }
    }

    /// Returns the first time that it takes.
    pub(super) fn first(&self) -> UnixMs {
        self.from.map(|from| from.0).unwrap_or_default()
    }

    /// Returns the last time that it takes: one less than `to`, which is the end as in lists.
    pub(super) fn last(&self) -> UnixMs {
        let end = self.to.map_or(1 << 53, |to| to.0.get());
        UnixMs::new(end.saturating_sub(1))
    }

    /// Returns true if a message matches, whatever its time. It has no `reason` and `error` if they cannot be read.
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
        let error = error.unwrap_or_default();
        self.reason.is_none_or(|wanted| wanted == reason) && { self.error.as_ref() }
            .is_none_or(|pattern| pattern.matches(error))
    }
}

/// A text to find in an error: `#`, `*` and `…` stand for any text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorPattern(String);

impl ErrorPattern {
    /// Returns the texts that must occur in this order.
    fn parts(&self) -> impl Iterator<Item = &str> {
        let parts = self.0.split(['#', '*', '…']);
        parts.filter(|part| !part.is_empty())
    }

    fn matches(&self, mut error: &str) -> bool {
        self.parts().all(|part| match error.split_once(part) {
            Some((_, rest)) => {
                error = rest;
                true
            }
            None => false,
        })
    }
}

impl FromStr for ErrorPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.chars().count() > LONGEST_ERROR {
            return Err(format!("must be 1 to {LONGEST_ERROR} characters"));
        }
        let pattern = Self(text.to_owned());
        if pattern.parts().next().is_none() {
            return Err("needs text beside wildcards".to_owned());
        }
        Ok(pattern)
    }
}

impl fmt::Display for ErrorPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_value!(ErrorPattern, "text", "";);

#[cfg(test)]
mod tests {
    use lisa_core::fields::{Fields, JsonReader};
    use serde_json::json;

    use super::*;

    fn matches(error: &str, found: &str) -> bool {
        let filter = Filter {
            error: Some(error.parse().unwrap()),
            ..Filter::default()
        };
        filter.matches(Some(GarbageReason::Exhausted), Some(found), None)
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
            key: Some("customer-7".parse().unwrap()),
            ..Filter::default()
        };
        let matches = |key: Option<&str>| {
            let key = key.map(|key| key.parse().unwrap());
            filter.matches(None, None, key.as_ref())
        };
        assert!(matches(Some("customer-7")));
        for other in [None, Some("customer-70"), Some("Customer-7")] {
            assert!(!matches(other), "{other:?}");
        }
    }

    #[test]
    fn a_filter_takes_what_moved_at_its_start_and_nothing_at_its_end() {
        let filter = Filter {
            from: Some("2026-11-21T09:30:00.000Z".parse().unwrap()),
            to: Some("2026-11-21T09:30:00.002Z".parse().unwrap()),
            ..Filter::default()
        };
        let times = [filter.first(), filter.last()].map(|time| time.to_string());
        assert_eq!(
            times,
            ["2026-11-21T09:30:00.000Z", "2026-11-21T09:30:00.001Z"]
        );
    }

    #[test]
    fn a_filter_that_cannot_be_used_names_its_field() {
        let at = "2026-11-21T09:30:00Z";
        for (wrong, field) in [
            (json!({ "error": "#*" }), "error"),
            (json!({ "error": "x".repeat(201) }), "error"),
            (json!({ "key": "" }), "key"),
            (json!({ "reason": "bored" }), "reason"),
            (json!({ "from": "yesterday" }), "from"),
            (json!({ "from": at, "to": at }), "from"),
            (json!({ "to": "soon" }), "to"),
        ] {
            let mut reader = JsonReader::new(wrong.as_object().unwrap());
            Filter::read_fields(&mut reader);
            let problems = reader.finish();
            let fields: Vec<_> = problems.iter().map(|problem| &*problem.field).collect();
            assert_eq!(fields, [field], "{wrong}");
        }
    }

    #[test]
    fn a_filter_is_stored_and_spelled_as_it_was_given() {
        let given = json!({
            "error": "timed out after # ms", "key": "customer-7", "reason": "expired",
            "from": "2026-11-21T09:30:00.000Z", "to": "2026-11-22T09:30:00.000Z",
        });
        let filter: Filter = serde_json::from_value(given.clone()).unwrap();
        assert_eq!(serde_json::to_value(&filter).unwrap(), given);
        let texts: Vec<_> = filter.texts().collect();
        assert_eq!(texts.len(), Description::all::<Filter>().len());
        for (name, text) in texts {
            assert_eq!(given[name], text);
        }
        assert!(
            filter
                .summary()
                .starts_with("key customer-7, reason expired, ")
        );
        assert_eq!(json!(Filter::default()), json!({}));
    }
}
