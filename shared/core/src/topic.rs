//! The settings of a topic, and the names that belong to it.

mod rate;
mod settings;
mod typed;

pub use crate::fields::{FieldProblem, Size};
pub use crate::names::{
    Group, InvalidName, NamePattern, Namespace, ScheduleName, Shard, SubscriptionGroup, Topic,
};
pub use rate::{Rate, RatePeriod};
pub use settings::{
    GarbageSettings, MAX_GROUPS, MAX_PAYLOAD_LIMIT, Merge, MergeBy, OnExpired, OnGarbage, OnLate,
    TopicSettings,
};
pub use typed::TopicOf;
