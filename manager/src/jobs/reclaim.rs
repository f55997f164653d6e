//! Reclaims deliveries whose lease (visibility timeout) has expired: into retry, or into garbage if their attempts are
//! used up.
//!
//! A group with nothing in flight has nothing to reclaim for a whole lease, and is skipped for that time, unless a wake
//! arrives.
//!
//! A run each second would see the end of a lease half a second late. So each run finds out which leases end before the next one,
//! and groups with such leases are looked at again when they end.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lisa_core::broker::{BrokerError, ENDS_SOON, TopicHandle};
use lisa_core::message::EntryId;
use lisa_core::redis::Jump;
use lisa_core::sync::Mutex;
use lisa_core::topic::{Group, Shard, Topic};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::sleep_until;
use tokio_util::task::AbortOnDropHandle;
use utoipa::ToSchema;

use super::round::Round;
use super::{JobError, Tools};
use crate::assignment::AssignedShard;

/// The report of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = ReclaimReport)]
pub(crate) struct Report {
    /// Messages moved to retry.
    pub(crate) retry: u64,
    /// Messages moved to garbage.
    pub(crate) garbage: u64,
    /// Messages dropped because their next attempt would be too late.
    pub(crate) expired: u64,
    /// Messages dropped because their payload was missing.
    pub(crate) lost: u64,
    /// Shards skipped after a jump of Redis's clock or an outage.
    pub(crate) skipped: u64,
}

pub(crate) struct Reclaim {
    tools: Tools,
    /// The number of the last clock jump that was logged.
    logged_jump: AtomicU64,
    runs: AtomicU64,
    /// The last time at which a group had nothing in flight.
    quiet: Mutex<HashMap<Place, Instant>>,
    /// The looks at the ends of leases since the last run.
    looks: Mutex<Option<AbortOnDropHandle<()>>>,
    /// The entry after which the next run continues, in a group with more held deliveries than a run examines.
    places: Mutex<HashMap<Place, EntryId>>,
}

/// The reason why leases cannot be judged.
enum Doubt {
    Jumped(Jump),
    Outage,
}

/// A group on a shard.
type Place = (Topic, Shard, Group);

/// The number of held deliveries after which a run leaves a group to the next run. Each is examined once per lease of the
/// topic until its own lease ends, and a client may hold any number: the other groups must not wait for them.
const MAX_HELD: u64 = 1000;
/// The time for which a run looks at the ends of leases: until the next run has begun.
const BETWEEN_RUNS: Duration = Duration::from_millis(1100);
/// The shortest time between two looks at a group for the ends of its leases.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// The number of groups that are looked at together for the ends of their leases.
const LOOKS_AT_ONCE: usize = 16;
/// One run in this many also checks entries whose ids are in the future.
const AHEAD_EVERY: u64 = 30;
/// The time without reclaiming after an outage. Consumers could not renew their leases either, and need time to connect
/// and do so. The same holds after a slot was moved, since it accepts no outcomes during the move.
const AFTER_AN_OUTAGE: Duration = Duration::from_secs(3);
/// The longest time that a group is skipped, even with a lease of hours: it may be damaged.
const LONGEST_QUIET: Duration = Duration::from_secs(30);

impl Reclaim {
    pub(crate) fn new(tools: Tools) -> Self {
        Self {
            tools,
            logged_jump: AtomicU64::new(0),
            runs: AtomicU64::new(0),
            quiet: Mutex::default(),
            looks: Mutex::default(),
            places: Mutex::default(),
        }
    }

    /// Reclaims all expired deliveries on the shards of this manager.
    ///
    /// # Errors
    /// A topic is damaged, or a server did not answer. Deliveries that were reclaimed stay reclaimed.
    pub(crate) async fn run_once(self: &Arc<Self>) -> Result<Report, JobError> {
        let mut round = Round::new("reclaim", &self.tools);
        let mut ends = Vec::new();
        let mut report = Report::default();
        let ahead = self
            .runs
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(AHEAD_EVERY);
        let mut jumped = None;
        let mut places = mem::take(&mut *self.places.lock());
        'shards: for assigned in &self.tools.assignments.now().shards {
            if let Some(doubt) = self.doubt(assigned) {
                report.skipped += 1;
                if let Doubt::Jumped(jump) = doubt {
                    jumped = Some(jump);
                }
                continue;
            }
            for group in assigned.topic.groups() {
                if self.is_quiet(assigned, group) {
                    continue;
                }
                let after = places.remove(&key(assigned, group));
                let next_end = self.reclaim_group(assigned, group, ahead, after, &mut report);
                if let Some(Some(end)) = round.of_shard(assigned, next_end).await {
                    ends.push((end, assigned.clone(), group.clone()));
                }
                if self.tools.is_draining() {
                    break 'shards;
                }
            }
        }
        if let Some(jump) = jumped
            && self.logged_jump.swap(jump.count, Ordering::Relaxed) != jump.count
        {
            tracing::warn!(
                by_s = jump.by.as_secs_f64(),
                shards = report.skipped,
                "Redis's clock jumped; reclaiming nothing for one lease"
            );
        }
        if !ends.is_empty() {
            let looks = lisa_core::task::owned(self.clone().look_at_ends(ends));
            // Ends what the last run has left.
            *self.looks.lock() = Some(looks);
        }
        round.report(report)
    }

    /// Returns the reason why the leases of a shard cannot be judged now.
    fn doubt(&self, assigned: &AssignedShard) -> Option<Doubt> {
        let server = self
            .tools
            .broker
            .server(&assigned.topic, assigned.shard)
            .ok()?;
        let jump = server.clock().jumped();
        if let Some(jump) = jump.filter(|jump| distrusts(jump, &assigned.topic)) {
            return Some(Doubt::Jumped(jump));
        }
        let disturbed = server.disturbed_at();
        disturbed
            .is_some_and(|at| at.elapsed() < AFTER_AN_OUTAGE)
            .then_some(Doubt::Outage)
    }

    /// Looks at groups again when their next leases end, until the next run.
    async fn look_at_ends(self: Arc<Self>, ends: Vec<(Instant, AssignedShard, Group)>) {
        let (until, calls) = (Instant::now() + BETWEEN_RUNS, Semaphore::new(LOOKS_AT_ONCE));
        let looks = ends.into_iter().map(async |(mut end, assigned, group)| {
            while end < until && !self.tools.is_draining() {
                sleep_until(end.max(Instant::now() + BETWEEN_LOOKS).into()).await;
                if self.doubt(&assigned).is_some() {
                    return;
                }
                let Ok(_call) = calls.acquire().await else {
                    return;
                };
                let (report, ahead) = (&mut Report::default(), false);
                let looked = self.reclaim_group(&assigned, &group, ahead, None, report);
                // The next run tells why.
                let Ok(Some(next)) = looked.await else { return };
                end = next;
            }
        });
        join_all(looks).await;
    }

    /// Reclaims the expired deliveries of a group. Returns the time at which its next lease ends, if that is soon and known.
    async fn reclaim_group(
        &self,
        assigned: &AssignedShard,
        group: &Group,
        ahead: bool,
        mut after: Option<EntryId>,
        report: &mut Report,
    ) -> Result<Option<Instant>, BrokerError> {
        let broker = &self.tools.broker;
        let (mut held, mut next_end) = (0, None);
        loop {
            let page = broker
                .reclaim_after(&assigned.topic, assigned.shard, group, ahead, after)
                .await?;
            let batch = page.report;
            after = page.last;
            let end = page.next_end.map(|left| Instant::now() + left);
            next_end = next_end.into_iter().chain(end).min();
            held += batch.held;
            report.retry += batch.retry;
            report.garbage += batch.garbage;
            report.expired += batch.expired;
            report.lost += batch.lost;
            let (topic, name) = (assigned.topic.name().as_str(), group.as_str());
            for (to, count) in [
                ("retry", batch.retry),
                ("garbage", batch.garbage),
                ("expired", batch.expired),
                ("lost", batch.lost),
            ] {
                if count > 0 {
                    self.tools.metrics.reclaimed(topic, name, to, count);
                }
            }
            // If all of a full batch were renewed in the meantime, the next call would list the same ones again.
            if !batch.more
                || batch.retry + batch.garbage + batch.expired + batch.lost + batch.held == 0
                || self.tools.is_draining()
            {
                break;
            }
            if held >= MAX_HELD {
                let place = key(assigned, group);
                self.places.lock().extend(after.map(|after| (place, after)));
                return Ok(next_end);
            }
        }
        let asked = Instant::now();
        if broker
            .in_flight(&assigned.topic, assigned.shard, group)
            .await?
            == 0
        {
            let mut quiet = self.quiet.lock();
            // Groups of instances come and go, each with its own name.
            quiet.retain(|_, since| since.elapsed() < LONGEST_QUIET);
            self.tools.wakes.forget_old();
            quiet.insert(key(assigned, group), asked);
        }
        Ok(next_end)
    }

    /// Returns whether no lease can have expired, because nothing was in flight less than one lease ago, and no shorter lease
    /// was announced since. Removes an older record.
    fn is_quiet(&self, assigned: &AssignedShard, group: &Group) -> bool {
        let lease = assigned.topic.settings().lease;
        let lease = lease - ENDS_SOON.min(lease / 2);
        let key = key(assigned, group);
        let mut quiet = self.quiet.lock();
        let is_quiet = quiet.get(&key).is_some_and(|since| {
            let is_recent = since.elapsed() < lease.min(LONGEST_QUIET);
            is_recent && !self.tools.wakes.since(assigned.channel(), *since)
        });
        if !is_quiet {
            quiet.remove(&key);
        }
        is_quiet
    }
}

fn key(assigned: &AssignedShard, group: &Group) -> Place {
    (assigned.topic.name().clone(), assigned.shard, group.clone())
}

/// Returns whether leases cannot be judged yet after a clock jump: a jump forward makes every lease look expired. Consumers
/// renew theirs within one lease.
fn distrusts(jump: &Jump, topic: &TopicHandle) -> bool {
    jump.at.elapsed() < topic.settings().lease
}
