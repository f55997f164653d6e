//! The metadata of a trigger: the topic, and when to scale.

use std::collections::HashMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use lisa_core::misspelling;
use lisa_core::time::shorten;
use lisa_core::topic::{Group, Topic};

const TOPIC: &str = "topic";
const GROUP: &str = "group";
const START_SECONDS: &str = "startSeconds";
const MESSAGES_PER_REPLICA: &str = "messagesPerReplica";
const TOKEN: &str = "token";
/// The keys that Lisa reads. KEDA reads others, such as `scalerAddress`.
const KEYS: [&str; 5] = [TOPIC, GROUP, START_SECONDS, MESSAGES_PER_REPLICA, TOKEN];
/// The suffix of a key whose value KEDA takes from an environment variable of the consumers.
const FROM_ENV: &str = "FromEnv";

/// The time that a pod takes to start, if the trigger does not set it, in seconds; and what it can set.
const START: (u64, RangeInclusive<u64>) = (30, 0..=600);
/// The number of messages for each replica, if the trigger does not set it; and what it can set.
const PER_REPLICA: (u64, RangeInclusive<u64>) = (100, 1..=1_000_000_000);

/// The topic, the group and the target of a trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trigger {
    pub(super) topic: Topic,
    /// `None` for the only group of the topic.
    pub(super) group: Option<Group>,
    /// The time that a pod takes to start. What becomes due within this time counts.
    pub(super) start: Duration,
    pub(super) messages_per_replica: u64,
}

/// A value of the metadata that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidTrigger {
    #[error("metadata.{key}: missing; set it to {expected}")]
    Missing {
        key: &'static str,
        expected: &'static str,
    },
    #[error("metadata.{key}: {problem}")]
    Value { key: &'static str, problem: String },
    #[error("metadata.{key:?}: unknown key{suggestion}")]
    Key { key: String, suggestion: String },
}

/// The metadata of a trigger.
pub(super) struct Metadata<'a>(pub(super) &'a HashMap<String, String>);

impl<'a> Metadata<'a> {
    /// Returns the token that the trigger presents.
    pub(super) fn token(&self) -> Option<&'a str> {
        self.get(TOKEN)
    }

    /// Reads and checks the metadata.
    ///
    /// # Errors
    /// [`InvalidTrigger`]: the first value that cannot be used, or a key that looks like a misspelled one.
    pub(super) fn trigger(&self) -> Result<Trigger, InvalidTrigger> {
        let mut keys: Vec<&str> = self.0.keys().map(String::as_str).collect();
        keys.sort_unstable();
        for key in keys {
            let name = key.strip_suffix(FROM_ENV).unwrap_or(key);
            let suggestion = misspelling::suggestion(name, KEYS);
            if !KEYS.contains(&name) && !suggestion.is_empty() {
                let key = key.to_owned();
                return Err(InvalidTrigger::Key { key, suggestion });
            }
        }
        let topic = self.parse(TOPIC)?.ok_or(InvalidTrigger::Missing {
            key: TOPIC,
            expected: "the name of a topic",
        })?;
        Ok(Trigger {
            topic,
            group: self.parse(GROUP)?,
            start: Duration::from_secs(self.number(START_SECONDS, START)?),
            messages_per_replica: self.number(MESSAGES_PER_REPLICA, PER_REPLICA)?,
        })
    }

    fn get(&self, key: &'static str) -> Option<&'a str> {
        let direct = self.0.get(key);
        let value = direct.or_else(|| self.0.get(&format!("{key}{FROM_ENV}")));
        value.map(String::as_str)
    }

    fn parse<T: FromStr<Err: Display>>(
        &self,
        key: &'static str,
    ) -> Result<Option<T>, InvalidTrigger> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        value
            .parse()
            .map(Some)
            .map_err(|error: T::Err| InvalidTrigger::Value {
                key,
                problem: error.to_string(),
            })
    }

    fn number(
        &self,
        key: &'static str,
        (default, allowed): (u64, RangeInclusive<u64>),
    ) -> Result<u64, InvalidTrigger> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        let number = value.parse().ok().filter(|number| allowed.contains(number));
        number.ok_or_else(|| InvalidTrigger::Value {
            key,
            problem: format!(
                "{:?} is not a whole number from {} to {}",
                shorten(value),
                allowed.start(),
                allowed.end()
            ),
        })
    }
}

impl Trigger {
    /// Returns the name of the metric. It is part of a path in the API of Kubernetes.
    pub(super) fn metric_name(&self) -> String {
        let group = self.group.as_ref().map(|group| format!("-{group}"));
        let name = format!("lisa-{}{}", self.topic, group.unwrap_or_default());
        name.replace('.', "-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Trigger, String> {
        let pairs = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let metadata = pairs.collect();
        Metadata(&metadata)
            .trigger()
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_trigger_names_a_topic_and_has_defaults() {
        let trigger = read(&[("topic", "eu.orders"), ("scalerAddress", "lisa:7816")]).unwrap();
        assert_eq!(trigger.topic.as_str(), "eu.orders");
        assert_eq!(trigger.group, None);
        assert_eq!(trigger.start, Duration::from_secs(30));
        assert_eq!(trigger.messages_per_replica, 100);
        assert_eq!(trigger.metric_name(), "lisa-eu-orders");
        let trigger = read(&[
            ("topic", "orders"),
            ("groupFromEnv", "billing"),
            ("startSeconds", "0"),
            ("messagesPerReplica", "1000000000"),
        ])
        .unwrap();
        assert_eq!(trigger.metric_name(), "lisa-orders-billing");
        assert_eq!(trigger.start, Duration::ZERO);
        assert_eq!(trigger.messages_per_replica, 1_000_000_000);
    }

    #[test]
    fn an_error_says_what_is_wrong_where_and_what_is_allowed() {
        let error = |pairs: &[(&str, &str)]| read(pairs).unwrap_err();
        let missing = error(&[]);
        assert_eq!(
            missing,
            "metadata.topic: missing; set it to the name of a topic"
        );
        for bad in ["601", "-1", "+1e1", "1.5", "", "soon"] {
            assert_eq!(
                error(&[("topic", "orders"), ("startSeconds", bad)]),
                format!("metadata.startSeconds: {bad:?} is not a whole number from 0 to 600")
            );
        }
        let none = error(&[("topic", "orders"), ("messagesPerReplica", "0")]);
        assert!(none.contains("from 1 to 1000000000"), "{none}");
        let name = error(&[("topic", "Orders!")]);
        assert!(name.starts_with("metadata.topic: "), "{name}");
        assert_eq!(
            error(&[("topic", "orders"), ("messagePerReplica", "7")]),
            "metadata.\"messagePerReplica\": unknown key; did you mean \"messagesPerReplica\"?"
        );
        // Nobody fills a log with a value.
        let long = error(&[("topic", &"x".repeat(1000))]);
        assert!(long.len() < 300, "{long}");
    }
}
