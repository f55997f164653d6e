//! The leases (visibility timeouts) of the deliveries that a worker holds. [`renewal`](crate::worker::renewal) renews them.
//!
//! One call each third of a lease renews all deliveries that run, wait to run, or have an outcome that Redis has not
//! answered yet. A lease that Redis does not confirm is lost: the message has moved on, and the delivery's outcome does
//! not count. A process that was suspended does not notice this. So a handler starts on a lease that may have expired
//! only after Redis has confirmed it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lisa_core::message::EntryId;
use lisa_core::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The result of a lease check, of marking a suspect, or of a handler run.
pub(crate) enum End<T> {
    Well(T),
    /// The process stopped first.
    Stopped,
    /// The lease is lost: the message has moved on.
    LeaseLost,
}

/// The deliveries whose leases are renewed.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    held: Mutex<HashMap<EntryId, Arc<Held>>>,
    /// Locked by the task that asks Redis to confirm the leases, so that one call serves all tasks, and by all that change the
    /// leases in Redis, so that nothing overwrites a lease that a gateway ends.
    pub(super) confirming: tokio::sync::Mutex<()>,
}

/// The state of a lease, shared with the context of the handler.
#[derive(Debug)]
pub(crate) struct Held {
    /// Cancelled when the lease is lost.
    pub(crate) lost: CancellationToken,
    /// False once the lease is no longer renewed.
    is_renewed: AtomicBool,
    /// True while its outcome is on its way. If Redis no longer knows the delivery, it may have received the outcome.
    is_settling: AtomicBool,
    /// The start of the last request that confirmed the lease. The lease ends no earlier than one lease duration later.
    seen: Mutex<Instant>,
}

/// A lease that is renewed until this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    entry: EntryId,
    held: Arc<Held>,
    leases: Arc<Leases>,
}

impl Held {
    /// Creates the state of a lease that a request showed that began at `seen`.
    pub(crate) fn new(lost: CancellationToken, seen: Instant) -> Arc<Self> {
        Arc::new(Self {
            lost,
            is_renewed: AtomicBool::new(true),
            is_settling: AtomicBool::new(false),
            seen: Mutex::new(seen),
        })
    }

    /// Returns true while the lease is renewed.
    pub(super) fn is_renewed(&self) -> bool {
        self.is_renewed.load(Ordering::Acquire)
    }

    fn end(&self) {
        self.is_renewed.store(false, Ordering::Release);
    }
}

impl Leases {
    /// Registers the deliveries of one read, which began at `seen`.
    pub(crate) fn hold(
        self: &Arc<Self>,
        entries: impl Iterator<Item = EntryId>,
        seen: Instant,
    ) -> Vec<Lease> {
        let mut held = self.held.lock();
        let hold = |entry| {
            let new = Held::new(CancellationToken::new(), seen);
            if let Some(other) = held.insert(entry, new.clone()) {
                other.end();
            }
            Lease {
                entry,
                held: new,
                leases: self.clone(),
            }
        };
        entries.map(hold).collect()
    }

    /// Registers one delivery of a read that began at `seen`.
    pub(crate) fn hold_one(self: &Arc<Self>, entry: EntryId, seen: Instant) -> Lease {
        let mut held = self.hold(std::iter::once(entry), seen);
        held.pop().expect("a lease for each entry")
    }

    /// Returns the number of deliveries that are held.
    pub(crate) fn len(&self) -> usize {
        self.held.lock().len()
    }

    pub(super) fn entries(&self) -> Vec<EntryId> {
        self.held.lock().keys().copied().collect()
    }

    /// Records which leases Redis confirmed in a request that began at `seen`, and cancels those of `asked` that it did not
    /// confirm. Returns how many of the cancelled ones were held and had no outcome yet.
    pub(super) fn confirm(
        &self,
        asked: &[EntryId],
        confirmed: Vec<EntryId>,
        seen: Instant,
    ) -> usize {
        let mut held = self.held.lock();
        for entry in &confirmed {
            if let Some(held) = held.get(entry) {
                let mut last = held.seen.lock();
                *last = seen.max(*last);
            }
        }
        if asked.len() == confirmed.len() {
            return 0;
        }
        let confirmed: HashSet<EntryId> = confirmed.into_iter().collect();
        // A delivery that is no longer held has ended in the meantime, so Redis does not know it.
        let lost = asked
            .iter()
            .filter(|entry| !confirmed.contains(entry))
            .filter_map(|entry| held.remove(entry))
            .inspect(|held| held.end())
            .filter(|held| !held.is_settling.load(Ordering::Acquire));
        lost.map(|held| held.lost.cancel()).count()
    }
}

impl Lease {
    pub(crate) fn entry(&self) -> EntryId {
        self.entry
    }

    /// Records that the outcome is on its way to Redis. The lease is renewed until Redis answers; otherwise the finished
    /// delivery could be reclaimed.
    pub(crate) fn settling(&self) {
        self.held.is_settling.store(true, Ordering::Release);
    }

    /// Returns the state of the lease.
    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    /// Returns the token that is cancelled when the lease is lost.
    pub(crate) fn lost(&self) -> &CancellationToken {
        &self.held.lost
    }

    /// Returns whether this worker certainly still holds the delivery, for leases of this length; `None` if only Redis
    /// knows.
    pub(super) fn known(&self, lease: Duration, now: Instant) -> Option<End<()>> {
        // It also ends when another delivery of the same entry ends.
        if !self.held.is_renewed() {
            return Some(End::LeaseLost);
        }
        (now < *self.held.seen.lock() + lease).then_some(End::Well(()))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(held) = self.leases.held.lock().remove(&self.entry) {
            held.end();
        }
    }
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
        assert_eq!(leases.entries(), entries, "renewed until Redis answers");
        assert_eq!(leases.confirm(&entries, Vec::new(), Instant::now()), 0);
        assert!(!held[0].lost().is_cancelled());
    }
}
