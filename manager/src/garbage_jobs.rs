//! Runs the garbage jobs of the topics whose first shard this manager serves.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::Broker;
use lisa_service::shutdown::Shutdown;
use lisa_service::supervise::Heartbeat;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::assignment::{AssignedShard, Assignments};
use crate::operations::garbage_jobs::{self, Stored};

/// The interval between looks for jobs that were started through another manager, or that another manager left.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The pause after a step that failed.
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// The garbage jobs of a manager. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct GarbageJobs {
    pub(crate) broker: Broker,
    pub(crate) assignments: Assignments,
    /// Notified when a job was started or stopped through this manager.
    pub(crate) changed: Arc<Notify>,
}

impl GarbageJobs {
    /// Runs jobs until the shutdown begins. Stops between batches; another manager continues.
    pub(crate) async fn keep(
        &self,
        heartbeat: Heartbeat,
        shutdown: &Shutdown,
    ) -> Result<(), Infallible> {
        heartbeat.unlimited();
        let mut next: BTreeMap<String, Instant> = BTreeMap::new();
        while !shutdown.draining().is_cancelled() {
            let wake = self.round(&mut next).await;
            tokio::select! {
                () = sleep_until(wake) => {}
                () = self.changed.notified() => {}
                () = shutdown.draining().cancelled() => {}
            }
        }
        Ok(())
    }

    /// Takes one step of each job whose pause is over. Returns the time of the next round.
    async fn round(&self, next: &mut BTreeMap<String, Instant>) -> Instant {
        let mut wake = Instant::now() + LOOK_EVERY;
        let stored = match timeout_at(wake, garbage_jobs::stored(&self.broker)).await {
            Ok(Ok(stored)) => stored,
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot read the garbage jobs; retrying");
                return wake;
            }
            Err(_) => return wake,
        };
        let mine: Vec<Stored> = stored
            .into_iter()
            .filter(|stored| stored.job.state.is_open() && self.is_mine(stored))
            .collect();
        next.retain(|id, _| mine.iter().any(|stored| stored.job.id == *id));
        for stored in mine {
            let id = stored.job.id.clone();
            let due = next.get(&id).copied();
            // A job that is to stop does not wait for its rate.
            let is_due = due.is_none_or(|due| due <= Instant::now()) || stored.job.is_stopping();
            if is_due {
                let begun = Instant::now();
                match garbage_jobs::step(&self.broker, stored).await {
                    Ok(Some(pause)) => next.insert(id, begun + pause),
                    Ok(None) => next.remove(&id),
                    Err(error) => {
                        tracing::debug!(%error, job = id, "step of a garbage job failed; retrying");
                        next.insert(id, begun + AFTER_ERROR)
                    }
                };
            }
        }
        for due in next.values() {
            wake = wake.min(*due);
        }
        wake
    }

    fn is_mine(&self, stored: &Stored) -> bool {
        let assignment = self.assignments.now();
        let mut first = assignment.shards.iter().filter(|shard| shard.is_first());
        let is_topic = |assigned: &AssignedShard| *assigned.topic.name() == stored.job.topic;
        let is_known = assignment
            .topics
            .iter()
            .any(|topic| *topic.name() == stored.job.topic);
        // A job of a topic that is gone is ended by the first manager.
        let is_first =
            assignment.managers.first().map(String::as_str) == Some(self.assignments.name());
        first.any(is_topic) || (!is_known && is_first)
    }
}
