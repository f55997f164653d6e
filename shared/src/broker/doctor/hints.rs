//! What is no fault of a topic, and still keeps its messages from being handled: nobody moves or reads them.

use serde::Serialize;

use super::super::{Broker, BrokerError, TopicHandle, TopicStats};
use crate::link::checks;
use crate::time::format_age;

/// What an operator is told where no manager is alive.
pub const NO_MANAGER: &str = "no manager is running: due messages are not moved";

/// One thing that an operator should know of a healthy topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hint {
    /// In which group; empty if it is about no group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// What was seen.
    pub seen: String,
}

impl Broker {
    /// Looks for what concerns all topics: no manager is alive, or a server may delete messages to make room. What cannot be
    /// read gives no hint. Takes two fifths of the broker's patience at most.
    pub async fn common_hints(&self) -> Vec<Hint> {
        let mut seen = Vec::new();
        if let Ok(false) = self.has_manager().await {
            seen.push(NO_MANAGER.to_owned());
        }
        let evicting = checks::check_eviction(&self.inner.link, self.inner.patience / 5).await;
        seen.extend(
            evicting
                .into_iter()
                .map(|finding| format!("{}; set maxmemory-policy noeviction", finding.what)),
        );
        let hint = |seen| Hint {
            group: String::new(),
            seen,
        };
        seen.into_iter().map(hint).collect()
    }

    /// Looks for messages of a topic that nobody reads. Damage is for the examination to report.
    pub(super) async fn hints(&self, topic: &TopicHandle) -> Result<Vec<Hint>, BrokerError> {
        match self.stats(topic).await {
            Ok(stats) => Ok(unread(&stats)),
            Err(error) if error.is_of_one_topic() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// Names each group that has ready messages and no consumer, and the topic if it has no group at all.
fn unread(stats: &TopicStats) -> Vec<Hint> {
    if stats.groups.is_empty() && stats.overdue_ms > 0 && !stats.paused {
        let age = format_age(stats.overdue_ms);
        return vec![Hint {
            group: String::new(),
            seen: format!("messages have been due for {age}, and the topic has no group"),
        }];
    }
    let unread = stats
        .groups
        .iter()
        .filter(|group| group.ready > 0 && group.consumers == 0);
    unread
        .map(|group| Hint {
            group: group.group.to_string(),
            seen: format!(
                "{} ready, the oldest for {}, and no consumer {} group {}",
                group.ready,
                format_age(group.oldest_ready_age_ms),
                if group.never_read {
                    "has ever read"
                } else {
                    "reads"
                },
                group.group
            ),
        })
        .collect()
}
