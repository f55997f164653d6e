//! Redis's clock as seen from this process.
//!
//! Keeps the offset between Redis's `TIME` and the host's monotonic clock, and detects jumps between the two. It
//! takes no samples itself (the node does) and decides nothing: due times are computed inside Redis.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::SignedDuration;
use tokio::sync::watch;

use crate::sync::Mutex;

/// Samples kept; the one with the shortest round trip determines the offset.
const WINDOW: usize = 6;
/// A difference between the clocks beyond this, and beyond what the round trip explains, is a jump.
const JUMP: Duration = Duration::from_secs(1);

/// An estimate of Redis's clock.
#[derive(Debug)]
pub struct Clock {
    base: Instant,
    /// Redis time minus monotonic time since `base`, in microseconds.
    offset_us: AtomicI64,
    window: Mutex<VecDeque<Sample>>,
    jumps: watch::Sender<Option<Jump>>,
}

/// A jump of Redis's clock relative to the monotonic clock of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The host's monotonic time at which it was noticed.
    pub at: Instant,
    /// The distance that Redis's clock moved; negative = back.
    pub by: SignedDuration,
    /// Number of jumps noticed so far, including this one.
    pub count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    offset_us: i64,
    round_trip: Duration,
}

impl Clock {
    pub(super) fn new() -> Self {
        let base = Instant::now();
        // Until Redis answers, the host's own clock is the best guess.
        let offset_us = micros_since_epoch(SystemTime::now());
        Self {
            base,
            offset_us: AtomicI64::new(offset_us),
            window: Mutex::new(VecDeque::with_capacity(WINDOW)),
            jumps: watch::Sender::new(None),
        }
    }

    /// Estimates Redis's current time, in milliseconds since the Unix epoch.
    ///
    /// Before the first contact, it is the host's time. It may step back a little when a better sample arrives.
    pub fn now_ms(&self) -> u64 {
        let now_us = self
            .elapsed_us(Instant::now())
            .saturating_add(self.offset_us.load(Ordering::Relaxed));
        u64::try_from(now_us / 1000).unwrap_or(0)
    }

    /// Returns the host's wall clock minus Redis's clock, or `None` before the first contact.
    pub fn skew(&self) -> Option<SignedDuration> {
        if self.window.lock().is_empty() {
            return None;
        }
        let host_us = micros_since_epoch(SystemTime::now());
        let redis_us = self
            .elapsed_us(Instant::now())
            .saturating_add(self.offset_us.load(Ordering::Relaxed));
        Some(SignedDuration::from_micros(
            host_us.saturating_sub(redis_us),
        ))
    }

    /// Returns the last jump of Redis's clock, if there was one.
    pub fn jumped(&self) -> Option<Jump> {
        *self.jumps.borrow()
    }

    /// Watches for jumps of Redis's clock.
    pub fn jumps(&self) -> watch::Receiver<Option<Jump>> {
        self.jumps.subscribe()
    }

    /// Records one reply to `TIME`; `redis_us` is in microseconds since the Unix epoch.
    pub(super) fn observe(&self, sent: Instant, received: Instant, redis_us: i64) {
        let round_trip = received.saturating_duration_since(sent);
        let middle = self
            .elapsed_us(sent)
            .saturating_add(as_micros(round_trip) / 2);
        let sample = Sample {
            offset_us: redis_us.saturating_sub(middle),
            round_trip,
        };
        let mut window = self.window.lock();
        if let Some(best) = best_of(&window) {
            let by = sample.offset_us.saturating_sub(best.offset_us);
            // Each sample is uncertain by half its round trip: a slow reply is not a jump.
            let explained = as_micros(JUMP + (round_trip + best.round_trip) / 2);
            if by.saturating_abs() > explained {
                window.clear();
                let by = SignedDuration::from_micros(by);
                self.jumps.send_modify(|last| {
                    let count = last.map_or(0, |jump| jump.count) + 1;
                    *last = Some(Jump {
                        at: received,
                        by,
                        count,
                    });
                });
                tracing::warn!(?by, "Redis's clock jumped relative to this host's");
            }
        }
        window.truncate(WINDOW - 1);
        window.push_front(sample);
        if let Some(best) = best_of(&window) {
            self.offset_us.store(best.offset_us, Ordering::Relaxed);
        }
    }

    fn elapsed_us(&self, at: Instant) -> i64 {
        as_micros(at.saturating_duration_since(self.base))
    }
}

fn best_of(window: &VecDeque<Sample>) -> Option<Sample> {
    window
        .iter()
        .min_by_key(|sample| sample.round_trip)
        .copied()
}

fn as_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn micros_since_epoch(time: SystemTime) -> i64 {
    as_micros(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_US: i64 = 1_700_000_000_000_000;

    /// Feeds the clock a reply `at_s` seconds after its start, with the server `off_us` away from 1_700_000_000 s.
    fn see(clock: &Clock, at_s: u64, round_trip: Duration, off_us: i64) {
        let sent = clock.base + Duration::from_secs(at_s);
        let redis_us = START_US
            + i64::try_from(at_s).unwrap() * 1_000_000
            + as_micros(round_trip) / 2
            + off_us;
        clock.observe(sent, sent + round_trip, redis_us);
    }

    #[test]
    fn the_sample_with_the_shortest_round_trip_sets_the_offset() {
        let clock = Clock::new();
        see(&clock, 0, Duration::from_millis(40), 9_000);
        see(&clock, 10, Duration::from_millis(1), 0);
        see(&clock, 20, Duration::from_millis(300), -90_000);
        assert_eq!(clock.offset_us.load(Ordering::Relaxed), START_US);
        assert!(clock.now_ms() >= 1_700_000_000_000 && clock.now_ms() < 1_700_000_005_000);
        assert!(clock.skew().unwrap() > SignedDuration::from_secs(60));
        assert_eq!(clock.jumped(), None);
    }

    #[test]
    fn a_jump_of_redis_is_noticed_in_both_directions_and_followed() {
        let clock = Clock::new();
        let quick = Duration::from_millis(1);
        see(&clock, 0, quick, 0);
        see(&clock, 10, quick, 3_600_000_000);
        let forward = clock.jumped().unwrap();
        assert_eq!(
            (forward.by, forward.count),
            (SignedDuration::from_hours(1), 1)
        );
        assert_eq!(
            clock.offset_us.load(Ordering::Relaxed),
            START_US + 3_600_000_000
        );
        see(&clock, 20, quick, 0);
        let back = clock.jumped().unwrap();
        assert_eq!((back.by, back.count), (SignedDuration::from_hours(-1), 2));
    }

    #[test]
    fn a_slow_reply_is_not_a_jump() {
        let clock = Clock::new();
        see(&clock, 0, Duration::from_millis(1), 0);
        see(&clock, 10, Duration::from_secs(4), 1_900_000);
        assert_eq!(clock.jumped(), None);
    }

    #[test]
    fn before_the_first_contact_the_host_clock_is_used_and_no_skew_is_claimed() {
        let clock = Clock::new();
        assert_eq!(clock.skew(), None);
        let host_ms = micros_since_epoch(SystemTime::now()) / 1000;
        assert!((i64::try_from(clock.now_ms()).unwrap() - host_ms).abs() < 1000);
    }
}
