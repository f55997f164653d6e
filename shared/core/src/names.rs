//! Names of topics, groups, namespaces, schedules and shards. Each is checked once, where it enters the program.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The error for a text that is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {what}: must be {rule}")]
pub struct InvalidName {
    /// The kind of name, e.g. "topic".
    pub what: &'static str,
    /// The allowed form.
    pub rule: &'static str,
    text: String,
}

impl InvalidName {
    /// Creates the error for a `text` that is not a `what`, which must follow `rule`.
    pub fn new(what: &'static str, rule: &'static str, text: &str) -> Self {
        let text = crate::time::shorten(text);
        Self { what, rule, text }
    }
}

/// Defines a newtype for a checked, immutable text.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = $crate::names::InvalidName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let check: fn(&str) -> bool = $check;
                if check(text) {
                    Ok(Self(text.into()))
                } else {
                    Err($crate::names::InvalidName::new($what, $rule, text))
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = $crate::names::InvalidName;

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

        $crate::text_value!($name, $what, $rule;);
        $crate::openapi_schema!(
            $name,
            $crate::openapi::text(concat!("A ", $what, ": ", $rule))
        );
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

/// The longest name of a topic, which is that of a queue of Amazon SQS.
pub(crate) const MAX_TOPIC: usize = 80;

name!(
    /// The name of a topic: `[A-Za-z0-9_][A-Za-z0-9._-]{0,79}`. Names that differ in case are different.
    Topic, "topic", "[A-Za-z0-9_][A-Za-z0-9._-]{0,79}",
    |text| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric();
        text.len() <= MAX_TOPIC
            // Not with a hyphen: in a script of an operator, such a name would be an option.
            && text.bytes().next().is_some_and(|byte| is_plain(byte) || byte == b'_')
            && text.bytes().all(|byte| is_plain(byte) || b"._-".contains(&byte))
    }
);

name!(
    /// A pattern for names of topics, groups or schedules: a name, or a prefix followed by `*`.
    NamePattern, "pattern of names", "[A-Za-z0-9._-]{0,79}[A-Za-z0-9._*-]",
    |text| {
        let stem = text.strip_suffix('*').unwrap_or(text);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=MAX_TOPIC).contains(&text.len()) && stem.bytes().all(is_plain)
    }
);

impl NamePattern {
    /// Sorts patterns, and drops repeated ones, so that those that are written in another order are equal.
    pub fn normalize(patterns: &mut Vec<Self>) {
        patterns.sort();
        patterns.dedup();
    }

    /// Returns the start of all names that match.
    pub fn start(&self) -> &str {
        self.as_str().trim_end_matches('*')
    }

    /// Returns true if a name matches.
    pub fn matches(&self, name: &str) -> bool {
        name == self.as_str() || self.as_str().ends_with('*') && name.starts_with(self.start())
    }
}

name!(
    /// The name of a consumer group: `[a-z0-9][a-z0-9_-]{0,63}`.
    Group, "group", "[a-z0-9][a-z0-9_-]{0,63}",
    |text| fits(text, 64, b"_-") && starts_well(text)
);

name!(
    /// The first part of every key, so that several installations can share one Redis: `[a-z0-9_-]{1,32}`.
    Namespace, "namespace", "[a-z0-9_-]{1,32}",
    |text| fits(text, 32, b"_-")
);

name!(
    /// The name of a schedule: `[a-z0-9][a-z0-9_-]{0,46}`, so that the ids of its messages are short enough.
    ScheduleName, "schedule", "[a-z0-9][a-z0-9_-]{0,46}",
    |text| fits(text, 47, b"_-") && starts_well(text)
);

name!(
    /// The name of a token that is created by call: `[A-Za-z0-9_-]{1,64}`. That of a configured one may have any characters.
    TokenName, "name of a token", "[A-Za-z0-9_-]{1,64}",
    |text| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        (1..=64).contains(&text.len()) && text.bytes().all(is_plain)
    }
);

impl Group {
    /// The prefix of groups that belong to one consumer instance each; no other group's name may start with it.
    pub const INSTANCE_PREFIX: &str = "instance-";

    /// Creates the name of a group that belongs to one process only.
    pub fn for_instance() -> Self {
        // The random half of the number.
        let number = uuid::Uuid::now_v7().as_u128() as u64;
        Self(format!("{}{number:016x}", Self::INSTANCE_PREFIX).into())
    }

    /// Returns whether the name is reserved for a group of one instance.
    pub fn is_of_instance(&self) -> bool {
        self.as_str().starts_with(Self::INSTANCE_PREFIX)
    }
}

impl Namespace {
    /// Returns true if a key of Redis is one of this installation.
    pub fn owns(&self, key: &str) -> bool {
        key.strip_prefix(self.as_str())
            .is_some_and(|rest| rest.starts_with(':'))
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

/// The index of one part of a topic, from 0. All keys of a shard share one hash tag, so it lives on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shard(u16);

impl Shard {
    /// Creates a shard from its index.
    pub const fn new(index: u16) -> Self {
        Self(index)
    }

    /// Returns the index.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Defines an enum with one fixed word for each variant.
#[macro_export]
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $what:literal, { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// All variants, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Returns the word for it, the same in Lua, HTTP, CLI and metrics.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::names::InvalidName;

            fn from_str(text: &str) -> Result<Self, $crate::names::InvalidName> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::names::InvalidName::new($what, concat!("one of", $(" ", $word),+), text)),
                }
            }
        }

        impl $crate::fields::Value for $name {
            const KIND: &'static str = "string";

            fn allowed() -> String {
                Self::ALL.iter().map(|word| word.as_str()).collect::<Vec<_>>().join(", ")
            }

            fn read(given: $crate::fields::Given<'_>) -> Result<Self, String> {
                given.text()?.parse().map_err(|error| format!("{error}"))
            }

            fn show(&self) -> serde_json::Value {
                self.as_str().into()
            }

            fn schema() -> serde_json::Value {
                let words: Vec<_> = Self::ALL.iter().map(|word| word.as_str()).collect();
                serde_json::json!({ "type": "string", "enum": words })
            }
        }

        $crate::openapi_schema!(
            $name,
            $crate::openapi::one_of(Self::ALL.iter().map(|word| word.as_str()))
        );
    };
}
pub use words;

/// The group of a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SubscriptionGroup {
    /// A group of the topic, whose messages its consumers share.
    Named(Group),
    /// A group of this process only, written `{instance}`: every process gets every message (fan-out).
    Instance,
}

const INSTANCE: &str = "{instance}";

impl fmt::Display for SubscriptionGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(group) => group.fmt(f),
            Self::Instance => f.write_str(INSTANCE),
        }
    }
}

impl FromStr for SubscriptionGroup {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if text == INSTANCE {
            return Ok(Self::Instance);
        }
        let named = text
            .parse()
            .ok()
            .filter(|group: &Group| !group.is_of_instance());
        named.map(Self::Named).ok_or_else(|| {
            let rule = "[a-z0-9][a-z0-9_-]{0,63}, not beginning with instance-, or {instance}";
            InvalidName::new("group of a subscription", rule, text)
        })
    }
}

crate::text_value!(
    SubscriptionGroup, "name", "a group of the topic, or {instance}; not beginning with instance-";
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_has_letters_and_digits_and_is_short() {
        for good in ["a", "orders", "MyQueue", "a.b_c-d", "0", &"X".repeat(80)] {
            assert!(good.parse::<Topic>().is_ok(), "{good}");
        }
        for bad in ["", "a b", "{a}", "a:b", ".a", "ä", "a\n", &"x".repeat(81)] {
            assert!(bad.parse::<Topic>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_error_names_the_rule() {
        let error = "A".parse::<Group>().expect_err("upper case");
        assert_eq!(
            error.to_string(),
            "\"A\" is not a group: must be [a-z0-9][a-z0-9_-]{0,63}"
        );
    }

    #[test]
    fn a_subscription_reads_for_a_named_group_or_for_its_process_alone() {
        let read = |text: &str| text.parse::<SubscriptionGroup>();
        let billing = SubscriptionGroup::Named("billing".parse().unwrap());
        assert_eq!(read("billing"), Ok(billing));
        assert_eq!(read("{instance}"), Ok(SubscriptionGroup::Instance));
        for bad in ["", "Billing", "{group}", "{instance", "instance-7"] {
            let error = read(bad).expect_err(bad).to_string();
            assert!(error.ends_with("or {instance}"), "{error}");
        }
        for text in ["billing", "{instance}"] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
    }
}
