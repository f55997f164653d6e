//! Takes back deliveries whose lease is over: into retry, or into garbage when their attempts are used up.
//!
//! A group with nothing in flight has nothing to take back for a whole lease, and is left in peace for so long.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lisa_shared::broker::{BrokerError, TopicHandle};
use lisa_shared::link::Jump;
use lisa_shared::topic::{Group, Shard, Topic};
use serde::Serialize;

use super::round::Round;
use super::{JobError, Tools};
use crate::share::Held;

/// What one run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// Into retry.
    pub(crate) retry: u64,
    /// Into garbage.
    pub(crate) garbage: u64,
    /// Dropped, as their next attempt would be too late.
    pub(crate) expired: u64,
    /// Dropped, as their payload was missing.
    pub(crate) lost: u64,
    /// Shards left alone, after a jump of Redis's clock or an outage.
    pub(crate) skipped: u64,
}

pub(crate) struct Reclaim {
    tools: Tools,
    /// The last jump that was logged.
    told: AtomicU64,
    runs: AtomicU64,
    /// When a group had nothing in flight.
    quiet: Mutex<HashMap<(Topic, Shard, Group), Instant>>,
}

/// One run in so many looks at entries from the future as well.
const AHEAD_EVERY: u64 = 30;
/// Redis was away from consumers, too, who could not renew their leases meanwhile: time for them to connect and do so.
/// The same holds for a slot that was being moved, which takes no outcomes.
const AFTER_AN_OUTAGE: Duration = Duration::from_secs(3);
/// With a lease of hours a group is looked at all the same: it may be damaged.
const LONGEST_QUIET: Duration = Duration::from_secs(30);

impl Reclaim {
    pub(crate) fn new(tools: Tools) -> Self {
        Self {
            tools,
            told: AtomicU64::new(0),
            runs: AtomicU64::new(0),
            quiet: Mutex::default(),
        }
    }

    /// Takes back all there is, on the shards of this manager.
    ///
    /// # Errors
    /// A topic is damaged, or a server did not answer; what was taken back stays so.
    pub(crate) async fn run_once(&self) -> Result<Report, JobError> {
        let mut round = Round::new("reclaim", &self.tools);
        let mut report = Report::default();
        let ahead = self
            .runs
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(AHEAD_EVERY);
        let mut jumped = None;
        'shards: for held in &self.tools.shares.now().held {
            let server = self.tools.broker.server(&held.topic, held.shard);
            let (jump, disturbed) = server.map_or((None, None), |server| {
                (server.clock().jumped(), server.disturbed_at())
            });
            if let Some(jump) = jump.filter(|jump| distrusts(jump, &held.topic)) {
                report.skipped += 1;
                jumped = Some(jump);
                continue;
            }
            if disturbed.is_some_and(|at| at.elapsed() < AFTER_AN_OUTAGE) {
                report.skipped += 1;
                continue;
            }
            for group in held.topic.groups() {
                if self.is_quiet(held, group) {
                    continue;
                }
                let reclaimed = self.reclaim_group(held, group, ahead, &mut report);
                round.of_shard(held, reclaimed).await;
                if self.tools.is_draining() {
                    break 'shards;
                }
            }
        }
        if let Some(jump) = jumped
            && self.told.swap(jump.count, Ordering::Relaxed) != jump.count
        {
            tracing::warn!(
                by_s = jump.by.as_secs_f64(),
                shards = report.skipped,
                "redis's clock jumped: nothing is reclaimed for one lease"
            );
        }
        round.report(report)
    }

    async fn reclaim_group(
        &self,
        held: &Held,
        group: &Group,
        ahead: bool,
        report: &mut Report,
    ) -> Result<(), BrokerError> {
        let broker = &self.tools.broker;
        loop {
            let batch = broker
                .reclaim(&held.topic, held.shard, group, ahead)
                .await?;
            report.retry += batch.retry;
            report.garbage += batch.garbage;
            report.expired += batch.expired;
            report.lost += batch.lost;
            let (topic, group) = (held.topic.name().as_str(), group.as_str());
            for (to, count) in [
                ("retry", batch.retry),
                ("garbage", batch.garbage),
                ("expired", batch.expired),
                ("lost", batch.lost),
            ] {
                if count > 0 {
                    self.tools.metrics.reclaimed(topic, group, to, count);
                }
            }
            // Where all of a full batch were renewed meanwhile, the same ones would be listed again.
            if !batch.more
                || batch.retry + batch.garbage + batch.expired + batch.lost == 0
                || self.tools.is_draining()
            {
                break;
            }
        }
        let asked = Instant::now();
        if broker.in_flight(&held.topic, held.shard, group).await? == 0 {
            let mut quiet = self.quiet();
            // Groups of instances come and go under names of their own.
            quiet.retain(|_, since| since.elapsed() < LONGEST_QUIET);
            quiet.insert(place(held, group), asked);
        }
        Ok(())
    }

    /// Says whether no lease can be over, as there was none not a lease ago. Forgets what is older.
    fn is_quiet(&self, held: &Held, group: &Group) -> bool {
        let lease = held.topic.settings().lease;
        let place = place(held, group);
        let mut quiet = self.quiet();
        let is_quiet = quiet
            .get(&place)
            .is_some_and(|since| since.elapsed() < lease.min(LONGEST_QUIET));
        if !is_quiet {
            quiet.remove(&place);
        }
        is_quiet
    }

    fn quiet(&self) -> MutexGuard<'_, HashMap<(Topic, Shard, Group), Instant>> {
        self.quiet.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place(held: &Held, group: &Group) -> (Topic, Shard, Group) {
    (held.topic.name().clone(), held.shard, group.clone())
}

/// After a jump forward every lease seems to be over. Consumers renew theirs within one lease.
fn distrusts(jump: &Jump, topic: &TopicHandle) -> bool {
    jump.at.elapsed() < topic.settings().lease
}
