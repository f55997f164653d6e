//! The leases of the deliveries that a feed holds: which they are, and the loop that renews them.
//!
//! One call a third of a lease, for all that run, wait for their turn, or have an outcome that Redis has not answered
//! yet. What Redis does not confirm is lost: the message moved on, and the delivery's outcome does not count. A process that was
//! stopped for a while knows nothing of that, so no handler starts on a lease that may be over before Redis has confirmed it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lisa_shared::message::EntryId;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::deliver::End;
use crate::feed::Feed;

/// The deliveries whose leases are renewed.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    held: Mutex<HashMap<EntryId, Held>>,
    /// Locked by the task that asks Redis to confirm the leases, so that one call serves all tasks.
    confirming: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Held {
    lost: CancellationToken,
    /// Whether its outcome is on its way: Redis may know the delivery no more because it took that.
    is_settling: bool,
    /// When the last request began that showed the delivery to be ours: its lease ends no earlier than that long after.
    seen: Instant,
}

/// A lease that is renewed until this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    entry: EntryId,
    lost: CancellationToken,
    leases: Arc<Leases>,
}

impl Leases {
    /// Takes on the deliveries of one read, which began at `seen`.
    pub(crate) fn hold(
        self: &Arc<Self>,
        entries: impl Iterator<Item = EntryId>,
        seen: Instant,
    ) -> Vec<Lease> {
        let mut held = self.lock();
        entries
            .map(|entry| {
                let lost = CancellationToken::new();
                let is_settling = false;
                held.insert(
                    entry,
                    Held {
                        lost: lost.clone(),
                        is_settling,
                        seen,
                    },
                );
                Lease {
                    entry,
                    lost,
                    leases: self.clone(),
                }
            })
            .collect()
    }

    /// Takes on one delivery.
    pub(crate) fn hold_one(self: &Arc<Self>, entry: EntryId, seen: Instant) -> Lease {
        let mut held = self.hold(std::iter::once(entry), seen);
        held.pop().expect("a lease for each entry")
    }

    fn entries(&self) -> Vec<EntryId> {
        self.lock().keys().copied().collect()
    }

    /// Notes what Redis confirmed by a request that began at `seen`, and gives up what of `asked` it did not; says how many of
    /// those were still wanted.
    fn confirm(&self, asked: &[EntryId], confirmed: Vec<EntryId>, seen: Instant) -> usize {
        let mut held = self.lock();
        for entry in &confirmed {
            if let Some(held) = held.get_mut(entry) {
                held.seen = held.seen.max(seen);
            }
        }
        if asked.len() == confirmed.len() {
            return 0;
        }
        let confirmed: HashSet<EntryId> = confirmed.into_iter().collect();
        // One that is not held any more ended meanwhile, which is why Redis did not know it.
        let lost = asked
            .iter()
            .filter(|entry| !confirmed.contains(entry))
            .filter_map(|entry| held.remove(entry))
            .filter(|held| !held.is_settling);
        lost.map(|held| held.lost.cancel()).count()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<EntryId, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    pub(crate) fn entry(&self) -> EntryId {
        self.entry
    }

    /// Notes that the outcome is on its way to Redis. The lease is renewed until that has answered, or another process
    /// could take back what is done.
    pub(crate) fn settling(&self) {
        if let Some(held) = self.leases.lock().get_mut(&self.entry) {
            held.is_settling = true;
        }
    }

    /// Cancelled when the lease is lost.
    pub(crate) fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Returns whether the delivery is certainly still ours, for leases of this length; `None` if only Redis knows.
    fn known(&self, lease: Duration, now: Instant) -> Option<End<()>> {
        let held = self.leases.lock();
        match held.get(&self.entry) {
            Some(held) if !self.lost.is_cancelled() => {
                (now < held.seen + lease).then_some(End::Well(()))
            }
            // Another delivery of the same entry has ended it.
            _ => Some(End::LeaseLost),
        }
    }

    /// Waits until it is certain that the delivery is ours, or is not any more.
    async fn settled(&self, feed: &Feed) -> End<()> {
        let known = || self.known(feed.topic().settings().lease, Instant::now());
        loop {
            if let Some(end) = known() {
                return end;
            }
            let _one = feed.leases.confirming.lock().await;
            if known().is_none()
                && let Err(error) = renew(feed).await
            {
                tracing::debug!(%error, subscription = %feed.subscription, "cannot confirm leases; retrying");
                sleep(CONFIRM_AGAIN).await;
            }
        }
    }

    /// Makes sure that the delivery is ours, before its handler starts.
    pub(crate) async fn ensure(&self, feed: &Feed) -> End<()> {
        if feed.draining().is_cancelled() {
            return End::Stopped;
        } else if let Some(end) = self.known(feed.topic().settings().lease, Instant::now()) {
            return end;
        }
        tokio::select! {
            biased;
            () = feed.draining().cancelled() => End::Stopped,
            () = feed.stop.cancelled() => End::Stopped,
            end = self.settled(feed) => end,
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.leases.lock().remove(&self.entry);
    }
}

/// The pause between two tries to have leases confirmed.
const CONFIRM_AGAIN: Duration = Duration::from_millis(100);

/// Renews the feed's leases for as long as it is polled.
pub(crate) async fn run(feed: Arc<Feed>) {
    let mut failing = false;
    loop {
        let lease = feed.topic().settings().lease;
        let pause = if failing { lease / 10 } else { lease / 3 };
        sleep(pause.max(Duration::from_millis(100))).await;
        match renew(&feed).await {
            Ok(()) => failing = false,
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, subscription = %feed.subscription, shard = %feed.shard, "cannot renew leases: trying on");
                }
            }
        }
    }
}

/// Renews what is held now, and gives up what is not ours any more.
pub(crate) async fn renew(feed: &Feed) -> Result<(), lisa_shared::broker::BrokerError> {
    let asked = feed.leases.entries();
    if asked.is_empty() {
        return Ok(());
    }
    let (process, group) = (&feed.process, feed.subscription.group());
    let seen = Instant::now();
    let confirmed = process
        .broker
        .keep(&feed.topic(), feed.shard, group, &process.name, &asked)
        .await?;
    let lost = feed.leases.confirm(&asked, confirmed, seen);
    if lost > 0 {
        tracing::warn!(lost, subscription = %feed.subscription, shard = %feed.shard, "leases lost: their messages are delivered again");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_that_ended_during_the_renewal_is_not_lost() {
        let leases = Arc::new(Leases::default());
        let entries: Vec<EntryId> = (0..3).map(|seq| EntryId::new(1, seq)).collect();
        let mut held = leases.hold(entries.iter().copied(), Instant::now());
        drop(held.remove(1));
        assert_eq!(
            leases.confirm(&entries, vec![entries[0]], Instant::now()),
            1
        );
        assert!(!held[0].lost().is_cancelled());
        assert!(held[1].lost().is_cancelled());
        assert_eq!(leases.entries(), [entries[0]]);
    }

    #[test]
    fn a_delivery_is_ours_for_a_lease_after_the_request_that_showed_it_began() {
        let leases = Arc::new(Leases::default());
        let (entry, lease) = (EntryId::new(1, 0), Duration::from_secs(3));
        let (begun, tick) = (Instant::now(), Duration::from_millis(1));
        let held = leases.hold_one(entry, begun);
        let is_ours = |at| matches!(held.known(lease, at), Some(End::Well(())));
        let is_open = |at| held.known(lease, at).is_none();
        assert!(is_ours(begun + lease - tick));
        assert!(is_open(begun + lease));
        assert_eq!(leases.confirm(&[entry], vec![entry], begun + tick), 0);
        assert!(is_ours(begun + lease));
        assert!(is_open(begun + lease + tick));
        assert_eq!(leases.confirm(&[entry], Vec::new(), begun), 1);
        assert!(matches!(held.known(lease, begun), Some(End::LeaseLost)));
    }

    #[test]
    fn a_delivery_whose_outcome_redis_took_during_the_renewal_is_not_lost() {
        let leases = Arc::new(Leases::default());
        let entries = [EntryId::new(1, 0)];
        let held = leases.hold(entries.iter().copied(), Instant::now());
        held[0].settling();
        assert_eq!(leases.entries(), entries, "renewed until redis answers");
        assert_eq!(leases.confirm(&entries, Vec::new(), Instant::now()), 0);
        assert!(!held[0].lost().is_cancelled());
    }
}
