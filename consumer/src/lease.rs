//! The leases of the deliveries that a feed holds: which they are, and the loop that renews them.
//!
//! One call a third of a lease, for all that run, wait for their turn, or have an outcome that Redis has not answered
//! yet. What Redis does not confirm is lost: the message moved on, and the delivery's outcome does not count.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lisa_shared::message::EntryId;
use tokio_util::sync::CancellationToken;

use crate::feed::Feed;

/// The deliveries whose leases are renewed.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    held: Mutex<HashMap<EntryId, Held>>,
}

#[derive(Debug)]
struct Held {
    lost: CancellationToken,
    /// Whether its outcome is on its way: Redis may know the delivery no more because it took that.
    is_settling: bool,
}

/// A lease that is renewed until this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    entry: EntryId,
    lost: CancellationToken,
    leases: Arc<Leases>,
}

impl Leases {
    /// Takes on the deliveries of one read.
    pub(crate) fn hold(self: &Arc<Self>, entries: impl Iterator<Item = EntryId>) -> Vec<Lease> {
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
    pub(crate) fn hold_one(self: &Arc<Self>, entry: EntryId) -> Lease {
        let mut held = self.hold(std::iter::once(entry));
        held.pop().expect("a lease for each entry")
    }

    fn entries(&self) -> Vec<EntryId> {
        self.lock().keys().copied().collect()
    }

    /// Gives up those of `asked` that Redis did not confirm; says how many were still wanted.
    fn confirm(&self, asked: &[EntryId], confirmed: Vec<EntryId>) -> usize {
        if asked.len() == confirmed.len() {
            return 0;
        }
        let confirmed: HashSet<EntryId> = confirmed.into_iter().collect();
        let mut held = self.lock();
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
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.leases.lock().remove(&self.entry);
    }
}

/// Renews the feed's leases for as long as it is polled.
pub(crate) async fn run(feed: Arc<Feed>) {
    let mut failing = false;
    loop {
        let lease = feed.topic().settings().lease;
        let pause = if failing { lease / 10 } else { lease / 3 };
        tokio::time::sleep(pause.max(Duration::from_millis(100))).await;
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
    let confirmed = process
        .broker
        .keep(&feed.topic(), feed.shard, group, &process.name, &asked)
        .await?;
    let lost = feed.leases.confirm(&asked, confirmed);
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
        let mut held = leases.hold(entries.iter().copied());
        drop(held.remove(1));
        assert_eq!(leases.confirm(&entries, vec![entries[0]]), 1);
        assert!(!held[0].lost().is_cancelled());
        assert!(held[1].lost().is_cancelled());
        assert_eq!(leases.entries(), [entries[0]]);
    }

    #[test]
    fn a_delivery_whose_outcome_redis_took_during_the_renewal_is_not_lost() {
        let leases = Arc::new(Leases::default());
        let entries = [EntryId::new(1, 0)];
        let held = leases.hold(entries.iter().copied());
        held[0].settling();
        assert_eq!(leases.entries(), entries, "renewed until redis answers");
        assert_eq!(leases.confirm(&entries, Vec::new()), 0);
        assert!(!held[0].lost().is_cancelled());
    }
}
