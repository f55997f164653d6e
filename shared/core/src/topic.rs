//! The settings of a topic, and the names that belong to it.

mod quota;
mod rate;
mod schedule_quota;
mod settings;
mod typed;

pub use crate::fields::{FieldProblem, Size};
pub use crate::names::{
    Group, InvalidName, NamePattern, Namespace, ScheduleName, Shard, SubscriptionGroup, Topic,
};
pub use quota::{Counted, Extent, MAX_TOPICS, OverQuota, TopicQuota, TopicQuotaUse};
pub use rate::{Rate, RatePeriod};
pub use schedule_quota::{MAX_SCHEDULES, OverScheduleQuota, ScheduleQuota};
pub use settings::{
    GarbageSettings, KEPT_ATTRIBUTES, MAX_GROUPS, MAX_PAYLOAD_LIMIT, MAX_TAG_NAME, MAX_TAG_VALUE,
    MAX_TAGS, Merge, MergeBy, OnExpired, OnGarbage, OnLate, QueueSettings, Texts, TopicSettings,
};
pub use typed::TopicOf;
