//! The reads of shards that share permits: those that block hold some, and end if another shard needs them.

use std::future::{Future, pending};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::Either;
use lisa_core::sync::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// The time that a shard waits for a permit before it ends the blocking read of another one, and the shortest time between two such ends.
const PATIENCE: Duration = Duration::from_millis(50);

/// The reads of shards that share permits.
#[derive(Debug, Default)]
pub struct SharedReads {
    /// The reads that block.
    blocking: AtomicUsize,
    /// The reads that do not block: shards that take turns pass on the permits of these.
    turns: AtomicUsize,
    /// Notified to end one blocking read.
    end: Notify,
    /// The time of the last end for a shard that had waited.
    ended: Mutex<Option<Instant>>,
}

/// A read under way. Dropping it ends it.
pub struct SharedRead<'a> {
    count: &'a AtomicUsize,
    end: Option<&'a Notify>,
}

impl Drop for SharedRead<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SharedRead<'_> {
    /// Completes once the read is to end, because another shard needs its permits: never for one that does not block.
    pub fn ended(&self) -> impl Future<Output = ()> {
        match self.end {
            Some(end) => Either::Left(end.notified()),
            None => Either::Right(pending()),
        }
    }
}

impl SharedReads {
    /// Begins a read that holds permits.
    pub fn begin(&self, block: Duration) -> SharedRead<'_> {
        let (count, end) = match block.is_zero() {
            true => (&self.turns, None),
            false => (&self.blocking, Some(&self.end)),
        };
        count.fetch_add(1, Ordering::Relaxed);
        SharedRead { count, end }
    }

    /// Waits for a permit of a fair semaphore. Ends a blocking read at once if the shard is busy. Then it does so every 50 ms, unless
    /// shards take turns: their permit comes round.
    ///
    /// # Cancel safety
    /// As `permit`.
    pub async fn wait_for<T>(&self, permit: impl Future<Output = T>, is_busy: bool) -> T {
        let end_some = async {
            if is_busy {
                self.end_one();
            }
            loop {
                sleep(PATIENCE).await;
                if self.blocking.load(Ordering::Relaxed) == 0 {
                    // A read blocks only if nobody waits, so none will.
                    pending().await
                }
                self.end_if_stuck();
            }
        };
        tokio::select! {
            biased;
            permit = permit => permit,
            never = end_some => never,
        }
    }

    fn end_one(&self) {
        // Otherwise, the next read would end at once.
        if self.blocking.load(Ordering::Relaxed) > 0 {
            self.end.notify_one();
        }
    }

    fn end_if_stuck(&self) {
        if self.turns.load(Ordering::Relaxed) > 0 {
            return;
        }
        let mut ended = self.ended.lock();
        if ended.is_none_or(|at| at.elapsed() >= PATIENCE) {
            *ended = Some(Instant::now());
            self.end_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;
    use futures_util::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;

    const BLOCK: Duration = Duration::from_secs(5);

    /// Runs this many blocking reads, each with a permit, until they are to end.
    async fn blocked(reads: &SharedReads, permits: &Semaphore, count: usize) {
        let one = async || {
            let _permit = permits.acquire().await.unwrap();
            reads.begin(BLOCK).ended().await;
        };
        join_all((0..count).map(|_| one())).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_shard_ends_one_read_at_once_and_others_wait() {
        let (reads, permits) = (SharedReads::default(), Semaphore::new(2));
        let mut blocked = pin!(blocked(&reads, &permits, 2));
        assert!(blocked.as_mut().now_or_never().is_none());
        let begun = Instant::now();
        let permit = reads.wait_for(permits.acquire(), true);
        let busy = tokio::select! {
            permit = permit => permit.unwrap(),
            () = blocked.as_mut() => panic!("both have ended"),
        };
        assert_eq!(begun.elapsed(), Duration::ZERO);
        let (_, ()) = tokio::join!(reads.wait_for(permits.acquire(), false), blocked);
        assert_eq!(begun.elapsed(), PATIENCE);
        drop(busy);
    }

    #[tokio::test(start_paused = true)]
    async fn many_that_wait_end_one_read_in_fifty_milliseconds() {
        let (reads, permits) = (SharedReads::default(), Semaphore::new(10));
        let begun = Instant::now();
        let waits = async {
            // After all have blocked.
            sleep(Duration::from_millis(1)).await;
            let wait = async || {
                let permit = reads.wait_for(permits.acquire(), false).await;
                permit.unwrap().forget();
            };
            join_all((0..10).map(|_| wait())).await;
        };
        tokio::join!(waits, blocked(&reads, &permits, 10));
        assert!(begun.elapsed() >= 10 * PATIENCE, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_ends_while_shards_take_turns_or_for_the_next_read() {
        let (reads, permits) = (SharedReads::default(), Semaphore::new(0));
        let long = Duration::from_secs(1);
        let wait = async |is_busy| {
            let wait = reads.wait_for(permits.acquire(), is_busy);
            tokio::time::timeout(long, wait).await.is_err()
        };
        assert!(wait(true).await, "nobody blocks");
        let read = reads.begin(BLOCK);
        assert!(read.ended().now_or_never().is_none());
        let turn = reads.begin(Duration::ZERO);
        let mut ended = pin!(read.ended());
        assert!(ended.as_mut().now_or_never().is_none());
        assert!(wait(false).await);
        assert!(ended.as_mut().now_or_never().is_none());
        drop(turn);
        assert!(wait(false).await);
        assert!(ended.now_or_never().is_some());
    }
}
