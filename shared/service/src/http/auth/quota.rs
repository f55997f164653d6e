//! The number of messages that a token may send in a second, in one process.

use std::time::{Duration, Instant};

use lisa_core::sync::Mutex;

/// The time whose sends may come at once after a pause.
const BURST: Duration = Duration::from_secs(1);

/// The quota of a token. It has no memory of other processes.
#[derive(Debug)]
pub struct SendQuota {
    per_second: u32,
    begun: Instant,
    /// The time since `begun` at which the sends that were admitted are paid for.
    paid_at: Mutex<Duration>,
}

impl SendQuota {
    /// The highest quota.
    pub const MOST: u32 = 1_000_000;

    /// Creates a quota of at least one message a second.
    #[must_use]
    pub fn new(per_second: u32) -> Self {
        Self {
            per_second: per_second.max(1),
            begun: Instant::now(),
            paid_at: Mutex::default(),
        }
    }

    /// Returns the number of messages a second.
    #[must_use]
    pub fn per_second(&self) -> u32 {
        self.per_second
    }

    /// Admits a message, unless the quota is used up.
    #[must_use]
    pub fn admit(&self) -> bool {
        self.admit_at(self.begun.elapsed())
    }

    fn admit_at(&self, now: Duration) -> bool {
        let mut paid_at = self.paid_at.lock();
        let after = (*paid_at).max(now) + Duration::from_secs(1) / self.per_second;
        let is_admitted = after <= now + BURST;
        if is_admitted {
            *paid_at = after;
        }
        is_admitted
    }
}

impl PartialEq for SendQuota {
    fn eq(&self, other: &Self) -> bool {
        self.per_second == other.per_second
    }
}

impl Eq for SendQuota {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_each_second_as_many_are_admitted_and_a_pause_saves_up_one_second_at_most() {
        for per_second in [1, 3, 10, 7919, SendQuota::MOST] {
            let quota = SendQuota::new(per_second);
            let admitted = |at: Duration| {
                let admitted = (0..per_second * 2).take_while(|_| quota.admit_at(at));
                u32::try_from(admitted.count()).unwrap()
            };
            for (seconds, expected) in [
                (0, per_second),
                (0, 0),
                (1, per_second),
                (60, per_second),
                (60, 0),
            ] {
                let got = admitted(Duration::from_secs(seconds));
                assert_eq!(got, expected, "{per_second} at {seconds} s");
            }
        }
        let quota = SendQuota::new(2);
        let at = |ms| quota.admit_at(Duration::from_millis(ms));
        assert_eq!([at(0), at(0), at(0), at(499)], [true, true, false, false]);
        assert_eq!([at(500), at(500), at(1000)], [true, false, true]);
    }
}
