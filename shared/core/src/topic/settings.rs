//! The settings of one topic, as stored in its registry entry and followed by every role.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Group, Rate, Topic};
use crate::durability::Durability;
use crate::fields;
use crate::fields::{FieldProblem, Size};
use crate::message::{ATTEMPTS, TTLS};
use crate::retry::RetryPolicy;
use crate::time::{DAY, LONGEST_DELAY, MILLISECOND, WEEK, duration_text, optional_duration_text};

mod rules;
mod sqs;

pub use rules::{Merge, MergeBy, OnExpired, OnGarbage, OnLate};
pub use sqs::{KEPT_ATTRIBUTES, MAX_TAG_NAME, MAX_TAG_VALUE, MAX_TAGS, QueueSettings, Texts};

/// The maximum number of groups of a topic.
pub const MAX_GROUPS: usize = 64;

/// The upper bound of every topic's `max_payload`, in bytes. Put larger data in a store and send a reference.
pub const MAX_PAYLOAD_LIMIT: u64 = 8 * 1024 * 1024;

fields! {
    // Stored as JSON in `conf`. When it is read back, an unknown field is ignored and a missing one has its default, so that versions
    // can be mixed during an upgrade. The fields of the first version are required. The configuration file, in contrast, refuses
    // unknown keys.
    /// The settings of a topic, complete and checked.
    ///
    /// The limits `max_ready`, `max_messages`, `max_bytes`, `rate` and `burst` are for the whole topic. Each shard gets its
    /// share.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
    pub struct TopicSettings, check = rules::check {
        /// The consumer groups; each gets every message once. Up to 64 different names that do not begin with `instance-`.
        /// With none, messages wait until a group joins, for example the group of an instance.
        groups: Vec<Group> = vec![Group::default()];
        /// The number of shards of a new topic. For an existing topic, only `lisa-manager topics reshard` changes it.
        shards: u16 = 1, in 1..=1024;
        /// The time that a consumer may hold a message before the manager reclaims it (visibility timeout).
        [serde(with = "duration_text")]
        [cfg_attr(feature = "openapi", schema(value_type = String))]
        lease: Duration = Duration::from_secs(30), in Duration::from_secs(1)..=Duration::from_hours(12);
        /// The time limit of a handler. The lease is renewed until then.
        [serde(with = "duration_text")]
        [cfg_attr(feature = "openapi", schema(value_type = String))]
        handler_timeout: Duration = Duration::from_mins(5), in MILLISECOND..=WEEK;
        /// The maximum number of delivery attempts before a message goes to garbage (dead letters). A message can have its
        /// own.
        max_attempts: u32 = 16, in ATTEMPTS;
        /// The delay from a failed attempt to the next one. A message can have its own.
        retry: RetryPolicy;
        /// The longest accepted delay, from now to the due time.
        [serde(with = "duration_text")]
        [cfg_attr(feature = "openapi", schema(value_type = String))]
        max_delay: Duration = 365 * DAY, in ..=LONGEST_DELAY;
        /// The largest accepted payload.
        max_payload: Size = Size::new(256 * 1024), in Size::new(1)..=Size::new(MAX_PAYLOAD_LIMIT);
        /// The time for which ended ids are remembered, to recognize a repeated send. The `clean` job drops older ones.
        [serde(with = "duration_text")]
        [cfg_attr(feature = "openapi", schema(value_type = String))]
        dedup_window: Duration = Duration::from_mins(10), in ..=WEEK;
        /// The settings of garbage (dead letters).
        garbage: GarbageSettings;
        /// The effect of a send whose merge key belongs to a message that can still be merged into: the first send wins, the
        /// last send wins, or the send is a duplicate.
        [serde(default)]
        merge: Merge = Merge::Last;
        /// The merge key of a message that is sent without one: none with `key`, the hash of its payload with `payload`.
        [serde(default)]
        merge_by: MergeBy = MergeBy::Key;
        /// The longest time after the first send to which later sends can postpone a message. Only with `merge = "last"`.
        [serde(default, with = "optional_duration_text")]
        [cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        max_wait: Option<Duration> = None, in MILLISECOND..=LONGEST_DELAY;
        /// When a message goes to garbage, the next one of its ordering key is delivered (`continue`), or waits until the
        /// garbage is requeued or purged (`block`).
        [serde(default)]
        on_garbage: OnGarbage = OnGarbage::Continue;
        /// The window: the maximum number of messages of each group that are ready or in flight. If unset, 100 while a
        /// message with a priority or a merge key is stored, and no limit otherwise.
        [serde(default)]
        max_ready: Option<u32> = None, in 1..=1_000_000;
        /// The maximum number of stored messages; further ones are refused.
        [serde(default)]
        max_messages: Option<u64> = None, in 1..;
        /// The maximum size of stored records and tombstones; further messages are refused.
        [serde(default)]
        max_bytes: Option<Size> = None, in Size::new(1)..;
        /// The time after its due time at which a message expires. A message can have its own.
        [serde(default, with = "optional_duration_text")]
        [cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        ttl: Option<Duration> = None, in TTLS;
        /// The treatment of an expired message.
        [serde(default)]
        on_expired: OnExpired = OnExpired::Garbage;
        /// The maximum rate of deliveries to each group, such as `100/s`, `6000/m` or `5/h`.
        [serde(default)]
        rate: Option<Rate> = None;
        /// The number of deliveries that may come together after an idle period. Only with `rate`. If unset, 50 ms worth of
        /// the rate, at least 1.
        [serde(default)]
        burst: Option<u32> = None, in 1..=1_000_000;
        /// The maximum lateness of the start of an attempt, from its due time.
        [serde(default, with = "optional_duration_text")]
        [cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        max_lateness: Option<Duration> = None, in MILLISECOND..=LONGEST_DELAY;
        /// The treatment of an attempt that is later than `max_lateness`. `deliver` marks the delivery as late for the
        /// handler.
        [serde(default)]
        on_late: OnLate = OnLate::Deliver;
        /// True to index messages by ordering key, so that all messages of a key can be cancelled or rescheduled together.
        [serde(default)]
        key_index: bool = false;
        /// The durability that a send waits for before its receipt. A message can have its own.
        [serde(default)]
        durability: Durability = Durability::Memory;
        /// The time limit for reaching the durability.
        [serde(default = "default_durability_timeout", with = "duration_text")]
        [cfg_attr(feature = "openapi", schema(value_type = String))]
        durability_timeout: Duration = default_durability_timeout(), in Duration::from_millis(10)..=Duration::from_mins(1);
        /// The time after its last heartbeat for which the group of an instance is kept.
        [serde(default = "default_instance_ttl", with = "duration_text")]
        [cfg_attr(feature = "openapi", schema(value_type = String))]
        instance_ttl: Duration = default_instance_ttl(), in Duration::from_secs(5)..=WEEK;
        /// The settings of the topic as a queue of Amazon SQS.
        [serde(default)]
        sqs: QueueSettings;
    }
}

fields! {
    /// The settings of garbage (dead letters).
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
    pub struct GarbageSettings {
        /// The time that a message stays in garbage before it is purged.
        [serde(with = "duration_text")]
        [cfg_attr(feature = "openapi", schema(value_type = String))]
        max_age: Duration = 14 * DAY, in Duration::from_secs(1)..=LONGEST_DELAY;
        /// The topic to which the manager forwards messages in garbage (dead-letter queue). If unset, they stay here.
        [serde(default)]
        topic: Option<Topic> = None;
    }
}

fn default_durability_timeout() -> Duration {
    Duration::from_secs(1)
}

fn default_instance_ttl() -> Duration {
    Duration::from_mins(1)
}

impl TopicSettings {
    /// Checks every bound, and that the settings fit together.
    ///
    /// # Errors
    /// Returns all mistakes, each with its key below the topic.
    pub fn check(&self) -> Result<(), Vec<FieldProblem>> {
        fields::check_all(self)
    }
}
