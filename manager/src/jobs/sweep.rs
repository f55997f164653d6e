//! The safety net: looks at every shard of every registered topic, whoever holds it.
//!
//! Should shares, wakes or groups have gone wrong in a way that nobody thought of, messages are late, not lost.

use lisa_shared::broker::Declare;
use serde::Serialize;

use super::round::Round;
use super::{JobError, Tools};
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
/// The registry could not be read, a topic is damaged, or a server did not answer.
pub(crate) async fn run_once(tools: &Tools) -> Result<Report, JobError> {
    let mut report = Report::default();
    let mut round = Round::new("sweep", tools);
    let (topics, _) = tools.shares.reload().await?;
    for topic in topics {
        let declared = tools
            .broker
            .declare(topic.name(), topic.settings(), Declare::Create);
        if round.of_topic(&topic, declared).await.is_some() {
            report.topics += 1;
        }
        for shard in topic.shards() {
            if tools.is_draining() {
                return round.report(report);
            }
            let held = Held {
                topic: topic.clone(),
                shard,
            };
            let moved = move_once(&tools.broker, &tools.metrics, &held, crate::mover::IDLE);
            if round.of_shard(&held, moved).await.is_some() {
                report.shards += 1;
            }
        }
    }
    round.report(report)
}
