//! The settings of one topic: what its registry entry holds and every role follows.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Group, Rate};
use crate::durability::Durability;
use crate::retry::RetryPolicy;
use crate::time::{LONGEST_DELAY, duration_text, optional_duration_text};

mod features;

pub use features::{Merge, MergeBy, OnExpired, OnGarbage, OnLate};

/// How many groups a topic may have.
pub const MAX_GROUPS: usize = 64;

/// The largest payload any topic may allow, in bytes. Larger things belong in a store; send a
/// reference.
pub const MAX_PAYLOAD_LIMIT: u64 = 8 * 1024 * 1024;

/// The settings of a topic, complete and checked. Stored as JSON in the topic's `conf`.
///
/// A field that an older version does not know is ignored when read back, and one that it did not
/// write has its default, so that versions may be mixed during an upgrade; the configuration file
/// refuses unknown keys.
///
/// The limits `max_ready`, `max_messages`, `max_bytes`, `rate` and `burst` are those of the whole
/// topic, of which each shard gets its [share](TopicSettings::per_shard).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopicSettings {
    /// The consumer groups; each gets every message once. Up to [`MAX_GROUPS`] different ones; with none, messages wait
    /// until a group joins, as those of single instances do.
    pub groups: Vec<Group>,
    /// How many slices the topic has: those of a topic that exists change by [`Broker::reshard`](crate::broker::Broker::reshard) only. 1 to 1024.
    pub shards: u16,
    /// How long a consumer may hold a message before the manager reclaims it. 1 s to 12 h.
    #[serde(with = "duration_text")]
    pub lease: Duration,
    /// When a running handler is given up. The lease is renewed until then. At least 1 ms.
    #[serde(with = "duration_text")]
    pub handler_timeout: Duration,
    /// Deliveries before a message goes to garbage; a message may say otherwise. 1 to 1000.
    pub max_attempts: u32,
    /// How long after a failed attempt the next one comes.
    pub retry: RetryPolicy,
    /// The furthest due time that is accepted, from now.
    #[serde(with = "duration_text")]
    pub max_delay: Duration,
    /// The largest payload that is accepted, in bytes; at most [`MAX_PAYLOAD_LIMIT`].
    pub max_payload: u64,
    /// How long ended ids are remembered, to recognise a repeated send.
    #[serde(with = "duration_text")]
    pub dedup_window: Duration,
    /// What becomes of messages that were given up.
    pub garbage: GarbageSettings,
    /// What a send does when a message with its merge key can still be merged into.
    #[serde(default)]
    pub merge: Merge,
    /// What the merge key of a message is that names none.
    #[serde(default)]
    pub merge_by: MergeBy,
    /// With [`Merge::Last`]: how long after the first send a message can be put off. At least 1 ms.
    #[serde(default, with = "optional_duration_text")]
    pub max_wait: Option<Duration>,
    /// What the other messages of an ordering key do when one goes to garbage.
    #[serde(default)]
    pub on_garbage: OnGarbage,
    /// The bound of each group's stream, ready plus in flight. 1 to 1,000,000. Without it the scripts
    /// take 100 while a message with a priority or a merge key is stored, and else no bound.
    #[serde(default)]
    pub max_ready: Option<u32>,
    /// How many messages may be stored; more are refused. At least 1.
    #[serde(default)]
    pub max_messages: Option<u64>,
    /// How many bytes of records may be stored; more are refused. At least 1.
    #[serde(default)]
    pub max_bytes: Option<u64>,
    /// How long after its due time a message is worth delivering; a message may say otherwise. At
    /// least 1 ms.
    #[serde(default, with = "optional_duration_text")]
    pub ttl: Option<Duration>,
    /// What becomes of a message that has expired.
    #[serde(default)]
    pub on_expired: OnExpired,
    /// How many deliveries each group gets in a period.
    #[serde(default)]
    pub rate: Option<Rate>,
    /// How many deliveries may come at once after a quiet time; only with `rate`, whose
    /// [default](Rate::default_burst) holds without it. 1 to 1,000,000.
    #[serde(default)]
    pub burst: Option<u32>,
    /// How late an attempt may start. At least 1 ms.
    #[serde(default, with = "optional_duration_text")]
    pub max_lateness: Option<Duration>,
    /// What becomes of an attempt that is later than `max_lateness`.
    #[serde(default)]
    pub on_late: OnLate,
    /// Whether messages can be found by their ordering key, to cancel or reschedule all of one.
    #[serde(default)]
    pub key_index: bool,
    /// What a send waits for before its receipt; a message may say otherwise.
    #[serde(default)]
    pub durability: Durability,
    /// How long a send waits for its durability. 10 ms to 60 s.
    #[serde(default = "default_durability_timeout", with = "duration_text")]
    pub durability_timeout: Duration,
    /// How long a group of one instance outlives its last heartbeat. 5 s to 7 d.
    #[serde(default = "default_instance_ttl", with = "duration_text")]
    pub instance_ttl: Duration,
}

fn default_instance_ttl() -> Duration {
    Duration::from_secs(60)
}

fn default_durability_timeout() -> Duration {
    Duration::from_secs(1)
}

/// What becomes of messages that were given up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GarbageSettings {
    /// How long a message stays in garbage before it is purged.
    #[serde(with = "duration_text")]
    pub max_age: Duration,
}

impl Default for TopicSettings {
    fn default() -> Self {
        Self {
            groups: vec![Group::default()],
            shards: 1,
            lease: Duration::from_secs(30),
            handler_timeout: Duration::from_secs(300),
            max_attempts: 16,
            retry: RetryPolicy::default(),
            max_delay: Duration::from_secs(365 * 24 * 3600),
            max_payload: 256 * 1024,
            dedup_window: Duration::from_secs(600),
            garbage: GarbageSettings {
                max_age: Duration::from_secs(14 * 24 * 3600),
            },
            merge: Merge::default(),
            merge_by: MergeBy::default(),
            max_wait: None,
            on_garbage: OnGarbage::default(),
            max_ready: None,
            max_messages: None,
            max_bytes: None,
            ttl: None,
            on_expired: OnExpired::default(),
            rate: None,
            burst: None,
            max_lateness: None,
            on_late: OnLate::default(),
            key_index: false,
            durability: Durability::default(),
            durability_timeout: default_durability_timeout(),
            instance_ttl: default_instance_ttl(),
        }
    }
}

impl TopicSettings {
    /// Checks every bound, and which settings need or exclude each other.
    ///
    /// # Errors
    /// All that is wrong, each with its key below the topic.
    pub fn check(&self) -> Result<(), Vec<SettingsError>> {
        let mut problems = Vec::new();
        let mut bound = |ok: bool, key: &'static str, value: String, allowed: &'static str| {
            if !ok {
                problems.push(SettingsError {
                    key,
                    value,
                    allowed,
                });
            }
        };
        let text = crate::time::format_duration;
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        let different: BTreeSet<_> = self.groups.iter().collect();
        bound(
            self.groups.len() <= MAX_GROUPS && different.len() == self.groups.len(),
            "groups",
            format!("{:?}", self.groups),
            "up to 64 different names",
        );
        bound(
            !self.groups.iter().any(Group::is_of_instance),
            "groups",
            format!("{:?}", self.groups),
            "any name that does not begin with instance-",
        );
        bound(
            (1..=1024).contains(&self.shards),
            "shards",
            self.shards.to_string(),
            "1 to 1024",
        );
        bound(
            (second..=12 * hour).contains(&self.lease),
            "lease",
            text(self.lease),
            "1s to 12h",
        );
        bound(
            (Duration::from_millis(1)..=7 * 24 * hour).contains(&self.handler_timeout),
            "handler_timeout",
            text(self.handler_timeout),
            "1ms to 7d",
        );
        bound(
            (1..=1000).contains(&self.max_attempts),
            "max_attempts",
            self.max_attempts.to_string(),
            "1 to 1000",
        );
        for error in self.retry.check().err().unwrap_or_default() {
            bound(false, error.key, error.value, error.allowed);
        }
        bound(
            self.max_delay <= LONGEST_DELAY,
            "max_delay",
            text(self.max_delay),
            "up to 3653d",
        );
        bound(
            (1..=MAX_PAYLOAD_LIMIT).contains(&self.max_payload),
            "max_payload",
            self.max_payload.to_string(),
            "1B to 8MiB",
        );
        bound(
            self.dedup_window <= 7 * 24 * hour,
            "dedup_window",
            text(self.dedup_window),
            "up to 7d",
        );
        bound(
            (second..=LONGEST_DELAY).contains(&self.garbage.max_age),
            "garbage.max_age",
            text(self.garbage.max_age),
            "1s to 3653d",
        );
        self.check_features(&mut bound);
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }
}

/// A setting out of its bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: allowed is {allowed}")]
pub struct SettingsError {
    /// The key below the topic, e.g. `retry.base`.
    pub key: &'static str,
    /// What was given.
    pub value: String,
    /// What would be right.
    pub allowed: &'static str,
}
