//! The safety net: moves due messages on every shard of every registered topic, no matter which manager holds it.
//!
//! If assignments, wakes or groups fail in an unforeseen way, messages are late, not lost.

use lisa_core::broker::Declare;
use serde::Serialize;
use utoipa::ToSchema;

use super::round::Round;
use super::{JobError, Tools};
use crate::assignment::AssignedShard;
use crate::mover::{REST, move_once};

/// The report of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = SweepReport)]
pub(crate) struct Report {
    /// Topics checked.
    pub(crate) topics: u64,
    /// Shards checked.
    pub(crate) shards: u64,
}

/// Reads the registry, creates missing groups, and moves one batch on each shard that holds messages.
///
/// # Errors
/// The registry could not be read, a topic is damaged, or a server did not answer.
pub(crate) async fn run_once(tools: &Tools) -> Result<Report, JobError> {
    let mut report = Report::default();
    let mut round = Round::new("sweep", tools);
    let (topics, _) = tools.assignments.reload().await?;
    let without_messages = tools.broker.without_messages(&topics).await;
    for (topic, has_none) in topics.into_iter().zip(without_messages) {
        if has_none {
            report.topics += 1;
            report.shards += topic.shards().len() as u64;
            continue;
        }
        if topic.removal().is_none() {
            let declared = tools
                .broker
                .declare(topic.name(), topic.settings(), Declare::Create);
            if round.of_topic(&topic, declared).await.is_some() {
                report.topics += 1;
            }
        }
        for shard in topic.shards() {
            if tools.is_draining() {
                return round.report(report);
            }
            let assigned = AssignedShard {
                topic: topic.clone(),
                shard,
            };
            let moved = move_once(&tools.broker, &tools.metrics, &assigned, REST);
            if round.of_shard(&assigned, moved).await.is_some() {
                report.shards += 1;
            }
        }
    }
    round.report(report)
}
