//! Fetches payloads by bytes: about 1 MiB a request, over connections of their own, so that leases are renewed and
//! outcomes settled while large ones come in.
//!
//! Small payloads, the usual case, come in one request for all messages of a read. Where what came lately does not fit
//! into 1 MiB so often, Redis is asked for the sizes first. All requests of a process that expect much take turns: the
//! network has one of them to carry at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lisa_shared::broker::{BrokerError, TopicHandle};
use lisa_shared::link::Aside;
use lisa_shared::message::MessageId;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::sleep;

use crate::feed::Feed;
use crate::fetch::Trouble;
use crate::lease;

/// The most bytes that a request for several messages asks for, as long as the network carries that in time.
const MOST: usize = 1024 * 1024;
/// What a request may expect and still go beside large ones.
const SMALL: usize = 64 * 1024;
/// The unit of the turns.
const UNIT: usize = 1024;
/// How often a large payload is asked for alone before the others go on without it.
const TRIES_ALONE: u32 = 2;

/// What the fetches of one process share.
pub(crate) struct Payloads {
    small: Semaphore,
    large: Semaphore,
    /// The most bytes of a request for several messages: less while the network is slow.
    most: AtomicUsize,
}

impl Default for Payloads {
    fn default() -> Self {
        Self {
            small: Semaphore::new(MOST / UNIT),
            large: Semaphore::new(MOST / UNIT),
            most: AtomicUsize::new(MOST),
        }
    }
}

impl Payloads {
    /// Waits until a request that expects so many bytes has its turn; first come, first served.
    async fn turn(&self, beside: Aside, bytes: usize) -> SemaphorePermit<'_> {
        let turns = match beside {
            Aside::Small => &self.small,
            Aside::Large => &self.large,
        };
        let units = bytes.div_ceil(UNIT).clamp(1, MOST / UNIT);
        let turn = turns.acquire_many(units as u32).await;
        turn.expect("never closed")
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Notes that a request for several messages was too much for the network.
    fn too_much(&self) {
        let less = (self.most() / 2).max(UNIT);
        self.most.store(less, Ordering::Relaxed);
    }

    /// Notes how long a request took, of the `limit` that it had.
    fn took(&self, time: Duration, limit: Duration) {
        let most = self.most();
        if most < MOST && time < limit / 4 {
            self.most.store((most * 2).min(MOST), Ordering::Relaxed);
        }
    }
}

/// How large the messages of a feed were lately.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    /// The largest one, less the longer ago it was; 0 before the first.
    largest: AtomicUsize,
}

impl Sizes {
    fn largest(&self, topic: &TopicHandle) -> usize {
        match self.largest.load(Ordering::Relaxed) {
            0 => usize::try_from(topic.settings().max_payload).unwrap_or(usize::MAX),
            largest => largest,
        }
    }

    /// Takes in the sizes of one request.
    fn note(&self, sizes: impl Iterator<Item = usize>) {
        let Some(seen) = sizes.max() else {
            return;
        };
        let before = self.largest.load(Ordering::Relaxed);
        let now = seen.max(before - before / 16).max(1);
        if now != before {
            self.largest.store(now, Ordering::Relaxed);
        }
    }
}

/// What a step of a fetch brought.
pub(crate) enum Part {
    /// The records of the first messages, at least one; `None` where there is none.
    Records(Vec<Option<Bytes>>),
    /// The first message does not come within the response time-out, even alone.
    TooLarge {
        /// Its size in bytes.
        size: usize,
    },
    /// The shutdown begins.
    Stopped,
}

/// The fetch of the records of some messages, part by part.
pub(crate) struct Fetch<'a> {
    feed: &'a Feed,
    topic: &'a TopicHandle,
    /// The sizes of the messages that are left, where they were asked for; the last one first.
    sizes: Vec<usize>,
    /// Whether to ask for sizes, be what came lately small or not.
    is_in_doubt: bool,
    tries_alone: u32,
    trouble: Trouble,
}

impl<'a> Fetch<'a> {
    pub(crate) fn new(feed: &'a Feed, topic: &'a TopicHandle) -> Self {
        Self {
            feed,
            topic,
            sizes: Vec::new(),
            is_in_doubt: false,
            tries_alone: 0,
            trouble: Trouble::default(),
        }
    }

    /// Fetches the next part, however long that takes. `ids` are the messages that are left, in the order of the first
    /// call, and not none.
    pub(crate) async fn next(&mut self, ids: &[MessageId]) -> Part {
        let draining = self.feed.draining();
        if draining.is_cancelled() {
            return Part::Stopped;
        }
        tokio::select! {
            biased;
            part = self.until_answered(ids) => part,
            () = draining.cancelled() => Part::Stopped,
        }
    }

    async fn until_answered(&mut self, ids: &[MessageId]) -> Part {
        loop {
            let error = match self.once(ids).await {
                Ok(part) if !self.trouble.any() => return part,
                // That took a while: what is not ours any more shall not be started.
                Ok(part) => match lease::renew(self.feed).await {
                    Ok(()) => {
                        self.trouble.over(self.feed);
                        return part;
                    }
                    Err(error) => error,
                },
                Err(error) => error,
            };
            sleep(self.trouble.met(self.feed, &error)).await;
        }
    }

    async fn once(&mut self, ids: &[MessageId]) -> Result<Part, BrokerError> {
        let process = &self.feed.process;
        let (broker, payloads) = (&process.broker, &process.payloads);
        let (count, bytes) = self.plan(ids).await?;
        let beside = if bytes <= SMALL {
            Aside::Small
        } else {
            Aside::Large
        };
        let turn = payloads.turn(beside, bytes).await;
        let begun = Instant::now();
        let fetched = broker.records(self.topic, self.feed.shard, &ids[..count], beside);
        let fetched = fetched.await;
        drop(turn);
        match fetched {
            Ok(records) => {
                payloads.took(begun.elapsed(), broker.link().response_timeout());
                let size = |record: &Option<Bytes>| record.as_ref().map_or(0, Bytes::len);
                self.feed.sizes.note(records.iter().map(size));
                self.sizes.truncate(ids.len() - count);
                self.tries_alone = 0;
                Ok(Part::Records(records))
            }
            Err(error) if error.is_late() => {
                if count > 1 {
                    payloads.too_much();
                } else if beside == Aside::Large && !self.sizes.is_empty() {
                    // That the sizes were told shows that Redis is there.
                    self.tries_alone += 1;
                    if self.tries_alone == TRIES_ALONE {
                        self.tries_alone = 0;
                        let size = self.sizes.pop().unwrap_or(bytes);
                        return Ok(Part::TooLarge { size });
                    }
                }
                self.sizes.clear();
                self.is_in_doubt = true;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Says how many messages to ask for next, and how many bytes to expect.
    async fn plan(&mut self, ids: &[MessageId]) -> Result<(usize, usize), BrokerError> {
        let most = self.feed.process.payloads.most();
        if self.sizes.is_empty() {
            let expected = ids
                .len()
                .saturating_mul(self.feed.sizes.largest(self.topic));
            if !self.is_in_doubt && (expected <= most || ids.len() == 1) {
                return Ok((ids.len(), expected));
            }
            let broker = &self.feed.process.broker;
            let sizes = broker.record_sizes(self.topic, self.feed.shard, ids);
            self.sizes = sizes.await?;
            self.feed.sizes.note(self.sizes.iter().copied());
            self.sizes.reverse();
        }
        Ok(fitting(self.sizes.iter().rev().copied(), most))
    }
}

/// Counts how many of these fit into `most` bytes together, at least one, and how many bytes that are.
fn fitting(sizes: impl Iterator<Item = usize>, most: usize) -> (usize, usize) {
    let (mut count, mut bytes) = (0, 0);
    for size in sizes {
        if count > 0 && bytes + size > most {
            break;
        }
        (count, bytes) = (count + 1, bytes + size);
    }
    (count, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_what_fits_and_at_least_one() {
        let fit = |sizes: &[usize]| fitting(sizes.iter().copied(), 100);
        assert_eq!(fit(&[40, 60, 1]), (2, 100));
        assert_eq!(fit(&[500, 1]), (1, 500));
        assert_eq!(fit(&[0, 0, 101]), (2, 0));
        assert_eq!(fit(&[7]), (1, 7));
    }

    #[test]
    fn one_large_message_is_remembered_for_a_while_and_not_for_ever() {
        let sizes = Sizes::default();
        let largest = || sizes.largest.load(Ordering::Relaxed);
        sizes.note([100, 8_000_000, 3].into_iter());
        assert_eq!(largest(), 8_000_000);
        sizes.note([100].into_iter());
        assert_eq!(largest(), 7_500_000);
        for _ in 0..500 {
            sizes.note([100].into_iter());
        }
        assert_eq!(largest(), 100);
        sizes.note([0].into_iter());
        assert!(largest() > 0, "known, though there was nothing");
    }

    #[test]
    fn a_slow_network_gets_less_at_a_time_and_a_fast_one_more_again() {
        let payloads = Payloads::default();
        let limit = Duration::from_secs(5);
        for _ in 0..20 {
            payloads.too_much();
        }
        assert_eq!(payloads.most(), UNIT);
        payloads.took(limit / 2, limit);
        assert_eq!(payloads.most(), UNIT, "it just did");
        for _ in 0..20 {
            payloads.took(limit / 10, limit);
        }
        assert_eq!(payloads.most(), MOST);
    }

    #[tokio::test]
    async fn large_requests_take_turns_and_hold_up_no_small_one() {
        let payloads = Payloads::default();
        let large = payloads.turn(Aside::Large, 8 * MOST).await;
        assert!(futures_util::FutureExt::now_or_never(payloads.turn(Aside::Large, 1)).is_none());
        let _small = payloads.turn(Aside::Small, SMALL).await;
        drop(large);
        let _next = payloads.turn(Aside::Large, 1).await;
    }
}
