//! Fetches payloads by bytes: about 1 MiB a request, over connections of their own, so that leases are renewed and
//! outcomes settled while large ones come in.
//!
//! Small payloads, the usual case, come in one request for all messages of a read. Where what came lately does not fit
//! into 1 MiB so often, Redis is asked for the sizes first. Requests of a process to one server that expect much take turns:
//! its network has one of them to carry at a time. A server that does not answer holds up no other one, and a payload that
//! is too large for its network is tried rarely, however many there are.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lisa_shared::broker::{BrokerError, TopicHandle};
use lisa_shared::link::Aside;
use lisa_shared::message::MessageId;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::sleep;

use crate::feed::Feed;
use crate::fetch::Trouble;

/// The most bytes that a request for several messages asks for, as long as the network carries that in time.
const MOST: usize = 1024 * 1024;
/// What a request may expect and still go beside large ones.
const SMALL: usize = 64 * 1024;
/// The unit of the turns.
const UNIT: usize = 1024;
/// How often a large payload is asked for alone before the others go on without it.
const TRIES_ALONE: u32 = 2;
/// The first pause after a payload did not arrive even alone: none of its size is requested meanwhile. Doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(16 * 60);
/// The shortest pause of a message that comes back near the end of such a pause.
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// From so many servers on, those that nobody asks at the moment are forgotten.
const MOST_SERVERS: usize = 1024;

/// What the fetches of one process share.
#[derive(Default)]
pub(crate) struct Payloads {
    /// By the name of the server.
    servers: Mutex<HashMap<String, Arc<Turns>>>,
}

impl Payloads {
    fn of(&self, server: String) -> Arc<Turns> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if servers.len() >= MOST_SERVERS && !servers.contains_key(&server) {
            servers.retain(|_, turns| Arc::strong_count(turns) > 1);
        }
        servers.entry(server).or_default().clone()
    }
}

/// The state that all fetches from one server share.
struct Turns {
    small: Semaphore,
    large: Semaphore,
    /// The most bytes of a request for several messages: less while the network is slow.
    most: AtomicUsize,
    too_large: Mutex<Option<TooLarge>>,
}

/// A payload that did not arrive within the response time-out, even alone.
struct TooLarge {
    size: usize,
    /// None of this size is asked for before then; the next one after that shows whether the network got faster.
    until: Instant,
    pause: Duration,
    /// True while that next one is requested.
    is_probed: bool,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            small: Semaphore::new(MOST / UNIT),
            large: Semaphore::new(MOST / UNIT),
            most: AtomicUsize::new(MOST),
            too_large: Mutex::default(),
        }
    }
}

impl Turns {
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

    fn too_large(&self, now: Instant) -> MutexGuard<'_, Option<TooLarge>> {
        let mut known = self
            .too_large
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Its message was cancelled, or went to another process.
        known.take_if(|known| now > known.until + LONGEST_PAUSE);
        known
    }

    /// Returns the size from which on payloads are known to be too large.
    fn limit(&self, now: Instant) -> Option<usize> {
        self.too_large(now).as_ref().map(|known| known.size)
    }

    /// Returns for how long a payload of this size is not asked for; `None` if it may be tried now.
    fn pause(&self, size: usize, now: Instant) -> Option<Duration> {
        let mut known = self.too_large(now);
        let known = known.as_mut().filter(|known| size >= known.size)?;
        if now < known.until {
            return Some((known.until - now).max(LEAST_PAUSE));
        }
        // The others wait for what becomes of this one, which is never known if its server fails meanwhile.
        known.is_probed = true;
        known.until = now + FIRST_PAUSE;
        None
    }

    /// Notes a payload that did not arrive even alone, and returns when to try it again.
    fn failed(&self, size: usize, now: Instant) -> Duration {
        let mut known = self.too_large(now);
        let known = known.get_or_insert_with(|| TooLarge {
            size,
            until: now,
            pause: FIRST_PAUSE,
            is_probed: false,
        });
        if std::mem::take(&mut known.is_probed) {
            known.pause = (known.pause * 2).min(LONGEST_PAUSE);
        }
        known.size = known.size.min(size);
        known.until = now + known.pause;
        known.pause
    }

    /// Notes that a payload arrived.
    fn arrived(&self, size: usize, now: Instant) {
        self.too_large(now).take_if(|known| size >= known.size);
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
    TooLarge(Unfetched),
    /// The shutdown begins.
    Stopped,
}

/// A payload that is too large for the network.
pub(crate) struct Unfetched {
    /// Its size in bytes.
    pub(crate) size: usize,
    /// When to try it again.
    pub(crate) pause: Duration,
    /// True if this payload was requested; false if it was deferred because one of its size or smaller did not arrive.
    pub(crate) tried: bool,
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
                Ok(part) => {
                    self.trouble.over(self.feed);
                    return part;
                }
                Err(error) => error,
            };
            sleep(self.trouble.met(self.feed, &error)).await;
        }
    }

    async fn once(&mut self, ids: &[MessageId]) -> Result<Part, BrokerError> {
        let process = &self.feed.process;
        let broker = &process.broker;
        let server = broker.server(self.topic, self.feed.shard)?.name();
        let turns = process.payloads.of(server);
        let (count, bytes) = self.plan(ids, &turns).await?;
        if count == 1
            && self.tries_alone == 0
            && !self.sizes.is_empty()
            && let Some(pause) = turns.pause(bytes, Instant::now())
        {
            return Ok(self.too_large(bytes, pause, false));
        }
        let beside = if bytes <= SMALL {
            Aside::Small
        } else {
            Aside::Large
        };
        let turn = turns.turn(beside, bytes).await;
        let begun = Instant::now();
        let fetched = broker.records(self.topic, self.feed.shard, &ids[..count], beside);
        let fetched = fetched.await;
        drop(turn);
        match fetched {
            Ok(records) => {
                turns.took(begun.elapsed(), broker.link().response_timeout());
                let size = |record: &Option<Bytes>| record.as_ref().map_or(0, Bytes::len);
                let largest = records.iter().map(size).max().unwrap_or(0);
                turns.arrived(largest, Instant::now());
                self.feed.sizes.note(records.iter().map(size));
                self.sizes.truncate(ids.len() - count);
                self.tries_alone = 0;
                Ok(Part::Records(records))
            }
            Err(error) if error.is_late() => {
                if count > 1 {
                    turns.too_much();
                } else if beside == Aside::Large && !self.sizes.is_empty() {
                    // That the sizes were told shows that Redis is there.
                    self.tries_alone += 1;
                    if self.tries_alone == TRIES_ALONE {
                        return Ok(self.too_large(
                            bytes,
                            turns.failed(bytes, Instant::now()),
                            true,
                        ));
                    }
                }
                self.sizes.clear();
                self.is_in_doubt = true;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Leaves the first message out.
    fn too_large(&mut self, size: usize, pause: Duration, tried: bool) -> Part {
        self.sizes.pop();
        self.tries_alone = 0;
        Part::TooLarge(Unfetched { size, pause, tried })
    }

    /// Says how many messages to ask for next, and how many bytes to expect.
    async fn plan(
        &mut self,
        ids: &[MessageId],
        turns: &Turns,
    ) -> Result<(usize, usize), BrokerError> {
        let most = turns.most();
        if self.sizes.is_empty() {
            let expected = ids
                .len()
                .saturating_mul(self.feed.sizes.largest(self.topic));
            let is_in_doubt = self.is_in_doubt || turns.limit(Instant::now()).is_some();
            if !is_in_doubt && (expected <= most || ids.len() == 1) {
                return Ok((ids.len(), expected));
            }
            let broker = &self.feed.process.broker;
            let sizes = broker.record_sizes(self.topic, self.feed.shard, ids);
            self.sizes = sizes.await?;
            self.feed.sizes.note(self.sizes.iter().copied());
            self.sizes.reverse();
        }
        // What is too large goes alone.
        let limit = turns.limit(Instant::now());
        let most = limit.map_or(most, |limit| most.min(limit - 1));
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
    use futures_util::FutureExt;

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
        let turns = Turns::default();
        let limit = Duration::from_secs(5);
        for _ in 0..20 {
            turns.too_much();
        }
        assert_eq!(turns.most(), UNIT);
        turns.took(limit / 2, limit);
        assert_eq!(turns.most(), UNIT, "it just did");
        for _ in 0..20 {
            turns.took(limit / 10, limit);
        }
        assert_eq!(turns.most(), MOST);
    }

    #[tokio::test]
    async fn large_requests_take_turns_and_hold_up_no_small_one() {
        let turns = Turns::default();
        let large = turns.turn(Aside::Large, 8 * MOST).await;
        assert!(turns.turn(Aside::Large, 1).now_or_never().is_none());
        let _small = turns.turn(Aside::Small, SMALL).await;
        drop(large);
        let _next = turns.turn(Aside::Large, 1).await;
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_holds_up_no_other_one() {
        let payloads = Payloads::default();
        let (dead, live) = (payloads.of("dead".into()), payloads.of("live".into()));
        let _small = dead.turn(Aside::Small, MOST).await;
        let _large = dead.turn(Aside::Large, MOST).await;
        let again = payloads.of("dead".into());
        assert!(again.turn(Aside::Large, 1).now_or_never().is_none());
        assert!(live.turn(Aside::Small, 1).now_or_never().is_some());
        assert!(live.turn(Aside::Large, MOST).now_or_never().is_some());
        dead.too_much();
        assert_eq!(live.most(), MOST);
    }

    #[tokio::test]
    async fn servers_that_nobody_asks_are_forgotten_from_a_bound_on() {
        let payloads = Payloads::default();
        let asked = payloads.of("asked".into());
        asked.too_much();
        for number in 0..2 * MOST_SERVERS {
            payloads.of(format!("left-{number}"));
        }
        assert!(payloads.servers.lock().unwrap().len() <= MOST_SERVERS);
        assert_eq!(payloads.of("asked".into()).most(), asked.most());
    }

    #[test]
    fn payloads_that_never_arrive_are_tried_once_in_a_growing_pause_however_many_there_are() {
        let turns = Turns::default();
        let (size, mut now) = (4 * MOST, Instant::now());
        assert_eq!(turns.pause(size, now), None, "nothing is known");
        assert_eq!(turns.failed(size, now), FIRST_PAUSE);
        assert_eq!(turns.failed(size, now), FIRST_PAUSE, "tried beside it");
        let mut pause = FIRST_PAUSE;
        for _ in 0..8 {
            // Hundreds of others of its size, in any topic, are not tried; smaller ones are.
            assert_eq!(turns.pause(size, now), Some(pause));
            assert_eq!(turns.pause(2 * size, now), Some(pause));
            assert_eq!(turns.pause(size - 1, now), None);
            now += pause;
            assert_eq!(turns.pause(size, now), None, "one is tried");
            let beside = turns.pause(size, now);
            assert_eq!(beside, Some(FIRST_PAUSE), "and none beside it");
            pause = (pause * 2).min(LONGEST_PAUSE);
            assert_eq!(turns.failed(size, now), pause);
        }
        assert_eq!(pause, LONGEST_PAUSE);
        turns.arrived(size - 1, now);
        assert!(turns.pause(size, now).is_some());
        turns.arrived(size, now);
        assert_eq!(turns.pause(2 * size, now), None, "the network got faster");
    }

    #[test]
    fn a_payload_that_was_too_large_and_is_gone_is_forgotten() {
        let (turns, now) = (Turns::default(), Instant::now());
        turns.failed(MOST, now);
        let end = now + FIRST_PAUSE + LONGEST_PAUSE;
        assert_eq!(turns.limit(end), Some(MOST));
        assert_eq!(turns.limit(end + Duration::from_millis(1)), None);
    }
}
