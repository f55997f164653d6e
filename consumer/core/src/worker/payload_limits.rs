//! Limits payload fetches: the bytes requested from each server at a time, and the payload sizes that are too large for the
//! network.

use lisa_core::broker::TopicHandle;
use lisa_core::redis::Extra;
use lisa_core::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};

/// The most bytes that a request for several messages may expect while the network is fast enough.
pub(super) const MOST: usize = 1024 * 1024;

/// The most bytes that a request may expect and still not wait for large ones.
pub(super) const SMALL: usize = 64 * 1024;

/// The number of bytes of one semaphore permit; also the lowest limit of a request for several messages.
pub(super) const UNIT: usize = 1024;

/// The first pause after a payload did not arrive even in a request of its own. During the pause, no payload of its size or
/// larger is requested. Doubles after each failure.
const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(16 * 60);

/// The shortest pause of a message that comes back near the end of such a pause.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// The number of servers at which those without a current fetch are forgotten.
pub(super) const MOST_SERVERS: usize = 1024;

/// The state that the payload fetches of one process share.
#[derive(Default)]
pub struct Payloads {
    /// The limits of each server, by its name.
    servers: Mutex<HashMap<String, Arc<Slots>>>,
}

impl Payloads {
    pub(super) fn of(&self, server: String) -> Arc<Slots> {
        let mut servers = self.servers.lock();
        if servers.len() >= MOST_SERVERS && !servers.contains_key(&server) {
            servers.retain(|_, slots| Arc::strong_count(slots) > 1);
        }
        servers.entry(server).or_default().clone()
    }
}

/// The state that all fetches from one server share.
pub(super) struct Slots {
    small: Semaphore,
    large: Semaphore,
    /// The most bytes of a request for several messages; lower while the network is slow.
    most: AtomicUsize,
    too_large: Mutex<Option<TooLarge>>,
}

/// A payload that did not arrive within the response timeout, even in a request of its own.
struct TooLarge {
    size: usize,
    /// The time before which no payload of this size is requested. The next request shows whether the network got faster.
    until: Instant,
    pause: Duration,
    /// True while that next request is under way.
    is_probed: bool,
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            small: Semaphore::new(MOST / UNIT),
            large: Semaphore::new(MOST / UNIT),
            most: AtomicUsize::new(MOST),
            too_large: Mutex::default(),
        }
    }
}

impl Slots {
    /// Waits for the permits of a request that expects this many bytes; first come, first served.
    pub(super) async fn slot(&self, which: Extra, bytes: usize) -> SemaphorePermit<'_> {
        let slots = match which {
            Extra::Small => &self.small,
            Extra::Large => &self.large,
        };
        let units = bytes.div_ceil(UNIT).clamp(1, MOST / UNIT);
        let slot = slots.acquire_many(units as u32).await;
        slot.expect("never closed")
    }

    pub(super) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Records that a request for several messages was too large for the network. Halves the limit of such requests.
    pub(super) fn too_much(&self) {
        let less = (self.most() / 2).max(UNIT);
        self.most.store(less, Ordering::Relaxed);
    }

    /// Records how long a request took, with a timeout of `limit`. If that was less than a quarter, doubles the limit of
    /// requests for several messages.
    pub(super) fn took(&self, time: Duration, limit: Duration) {
        let most = self.most();
        if most < MOST && time < limit / 4 {
            self.most.store((most * 2).min(MOST), Ordering::Relaxed);
        }
    }

    fn too_large(&self, now: Instant) -> MutexGuard<'_, Option<TooLarge>> {
        let mut known = self.too_large.lock();
        // Not tried for so long: its message was cancelled, or went to another process.
        known.take_if(|known| now > known.until + LONGEST_PAUSE);
        known
    }

    /// Returns the smallest size at which payloads are known to be too large.
    pub(super) fn limit(&self, now: Instant) -> Option<usize> {
        self.too_large(now).as_ref().map(|known| known.size)
    }

    /// Returns how long to wait before requesting a payload of this size; `None` if it may be tried now.
    pub(super) fn pause(&self, size: usize, now: Instant) -> Option<Duration> {
        let mut known = self.too_large(now);
        let known = known.as_mut().filter(|known| size >= known.size)?;
        if now < known.until {
            return Some((known.until - now).max(LEAST_PAUSE));
        }
        // The others wait for the result of this one. If its server fails in the meantime, there is no result.
        known.is_probed = true;
        known.until = now + FIRST_PAUSE;
        None
    }

    /// Records a payload that did not arrive even in a request of its own. Returns the pause before the next try.
    pub(super) fn failed(&self, size: usize, now: Instant) -> Duration {
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

    /// Records that a payload arrived.
    pub(super) fn arrived(&self, size: usize, now: Instant) {
        self.too_large(now).take_if(|known| size >= known.size);
    }
}

/// The recent sizes of a worker's messages.
#[derive(Debug, Default)]
pub struct Sizes {
    /// The largest recent size, which decays with each request; 0 before the first message.
    largest: AtomicUsize,
}

impl Sizes {
    /// Returns the largest recent size in bytes; that which the topic allows, before the first message.
    pub fn largest(&self, topic: &TopicHandle) -> usize {
        match self.largest.load(Ordering::Relaxed) {
            0 => usize::try_from(topic.settings().max_payload.get()).unwrap_or(usize::MAX),
            largest => largest,
        }
    }

    /// Records the sizes of one request.
    pub(super) fn note(&self, sizes: impl Iterator<Item = usize>) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

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
        assert!(largest() > 0, "known, although empty");
    }

    #[test]
    fn a_slow_network_gets_less_at_a_time_and_a_fast_one_more_again() {
        let slots = Slots::default();
        let limit = Duration::from_secs(5);
        for _ in 0..20 {
            slots.too_much();
        }
        assert_eq!(slots.most(), UNIT);
        slots.took(limit / 2, limit);
        assert_eq!(slots.most(), UNIT, "just in time");
        for _ in 0..20 {
            slots.took(limit / 10, limit);
        }
        assert_eq!(slots.most(), MOST);
    }

    #[tokio::test]
    async fn large_requests_take_turns_and_hold_up_no_small_one() {
        let slots = Slots::default();
        let large = slots.slot(Extra::Large, 8 * MOST).await;
        assert!(slots.slot(Extra::Large, 1).now_or_never().is_none());
        let _small = slots.slot(Extra::Small, SMALL).await;
        drop(large);
        let _next = slots.slot(Extra::Large, 1).await;
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_holds_up_no_other_one() {
        let payloads = Payloads::default();
        let (dead, live) = (payloads.of("dead".into()), payloads.of("live".into()));
        let _small = dead.slot(Extra::Small, MOST).await;
        let _large = dead.slot(Extra::Large, MOST).await;
        let again = payloads.of("dead".into());
        assert!(again.slot(Extra::Large, 1).now_or_never().is_none());
        assert!(live.slot(Extra::Small, 1).now_or_never().is_some());
        assert!(live.slot(Extra::Large, MOST).now_or_never().is_some());
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
        assert!(payloads.servers.lock().len() <= MOST_SERVERS);
        assert_eq!(payloads.of("asked".into()).most(), asked.most());
    }

    #[test]
    fn payloads_that_never_arrive_are_tried_once_in_a_growing_pause_however_many_there_are() {
        let slots = Slots::default();
        let (size, mut now) = (4 * MOST, Instant::now());
        assert_eq!(slots.pause(size, now), None, "nothing is known");
        assert_eq!(slots.failed(size, now), FIRST_PAUSE);
        assert_eq!(slots.failed(size, now), FIRST_PAUSE, "tried concurrently");
        let mut pause = FIRST_PAUSE;
        for _ in 0..8 {
            // Hundreds of others of its size, in any topic, are not tried; smaller ones are.
            assert_eq!(slots.pause(size, now), Some(pause));
            assert_eq!(slots.pause(2 * size, now), Some(pause));
            assert_eq!(slots.pause(size - 1, now), None);
            now += pause;
            assert_eq!(slots.pause(size, now), None, "one is tried");
            let second = slots.pause(size, now);
            assert_eq!(second, Some(FIRST_PAUSE), "and no other");
            pause = (pause * 2).min(LONGEST_PAUSE);
            assert_eq!(slots.failed(size, now), pause);
        }
        assert_eq!(pause, LONGEST_PAUSE);
        slots.arrived(size - 1, now);
        assert!(slots.pause(size, now).is_some());
        slots.arrived(size, now);
        assert_eq!(slots.pause(2 * size, now), None, "the network got faster");
    }

    #[test]
    fn a_payload_that_was_too_large_and_is_gone_is_forgotten() {
        let (slots, now) = (Slots::default(), Instant::now());
        slots.failed(MOST, now);
        let end = now + FIRST_PAUSE + LONGEST_PAUSE;
        assert_eq!(slots.limit(end), Some(MOST));
        assert_eq!(slots.limit(end + Duration::from_millis(1)), None);
    }
}
