//! Names of topics, groups and namespaces, and the shards of a topic. Validated once, at the edge.

mod rate;
mod settings;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use rate::{Rate, RatePeriod};
pub use settings::{
    GarbageSettings, MAX_GROUPS, MAX_PAYLOAD_LIMIT, Merge, MergeBy, OnExpired, OnGarbage, OnLate,
    SettingsError, TopicSettings,
};

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {what}: allowed is {rule}")]
pub struct InvalidName {
    /// What it should have been, e.g. "topic".
    pub what: &'static str,
    /// The allowed form.
    pub rule: &'static str,
    text: String,
}

impl InvalidName {
    pub(crate) fn new(what: &'static str, rule: &'static str, text: &str) -> Self {
        let text = crate::time::shorten(text);
        Self { what, rule, text }
    }
}

/// Makes a newtype over a checked, immutable text.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// Gives the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = $crate::topic::InvalidName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let check: fn(&str) -> bool = $check;
                if check(text) {
                    Ok(Self(text.into()))
                } else {
                    Err($crate::topic::InvalidName::new($what, $rule, text))
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = $crate::topic::InvalidName;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.as_ref().into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}
pub(crate) use name;

fn is_lower_or_digit(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

pub(crate) fn fits(text: &str, longest: usize, punctuation: &[u8]) -> bool {
    (1..=longest).contains(&text.len())
        && text
            .bytes()
            .all(|byte| is_lower_or_digit(byte) || punctuation.contains(&byte))
}

pub(crate) fn starts_well(text: &str) -> bool {
    text.bytes().next().is_some_and(is_lower_or_digit)
}

name!(
    /// The name of a topic: `[a-z0-9][a-z0-9._-]{0,63}`.
    Topic, "topic", "[a-z0-9][a-z0-9._-]{0,63}",
    |text| fits(text, 64, b"._-") && starts_well(text)
);

name!(
    /// The name of a consumer group: `[a-z0-9][a-z0-9_-]{0,63}`.
    Group, "group", "[a-z0-9][a-z0-9_-]{0,63}",
    |text| fits(text, 64, b"_-") && starts_well(text)
);

name!(
    /// The first part of every key, so that several relays fit on one Redis: `[a-z0-9_-]{1,32}`.
    Namespace, "namespace", "[a-z0-9_-]{1,32}",
    |text| fits(text, 32, b"_-")
);

impl Group {
    /// What the names of groups begin with that belong to one instance of a consumer each; no other
    /// group may be called so.
    pub const INSTANCE_PREFIX: &str = "instance-";

    /// Makes the name of a group that only one process has.
    pub fn for_instance() -> Self {
        // The random half of the number.
        let number = uuid::Uuid::now_v7().as_u128() as u64;
        Self(format!("{}{number:016x}", Self::INSTANCE_PREFIX).into())
    }

    /// Whether the name is reserved for a group of one instance.
    pub fn is_of_instance(&self) -> bool {
        self.as_str().starts_with(Self::INSTANCE_PREFIX)
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self("lisa".into())
    }
}

impl Default for Group {
    fn default() -> Self {
        Self("default".into())
    }
}

/// One of the slices of a topic, from 0. All its keys share one hash tag, so it lives on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Shard(u16);

impl Shard {
    /// Takes the index of a shard.
    pub const fn new(index: u16) -> Self {
        Self(index)
    }

    /// Gives the index.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_lower_case_and_short() {
        for good in ["a", "orders", "a.b_c-d", "0", &"x".repeat(64)] {
            assert!(good.parse::<Topic>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "Orders",
            "a b",
            "{a}",
            "a:b",
            ".a",
            "ä",
            "a\n",
            &"x".repeat(65),
        ] {
            assert!(bad.parse::<Topic>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_error_names_the_rule() {
        let error = "A".parse::<Group>().expect_err("upper case");
        assert_eq!(
            error.to_string(),
            "\"A\" is not a group: allowed is [a-z0-9][a-z0-9_-]{0,63}"
        );
    }
}
