//! Reclaims deliveries whose lease (visibility timeout) has expired: into retry, or into garbage if their attempts are
//! used up.
//!
//! A group with nothing in flight has nothing to reclaim for a whole lease, and is skipped for that time, unless a wake
//! arrives.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lisa_core::broker::{BrokerError, TopicHandle};
use lisa_core::message::EntryId;
use lisa_core::redis::Jump;
use lisa_core::sync::Mutex;
use lisa_core::topic::{Group, Shard, Topic};
use serde::Serialize;
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
    /// The entry after which the next run continues, in a group with more held deliveries than a run examines.
    places: Mutex<HashMap<Place, EntryId>>,
}

/// A group on a shard.
type Place = (Topic, Shard, Group);

/// The last wake of each shard, from the channel that wakes its mover. A pull whose lease is shorter than the topic's sends
/// one, since a group that had nothing in flight is not looked at for a lease of the topic.
#[derive(Debug, Default)]
pub(crate) struct Wakes(Mutex<HashMap<String, Instant>>);

impl Wakes {
    /// Records that a wake has arrived.
    pub(crate) fn woken(&self, channel: &str) {
        let mut wakes = self.0.lock();
        match wakes.get_mut(channel) {
            Some(at) => *at = Instant::now(),
            None => drop(wakes.insert(channel.to_owned(), Instant::now())),
        }
    }

    /// Returns true if a wake has arrived at that time or later.
    fn since(&self, channel: &str, time: Instant) -> bool {
        let wakes = self.0.lock();
        wakes.get(channel).is_some_and(|at| *at >= time)
    }

    fn forget_old(&self) {
        let mut wakes = self.0.lock();
        wakes.retain(|_, at| at.elapsed() < LONGEST_QUIET);
    }
}

/// The number of held deliveries after which a run leaves a group to the next run. Each is examined once per lease of the
/// topic until its own lease ends, and a client may hold any number: the other groups must not wait for them.
const MAX_HELD: u64 = 1000;
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
            places: Mutex::default(),
        }
    }

    /// Reclaims all expired deliveries on the shards of this manager.
    ///
    /// # Errors
    /// A topic is damaged, or a server did not answer. Deliveries that were reclaimed stay reclaimed.
    pub(crate) async fn run_once(&self) -> Result<Report, JobError> {
        let mut round = Round::new("reclaim", &self.tools);
        let mut report = Report::default();
        let ahead = self
            .runs
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(AHEAD_EVERY);
        let mut jumped = None;
        let mut places = mem::take(&mut *self.places.lock());
        'shards: for assigned in &self.tools.assignments.now().shards {
            let server = self.tools.broker.server(&assigned.topic, assigned.shard);
            let (jump, disturbed) = server.map_or((None, None), |server| {
                (server.clock().jumped(), server.disturbed_at())
            });
            if let Some(jump) = jump.filter(|jump| distrusts(jump, &assigned.topic)) {
                report.skipped += 1;
                jumped = Some(jump);
                continue;
            }
            if disturbed.is_some_and(|at| at.elapsed() < AFTER_AN_OUTAGE) {
                report.skipped += 1;
                continue;
            }
            for group in assigned.topic.groups() {
                if self.is_quiet(assigned, group) {
                    continue;
                }
                let after = places.remove(&key(assigned, group));
                let reclaimed = self.reclaim_group(assigned, group, ahead, after, &mut report);
                round.of_shard(assigned, reclaimed).await;
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
        round.report(report)
    }

    async fn reclaim_group(
        &self,
        assigned: &AssignedShard,
        group: &Group,
        ahead: bool,
        mut after: Option<EntryId>,
        report: &mut Report,
    ) -> Result<(), BrokerError> {
        let broker = &self.tools.broker;
        let mut held = 0;
        loop {
            let (batch, last) = broker
                .reclaim_after(&assigned.topic, assigned.shard, group, ahead, after)
                .await?;
            after = last;
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
                return Ok(());
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
        Ok(())
    }

    /// Returns whether no lease can have expired, because nothing was in flight less than one lease ago, and no shorter lease
    /// was announced since. Removes an older record.
    fn is_quiet(&self, assigned: &AssignedShard, group: &Group) -> bool {
        let lease = assigned.topic.settings().lease;
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
