//! What is no fault of a topic, and still keeps its messages from being handled: nobody reads them.

use serde::Serialize;

use super::super::{Broker, BrokerError, TopicHandle, TopicStats};
use crate::time::format_age;

/// One thing that an operator should know of a healthy topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hint {
    /// In which group; empty if the topic has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// What was seen.
    pub seen: String,
}

impl Broker {
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
