//! The pulls that wait for a message of one group, and the permits that they issue.
//!
//! A waiting pull is the permit for a read: the readers of all shards together request no more messages than the waiting
//! pulls want. When a pull leaves, its permits go with it, and readers that hold them are woken to end their reads.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lisa_consumer_core::internals::{BLOCK, SharedReads};
use lisa_core::broker::MAX_BATCH;
use lisa_core::sync::{Mutex, MutexGuard};
use lisa_core::topic::Shard;
use lisa_service::http::client::Client;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::timeout;

/// The waiting pulls of a group, each of which gets a `T`.
pub(super) struct Polls<T> {
    state: Mutex<State<T>>,
    permits: Semaphore,
    /// The reads that hold permits.
    pub(super) reads: SharedReads,
    /// Notified when a reader may hold permits that no pull issued, or must answer a pull that does not wait.
    changed: Notify,
    /// Notified when a pull joins.
    joined: Notify,
}

struct State<T> {
    /// The waiting pulls, the oldest first.
    waiting: BTreeMap<u64, Waiting<T>>,
    last: u64,
    /// The number of messages that the waiting pulls want.
    wanted: usize,
    /// The number of permits, free or held by readers.
    issued: usize,
    /// The shards with a reader.
    readers: BTreeSet<Shard>,
    /// True if the last read of any shard failed.
    is_failing: bool,
}

/// A waiting pull.
pub(super) struct Waiting<T> {
    client: Client,
    /// The largest number of messages that it takes.
    pub(super) max: usize,
    /// The shards that must still be found empty, for a pull that does not wait.
    looks: Option<BTreeSet<Shard>>,
    pub(super) answer: oneshot::Sender<T>,
}

/// A pull's own end. Dropping it removes the pull.
pub(super) struct Ticket<T> {
    polls: Arc<Polls<T>>,
    number: u64,
    pub(super) answer: oneshot::Receiver<T>,
}

/// Permits that a reader holds. Dropping them returns those that waiting pulls still want.
pub(super) struct Taken<'a, T> {
    polls: &'a Polls<T>,
    pub(super) count: usize,
}

/// The entry of a reader in the list of readers; dropping it removes the reader.
pub(super) struct ReaderEntry<T> {
    polls: Arc<Polls<T>>,
    shard: Shard,
    /// True once it was removed.
    is_removed: bool,
}

impl<T> Default for Polls<T> {
    fn default() -> Self {
        let state = State {
            waiting: BTreeMap::new(),
            last: 0,
            wanted: 0,
            issued: 0,
            readers: BTreeSet::new(),
            is_failing: false,
        };
        Self {
            state: Mutex::new(state),
            permits: Semaphore::new(0),
            reads: SharedReads::default(),
            changed: Notify::new(),
            joined: Notify::new(),
        }
    }
}

impl<T> State<T> {
    /// Returns true if a pull that does not wait must still know whether a shard is empty.
    fn is_looked_at(&self, shard: Shard) -> bool {
        let mut looks = self
            .waiting
            .values()
            .filter_map(|waiting| waiting.looks.as_ref());
        looks.any(|looks| looks.contains(&shard))
    }
}

impl<T> Polls<T> {
    /// Adds a pull of a client. With `looks`, it ends without a message once these shards were found empty.
    pub(super) fn join(
        self: &Arc<Self>,
        client: Client,
        max: usize,
        looks: Option<BTreeSet<Shard>>,
    ) -> Ticket<T> {
        let (sender, answer) = oneshot::channel();
        let has_looks = looks.is_some();
        let waiting = Waiting {
            client,
            max,
            looks,
            answer: sender,
        };
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        state.waiting.insert(number, waiting);
        state.wanted += max;
        let more = state.wanted.saturating_sub(state.issued);
        state.issued += more;
        self.permits.add_permits(more);
        self.joined.notify_waiters();
        if has_looks {
            self.changed.notify_waiters();
        }
        Ticket {
            polls: self.clone(),
            number,
            answer,
        }
    }

    /// Returns the number of waiting pulls.
    pub(super) fn len(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Returns the number of readers.
    pub(super) fn readers(&self) -> usize {
        self.state.lock().readers.len()
    }

    /// Returns true if no pull waits and no reader runs.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.waiting.is_empty() && state.readers.is_empty()
    }

    /// Returns true if the last read failed.
    pub(super) fn is_failing(&self) -> bool {
        self.state.lock().is_failing
    }

    /// Waits for a permit, and takes the share of one of `shards` readers. The last read of a busy one had messages.
    pub(super) async fn take(&self, shards: usize, is_busy: bool) -> Taken<'_, T> {
        let one = self.reads.wait_for(self.permits.acquire(), is_busy).await;
        one.expect("never closed").forget();
        let mut count = 1;
        let share = (self.permits.available_permits() + 1).div_ceil(shards.max(1));
        let more = share.min(MAX_BATCH) - 1;
        if let Ok(permits) = self.permits.try_acquire_many(more as u32) {
            permits.forget();
            count += more;
        }
        Taken { polls: self, count }
    }

    /// Returns a future that completes when held permits may have become unwanted from now on; `None` if they already are.
    pub(super) fn unwanted(&self) -> Option<impl Future<Output = ()>> {
        let mut changed = Box::pin(self.changed.notified());
        changed.as_mut().enable();
        let state = self.state.lock();
        (state.issued <= state.wanted).then_some(changed)
    }

    /// Returns true if readers of other shards may be waiting for permits.
    pub(super) fn is_crowded(&self, shards: usize) -> bool {
        shards > 1 && self.permits.available_permits() == 0
    }

    /// Returns how long a read of a shard may block: not at all if it takes turns with others, or if a pull does not wait.
    pub(super) fn block(&self, shard: Shard, takes_turns: bool, lease: Duration) -> Duration {
        match takes_turns || self.state.lock().is_looked_at(shard) {
            true => Duration::ZERO,
            false => BLOCK.min(lease / 2),
        }
    }

    /// Returns the number of pulls that have joined.
    pub(super) fn joins(&self) -> u64 {
        self.state.lock().last
    }

    /// Returns the client of the oldest waiting pull.
    pub(super) fn client(&self) -> Option<Client> {
        let state = self.state.lock();
        let (_, oldest) = state.waiting.first_key_value()?;
        Some(oldest.client.clone())
    }

    /// Pauses between two reads of an idle shard that competes for permits. Ends early once more than `joins` pulls have joined.
    pub(super) async fn rest(&self, pause: Duration, joins: u64) {
        let mut joined = pin!(self.joined.notified());
        joined.as_mut().enable();
        if self.joins() == joins {
            let _ = timeout(pause, joined).await;
        }
    }

    /// Pauses between two reads of an idle shard that competes for connections. Ends early if a pull joins that does not wait: others would
    /// end it too often.
    pub(super) async fn rest_without_connection(&self, pause: Duration, shard: Shard) {
        let mut changed = pin!(self.changed.notified());
        changed.as_mut().enable();
        let looked = async {
            while !self.state.lock().is_looked_at(shard) {
                changed.as_mut().await;
                changed.set(self.changed.notified());
                changed.as_mut().enable();
            }
        };
        let _ = timeout(pause, looked).await;
    }

    /// Removes and returns the oldest pull.
    pub(super) fn next(&self) -> Option<Waiting<T>> {
        let mut state = self.state.lock();
        let (_, waiting) = state.waiting.pop_first()?;
        state.wanted -= waiting.max;
        Some(waiting)
    }

    /// Records the end of a read of a shard: that it failed, or that it found nothing for the first `joins` pulls, which had joined when
    /// it began. Ends the pulls that do not wait and need to look no further.
    pub(super) fn looked(&self, shard: Shard, joins: u64, is_failing: bool) {
        let mut state = self.state.lock();
        state.is_failing = is_failing;
        let last = if is_failing { u64::MAX } else { joins };
        let ended = state.waiting.extract_if(..=last, |_, waiting| {
            waiting.looks.as_mut().is_some_and(|looks| {
                looks.remove(&shard);
                looks.is_empty() || is_failing
            })
        });
        let ended: Vec<_> = ended.collect();
        state.wanted -= ended.iter().map(|(_, waiting)| waiting.max).sum::<usize>();
        self.shrink(&mut state);
    }

    /// Adds the reader of a shard; `None` if there is one.
    pub(super) fn begin_reading(self: &Arc<Self>, shard: Shard) -> Option<ReaderEntry<T>> {
        let is_new = self.state.lock().readers.insert(shard);
        is_new.then(|| ReaderEntry {
            polls: self.clone(),
            shard,
            is_removed: false,
        })
    }

    /// Withdraws permits that no pull wants. Wakes the readers if they hold some of them.
    fn shrink(&self, state: &mut MutexGuard<'_, State<T>>) {
        let excess = state.issued.saturating_sub(state.wanted);
        let withdrawn = self.permits.forget_permits(excess);
        state.issued -= withdrawn;
        if withdrawn < excess {
            self.changed.notify_waiters();
        }
    }
}

impl<T> Drop for Ticket<T> {
    fn drop(&mut self) {
        let mut state = self.polls.state.lock();
        if let Some(waiting) = state.waiting.remove(&self.number) {
            state.wanted -= waiting.max;
            self.polls.shrink(&mut state);
        }
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        let mut state = self.polls.state.lock();
        let excess = state.issued.saturating_sub(state.wanted);
        let gone = excess.min(self.count);
        state.issued -= gone;
        self.polls.permits.add_permits(self.count - gone);
        self.polls.shrink(&mut state);
    }
}

impl<T> ReaderEntry<T> {
    /// Ends the reader if no pull waits. Returns it otherwise.
    pub(super) fn end_if_idle(mut self) -> Option<Self> {
        {
            let mut state = self.polls.state.lock();
            if state.waiting.is_empty() {
                // Under the same lock, so that a pull that joins starts a new one.
                state.readers.remove(&self.shard);
                self.is_removed = true;
            }
        }
        (!self.is_removed).then_some(self)
    }
}

impl<T> Drop for ReaderEntry<T> {
    fn drop(&mut self) {
        if !self.is_removed {
            self.polls.state.lock().readers.remove(&self.shard);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::time::Instant;

    use super::*;

    fn polls() -> Arc<Polls<u32>> {
        Arc::default()
    }

    fn counts(polls: &Polls<u32>) -> (usize, usize, usize) {
        let state = polls.state.lock();
        (
            state.wanted,
            state.issued,
            polls.permits.available_permits(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn readers_hold_no_more_permits_than_pulls_want() {
        let polls = polls();
        assert!(
            polls.take(1, false).now_or_never().is_none(),
            "nobody waits"
        );
        let first = polls.join(Client::Unknown, 3, None);
        let second = polls.join(Client::Unknown, 10, None);
        assert_eq!(counts(&polls), (13, 13, 13));
        let taken = polls.take(1, false).now_or_never().unwrap();
        assert_eq!(taken.count, 13);
        let unwanted = polls.unwanted().unwrap();
        drop(second);
        assert!(unwanted.now_or_never().is_some(), "the reader is woken");
        assert!(polls.unwanted().is_none());
        drop(taken);
        assert_eq!(counts(&polls), (3, 3, 3));
        drop(first);
        assert_eq!(counts(&polls), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_pull_is_answered_first_and_takes_its_permits_along() {
        let polls = polls();
        let mut first = polls.join(Client::Unknown, 2, None);
        let _second = polls.join(Client::Unknown, 1, None);
        let taken = polls.take(1, false).now_or_never().unwrap();
        let waiting = polls.next().unwrap();
        assert_eq!(waiting.max, 2);
        waiting.answer.send(7).unwrap();
        drop(taken);
        assert_eq!(counts(&polls), (1, 1, 1));
        assert_eq!(first.answer.try_recv(), Ok(7));
        drop(first);
        assert_eq!(counts(&polls), (1, 1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn shards_share_the_permits() {
        let polls = polls();
        let _one = polls.join(Client::Unknown, 10, None);
        let taken = polls.take(4, false).now_or_never().unwrap();
        assert_eq!(taken.count, 3);
        let (shard, lease) = (Shard::new(0), Duration::from_secs(30));
        assert!(!polls.is_crowded(4));
        assert_eq!(polls.block(shard, false, lease), BLOCK);
        let rest = polls.take(1, false).now_or_never().unwrap();
        assert_eq!(rest.count, 7);
        assert!(polls.is_crowded(4) && !polls.is_crowded(1));
        assert_eq!(polls.block(shard, true, lease), Duration::ZERO);
        assert_eq!(
            polls.block(shard, false, Duration::from_secs(1)),
            Duration::from_millis(500)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_shard_rests_while_readers_are_crowded_until_a_pull_joins() {
        let polls = polls();
        let begun = Instant::now();
        let (joins, pause) = (polls.joins(), Duration::from_millis(50));
        polls.rest(pause, joins).await;
        assert_eq!(begun.elapsed(), pause);
        let mut rest = pin!(polls.rest(pause, joins));
        assert!(rest.as_mut().now_or_never().is_none());
        let _pull = polls.join(Client::Unknown, 1, None);
        rest.await;
        // It joined during the read.
        polls.rest(pause, joins).await;
        assert_eq!(begun.elapsed(), pause);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shard_without_a_connection_rests_until_a_pull_that_does_not_wait_joins() {
        let polls = polls();
        let (shard, begun) = (Shard::new(0), Instant::now());
        let pause = Duration::from_millis(50);
        let _waits = polls.join(Client::Unknown, 1, None);
        polls.rest_without_connection(pause, shard).await;
        let mut rest = pin!(polls.rest_without_connection(pause, shard));
        assert!(rest.as_mut().now_or_never().is_none());
        let _waits = polls.join(Client::Unknown, 1, None);
        let _other = polls.join(Client::Unknown, 1, Some([Shard::new(1)].into()));
        assert!(rest.as_mut().now_or_never().is_none());
        let _look = polls.join(Client::Unknown, 1, Some([shard].into()));
        rest.await;
        polls.rest_without_connection(pause, shard).await;
        assert_eq!(begun.elapsed(), pause);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pull_that_does_not_wait_ends_once_all_shards_are_empty() {
        let polls = polls();
        let shards = [0, 1].map(Shard::new);
        let _long = polls.join(Client::Unknown, 1, None);
        let mut look = polls.join(Client::Unknown, 1, Some(shards.into()));
        assert_eq!(polls.block(shards[0], false, BLOCK), Duration::ZERO);
        polls.looked(shards[0], polls.joins() - 1, false);
        assert_eq!(
            polls.block(shards[0], false, BLOCK),
            Duration::ZERO,
            "it joined later"
        );
        polls.looked(shards[0], polls.joins(), false);
        assert_eq!(polls.block(shards[0], false, BLOCK * 9), BLOCK);
        let empty = oneshot::error::TryRecvError::Empty;
        assert_eq!(look.answer.try_recv(), Err(empty));
        polls.looked(shards[1], polls.joins(), false);
        let closed = || Err(oneshot::error::TryRecvError::Closed);
        assert_eq!(look.answer.try_recv(), closed());
        assert_eq!(counts(&polls), (1, 1, 1));
        let mut look = polls.join(Client::Unknown, 1, Some(shards.into()));
        polls.looked(shards[0], 0, true);
        assert_eq!(look.answer.try_recv(), closed());
        assert!(polls.is_failing());
    }

    #[tokio::test(start_paused = true)]
    async fn a_shard_has_one_reader_which_ends_only_while_nobody_waits() {
        let polls = polls();
        let reading = polls.begin_reading(Shard::new(0)).unwrap();
        assert!(polls.begin_reading(Shard::new(0)).is_none());
        let ticket = polls.join(Client::Unknown, 1, None);
        let reading = reading.end_if_idle().expect("somebody waits");
        drop(ticket);
        assert!(reading.end_if_idle().is_none());
        assert!(polls.is_idle());
        assert!(polls.begin_reading(Shard::new(0)).is_some());
    }
}
