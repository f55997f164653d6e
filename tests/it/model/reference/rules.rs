//! The settings of a topic as one shard follows them.

use lisa_core::retry::RetryPolicy;
use lisa_core::time::millis;
use lisa_core::topic::{Merge, OnExpired, OnGarbage, OnLate, TopicSettings};
use std::collections::BTreeMap;

/// The settings as one shard sees them; times in ms.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Rules {
    pub(in super::super) merge: Merge,
    pub(in super::super) max_wait: Option<u64>,
    pub(in super::super) on_garbage: OnGarbage,
    pub(in super::super) max_ready: Option<u64>,
    /// The window that a message with a priority or a merge key sets where there is none.
    pub(in super::super) window: u64,
    pub(in super::super) max_messages: Option<u64>,
    pub(in super::super) max_bytes: Option<u64>,
    pub(in super::super) ttl: Option<u64>,
    pub(in super::super) on_expired: OnExpired,
    /// The time between two deliveries of a group.
    pub(in super::super) interval: Option<f64>,
    pub(in super::super) burst: f64,
    /// The maximum lateness; none if late attempts are made.
    pub(in super::super) max_lateness: Option<u64>,
    pub(in super::super) on_late: OnLate,
    pub(in super::super) key_index: bool,
    pub(in super::super) needs_general: bool,
    pub(in super::super) max_attempts: u32,
    pub(in super::super) retry: RetryPolicy,
    pub(in super::super) dedup_window: u64,
    pub(in super::super) max_age: u64,
    pub(in super::super) instance_ttl: u64,
}

impl Rules {
    pub(in super::super) fn of(settings: &TopicSettings) -> Self {
        let rules: BTreeMap<_, _> = settings.rules().into_iter().collect();
        let number = |field: &str| rules.get(field).map(|text| text.parse().expect("a number"));
        let float = |field: &str| rules.get(field).map(|text| text.parse().expect("a number"));
        Self {
            merge: settings.merge,
            max_wait: number("max_wait"),
            on_garbage: settings.on_garbage,
            max_ready: number("max_ready"),
            window: settings.per_shard(100),
            max_messages: number("max_messages"),
            max_bytes: number("max_bytes"),
            ttl: number("ttl"),
            on_expired: settings.on_expired,
            interval: float("interval"),
            burst: float("burst").unwrap_or_default(),
            max_lateness: number("max_lateness").filter(|_| settings.on_late != OnLate::Deliver),
            on_late: settings.on_late,
            key_index: settings.key_index,
            needs_general: settings.needs_general(),
            max_attempts: settings.max_attempts,
            retry: settings.retry.clone(),
            dedup_window: millis(settings.dedup_window),
            max_age: millis(settings.garbage.max_age),
            instance_ttl: millis(settings.instance_ttl),
        }
    }
}
