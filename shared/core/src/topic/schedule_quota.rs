//! The quota of a client: the largest number of schedules whose names it reaches.
//!
//! Schedules count by their names, not by their topics: a script can count the names that match a pattern, but would have to read each
//! definition to learn its topic.

use std::fmt;

use serde_json::Value as Json;

use crate::fields::{Field, TableReader, within};
use crate::topic::NamePattern;

/// The largest number of schedules that are stored.
pub const MAX_SCHEDULES: usize = 100_000;

/// The largest number of stored schedules for a client whose names are limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleQuota {
    /// The names that count, sorted, without patterns that others cover: no name matches two of them.
    names: Vec<NamePattern>,
    max_schedules: u32,
}

/// The error that no schedule is left of the quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverScheduleQuota {
    /// The quota.
    pub max_schedules: u32,
    /// The number of schedules.
    pub schedules: u64,
}

impl std::error::Error for OverScheduleQuota {}

impl fmt::Display for OverScheduleQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            max_schedules,
            schedules,
        } = self;
        let noun = match schedules {
            1 => "schedule",
            _ => "schedules",
        };
        write!(
            f,
            "the token's quota max_schedules is {max_schedules}, and {schedules} {noun} with its names are stored already; nothing was \
             changed"
        )
    }
}

const MAX_SCHEDULES_FIELD: &str = "max_schedules";

impl ScheduleQuota {
    /// The quota of a token with limited names that sets none: a hundredth of all schedules.
    pub const DEFAULT: u32 = 1000;

    /// Reads the quota of a token that reaches the schedules with these names; `None` if it reaches all.
    pub fn read(from: &mut impl TableReader, names: Option<&[NamePattern]>) -> Option<Self> {
        let field = Field::new(
            MAX_SCHEDULES_FIELD,
            None,
            "The largest number of stored schedules with the names that the token reaches: at this number, it cannot create another one. \
             Requires `topics` or `schedules`. By default 1,000 with one of them, and otherwise any number.",
        );
        let most = u32::try_from(MAX_SCHEDULES).unwrap_or(u32::MAX);
        let given: Option<u32> = from.read(field, within(0..=most));
        let Some(names) = names else {
            if let Some(given) = given {
                let why = "requires topics or schedules".to_owned();
                from.problem(MAX_SCHEDULES_FIELD, given.into(), why);
            }
            return None;
        };
        Some(Self::new(names, given.unwrap_or(Self::DEFAULT)))
    }

    /// Creates a quota of the schedules with these names.
    #[must_use]
    pub fn new(names: &[NamePattern], max_schedules: u32) -> Self {
        let is_name = |pattern: &NamePattern| pattern.start() == pattern.as_str();
        let mut sorted: Vec<_> = names.iter().collect();
        // A prefix comes before all that begin with it.
        sorted.sort_unstable_by_key(|pattern| (pattern.start(), is_name(pattern)));
        let mut names: Vec<NamePattern> = Vec::new();
        for pattern in sorted {
            if { names.last() }.is_none_or(|last| !last.matches(pattern.start())) {
                names.push(pattern.clone());
            }
        }
        Self {
            names,
            max_schedules,
        }
    }

    /// Returns the largest number of schedules.
    #[must_use]
    pub fn max_schedules(&self) -> u32 {
        self.max_schedules
    }

    /// Returns the quota as a field from which it can be read, without a value if it is the default.
    #[must_use]
    pub fn field(&self) -> (&'static str, Option<Json>) {
        let given = Some(self.max_schedules).filter(|given| *given != Self::DEFAULT);
        (MAX_SCHEDULES_FIELD, given.map(Json::from))
    }

    /// Returns the ranges of the names, as `ZLEXCOUNT` takes them.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (String, String)> {
        self.names.iter().map(|pattern| {
            let start = pattern.start();
            // No name has this byte.
            let end = if start == pattern.as_str() {
                ""
            } else {
                "\u{7f}"
            };
            (format!("[{start}"), format!("[{start}{end}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fields::JsonReader;

    fn patterns(names: &[&str]) -> Vec<NamePattern> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    fn read(body: &Json, names: Option<&[&str]>) -> Result<Option<ScheduleQuota>, String> {
        let names = names.map(patterns);
        let mut reader = JsonReader::new(body.as_object().unwrap());
        let quota = ScheduleQuota::read(&mut reader, names.as_deref());
        match &reader.finish()[..] {
            [] => Ok(quota),
            problems => Err(problems.iter().map(|it| format!("{it}\n")).collect()),
        }
    }

    #[test]
    fn a_limited_token_has_a_quota_by_default_and_any_other_none() {
        let quota = |body: Json| read(&body, Some(&["shop-*"])).unwrap().unwrap();
        let default = quota(json!({}));
        assert_eq!(default.max_schedules(), 1000);
        assert_eq!(default.field(), ("max_schedules", None));
        let none = quota(json!({ "max_schedules": 0 }));
        assert_eq!(none.field(), ("max_schedules", Some(json!(0))));
        assert_eq!(read(&json!({}), None), Ok(None));
        for (body, names, problem) in [
            (
                json!({ "max_schedules": 5 }),
                None,
                "max_schedules = 5: requires topics or schedules",
            ),
            (
                json!({ "max_schedules": 100_001 }),
                Some(&["a"][..]),
                "max_schedules = 100001: must be 0 to 100000",
            ),
            (
                json!({ "max_schedules": -1 }),
                Some(&["a"][..]),
                "max_schedules = -1",
            ),
        ] {
            let why = read(&body, names).unwrap_err();
            assert!(why.contains(problem), "{body}: {why}");
        }
    }

    #[test]
    fn no_name_counts_twice() {
        let ranges = |names: &[&str]| {
            let quota = ScheduleQuota::new(&patterns(names), 1);
            let ranges = quota.ranges().map(|(from, to)| from + " " + &to);
            ranges.collect::<Vec<_>>()
        };
        assert_eq!(
            ranges(&["shop-eu-*", "mail", "shop-*", "shop-", "shop", "mail"]),
            ["[mail [mail", "[shop [shop", "[shop- [shop-\u{7f}"]
        );
        assert_eq!(ranges(&["a", "*", "b*"]), ["[ [\u{7f}"]);
        assert_eq!(
            ranges(&["b*", "a*", "ab", "b"]),
            ["[a [a\u{7f}", "[b [b\u{7f}"]
        );
    }
}
