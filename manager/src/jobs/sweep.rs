//! The safety net: looks at every shard of every registered topic, whoever holds it.
//!
//! Should shares, wakes or groups have gone wrong in a way that nobody thought of, messages are late, not lost.

use lisa_shared::broker::{BrokerError, Declare};
use serde::Serialize;

use super::Tools;
use crate::mover::move_once;
use crate::share::Held;

/// What one run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// Topics looked at.
    pub(crate) topics: u64,
    /// Shards looked at.
    pub(crate) shards: u64,
}

/// Reads the registry, makes groups that are gone, and moves once on each shard.
///
/// # Errors
/// Redis could not be asked.
pub(crate) async fn run_once(tools: &Tools) -> Result<Report, BrokerError> {
    let mut report = Report::default();
    for topic in tools.shares.reload().await? {
        tools
            .broker
            .declare(topic.name(), topic.settings(), Declare::Create)
            .await?;
        report.topics += 1;
        for shard in topic.shards() {
            if tools.is_draining() {
                return Ok(report);
            }
            let held = Held {
                topic: topic.clone(),
                shard,
            };
            move_once(&tools.broker, &tools.metrics, &held, crate::mover::IDLE).await?;
            report.shards += 1;
        }
    }
    Ok(report)
}
