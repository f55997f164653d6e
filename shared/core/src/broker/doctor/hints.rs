//! Hints: conditions that are not faults of a topic but keep its messages from being handled, such as no manager or no
//! consumer.

use serde::{Deserialize, Serialize};

use crate::broker::{Broker, BrokerError, TopicHandle, TopicStats};
use crate::redis::preflight;
use crate::time::format_age;

/// The hint that is shown when no manager is running.
pub const NO_MANAGER: &str = "no manager is running: due messages are not moved until one starts";

/// A condition that an operator should know of, although the topic is healthy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Hint {
    /// The group; empty if the hint concerns no group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// A description of what was seen.
    pub seen: String,
    /// True if it concerns all topics.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_common: bool,
}

impl Broker {
    /// Returns the hints that concern all topics: no manager is running, or a server may evict messages to free memory.
    /// A check that fails yields no hint. Takes at most two fifths of the broker's call timeout.
    pub async fn common_hints(&self) -> Vec<Hint> {
        let mut seen = Vec::new();
        if let Ok(false) = self.has_manager().await {
            seen.push(NO_MANAGER.to_owned());
        }
        let evicting =
            preflight::check_eviction(&self.inner.connection, self.inner.call_timeout / 5).await;
        seen.extend(
            evicting
                .into_iter()
                .map(|finding| format!("{}; set maxmemory-policy noeviction", finding.what)),
        );
        let hint = |seen| Hint {
            group: String::new(),
            seen,
            is_common: true,
        };
        seen.into_iter().map(hint).collect()
    }

    /// Returns hints about messages of a topic that nobody reads. Damage is left to the examination.
    pub(super) async fn hints(&self, topic: &TopicHandle) -> Result<Vec<Hint>, BrokerError> {
        match self.stats(topic).await {
            Ok(stats) => Ok(unread(&stats)),
            Err(error) if error.is_of_one_topic() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// Returns a hint for each group with ready messages and no consumer, or for a topic without any group.
fn unread(stats: &TopicStats) -> Vec<Hint> {
    if stats.groups.is_empty() && stats.overdue_ms > 0 && !stats.paused {
        let age = format_age(stats.overdue_ms);
        return vec![Hint {
            group: String::new(),
            seen: format!(
                "messages have been due for {age}, but the topic has no group: \
                 declare one, or start a consumer with a group of its own"
            ),
            is_common: false,
        }];
    }
    let unread = stats
        .groups
        .iter()
        .filter(|group| group.ready > 0 && group.consumers == 0);
    unread
        .map(|group| {
            let (reads, advice) = if group.never_read {
                ("has ever read", "start one, or drop the group if it is a mistake")
            } else {
                ("reads", "start one")
            };
            let (ready, age) = (group.ready, format_age(group.oldest_ready_age_ms));
            let name = &group.group;
            Hint {
                group: name.to_string(),
                seen: format!(
                    "{ready} ready, the oldest for {age}, and no consumer {reads} group {name}: {advice}"
                ),
                is_common: false,
            }
        })
        .collect()
}
