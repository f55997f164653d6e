//! Reads the newest counts of all topics in two calls, for HTTP, the command line and the dashboard.

use lisa_core::broker::{Broker, BrokerError, CountedTopic, Counts, TopicStats};
use lisa_core::time::{UnixMs, millis};
use lisa_service::http::client::reaches;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::topics::{DamagedTopic, unreadable};

/// The newest counts of all topics, as the managers have written them.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct SnapshotList {
    /// The time of Redis at which it was read.
    pub(crate) read_at: String,
    /// The age of the oldest counts in it, in ms.
    pub(crate) age_ms: u64,
    pub(crate) topics: Vec<SnapshotTopic>,
    /// The number of running managers; due messages are not moved without one.
    pub(crate) managers: usize,
    /// The topics that could not be counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) damaged: Vec<DamagedTopic>,
}

/// The newest counts of a topic.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct SnapshotTopic {
    #[serde(flatten)]
    pub(crate) stats: TopicStats,
    /// The time at which a manager last found these counts. Rates are the differences of counters between two of them.
    pub(crate) as_of: String,
    /// The time since then, in ms.
    pub(crate) age_ms: u64,
    /// The manager that counted it.
    pub(crate) manager: String,
    /// The maximum number of stored messages, if it is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_messages: Option<u64>,
    /// The maximum size of the stored records in bytes, if it is limited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_bytes: Option<u64>,
}

impl SnapshotTopic {
    fn new(counts: Counts, as_of: UnixMs, manager: String, read_at: UnixMs) -> Self {
        Self {
            stats: counts.stats,
            as_of: as_of.to_string(),
            age_ms: millis(read_at.since(as_of)),
            manager,
            max_messages: counts.max_messages,
            max_bytes: counts.max_bytes,
        }
    }
}

/// Reads the newest counts of all topics. A topic that no manager has counted yet is missing.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn read(broker: &Broker) -> Result<SnapshotList, BrokerError> {
    let (snapshot, managers) = tokio::try_join!(broker.snapshot(), broker.managers())?;
    let read_at = snapshot.read_at;
    let (mut topics, mut damaged) = (Vec::new(), unreadable(broker));
    for CountedTopic {
        topic,
        as_of,
        manager,
        counts,
    } in snapshot.topics
    {
        if !reaches(&topic) {
            continue;
        }
        match counts {
            Ok(counts) => topics.push(SnapshotTopic::new(counts, as_of, manager, read_at)),
            Err(error) => {
                damaged.insert(topic.to_string(), error);
            }
        }
    }
    let damaged = damaged.into_iter();
    Ok(SnapshotList {
        read_at: read_at.to_string(),
        age_ms: topics.iter().map(|topic| topic.age_ms).max().unwrap_or(0),
        topics,
        managers: managers.len(),
        damaged: damaged
            .map(|(topic, error)| DamagedTopic { topic, error })
            .collect(),
    })
}
